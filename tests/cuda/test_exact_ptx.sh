#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the compiled exact path: no fused multiply-add, no flush to zero, no approximate division
# or root. The emulator cannot see that, because it uses another compiler.
set -euo pipefail
: "${SOURCE:?set SOURCE to the source folder}"
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null) ||
    { echo "cannot run here: no nvcc"; exit 77; }
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
# The same options as the build.
options=$(sed -n 's/^ *set(exact \(-fmad.*\))$/\1/p' "$SOURCE/kernels/cuda/room.cmake")
[[ $options == *-fmad=false* ]] ||
    { echo "FAILED: kernels/cuda/room.cmake names no options for the exact path"; exit 1; }
found() {
    local start='^[[:space:]]*(@[^ ]+ )?' rough='(div|sqrt|rcp|rsqrt)\.(approx|full)'
    grep -cE "$start(fma\.|mad\.[a-z.]*f32|[a-z0-9.]*\.ftz\.|$rough)" "$1" || true
}
n=0
for f in "$SOURCE"/kernels/cuda/exact*.cu; do
    # shellcheck disable=SC2086
    "$nvcc" -std=c++17 -O3 -arch=sm_80 -I"$SOURCE" $options -ptx "$f" -o "$T/out.ptx"
    grep -qE 'mul\.f32|mul\.rn\.f32' "$T/out.ptx" ||
        { echo "FAILED: $f: no arithmetic found"; exit 1; }
    [[ $(found "$T/out.ptx") == 0 ]] ||
        { echo "FAILED: $f:"; grep -nE 'fma|ftz|approx|full' "$T/out.ptx" | head; exit 1; }
    n=$((n + 1))
done
# Without these options, fused operations appear, and the search finds them.
"$nvcc" -std=c++17 -O3 -arch=sm_80 -I"$SOURCE" -ptx "$SOURCE/kernels/cuda/exact.cu" -o "$T/out.ptx"
[[ $(found "$T/out.ptx") -gt 0 ]] || { echo "FAILED: nothing fused without -fmad=false?"; exit 1; }
echo "$n files: every operation rounds by itself"
