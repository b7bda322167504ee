#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Like parallel/test_mesh_decode.sh on emulated devices: in fp32 the tokens are those of one rank of
# processors.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

mkdir "$work/bin" # the program looks for its objects beside itself
cp "$BUILD/mesh_decode" "$work/bin/"
cp "$EMULATED" "$work/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$work/bin/libnebula_nccl.so"
# queues run when they are waited for; every process has one emulated device, of the same number
export EMU_LATE=1 EMU_NCCL_SHARED_DEVICE=1 CUDA_VISIBLE_DEVICES=
launcher=socket
"$BUILD/mesh_decode" 0 0 0 few=1 prefix=1 >"$work/one"
for mesh in "0 0 0" "1 1 2" "2 1 1"; do
    read -r dp pp tp <<<"$mesh"
    start=("$work/bin/mesh_decode" "$dp" "$pp" "$tp" few=1 prefix=1)
    if ((dp)); then
        ranks $((dp * pp * tp)) "${start[@]}" device=fp32 >"$work/out"
    else
        "${start[@]}" device=fp32 >"$work/out"
    fi
    diff "$work/one" "$work/out" || { echo "$mesh: other tokens than on processors"; exit 1; }
done
"$work/bin/mesh_decode" 0 0 0 few=1 prefix=1 device=bf16 >"$work/out"
(($(wc -l <"$work/out") == $(wc -l <"$work/one"))) || { cat "$work/out"; exit 1; }
echo "decoding on devices gives the tokens of processors"
