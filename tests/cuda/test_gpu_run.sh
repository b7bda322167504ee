#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/run on the emulated device, with the real programs but small sizes. The codecs' timing
# runs every kernel that it lists. Attention runs both paths of head_dim 128. Meshes train without
# MPI. NCCL's ranks pass the suite and notice an absent rank. A cluster on the device trains with
# one on processors.
set -euo pipefail
EMULATED=${EMULATED:?} EMULATED_NCCL=${EMULATED_NCCL:?}
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
mkdir "$T/bundle" "$T/path" "$T/bundle/lib"
cp "$BUILD/nebula" "$BUILD/nebula-clusters" "$BUILD/mesh_train" "$BUILD/tests/conform_comm" \
    "$SOURCE"/tests/gpu/{run,judge,torch_peer.py} "$SOURCE/tests/parallel/lib.sh" "$T/bundle/"
cp "$EMULATED" "$T/bundle/libnebula_cuda.so"
cp "$EMULATED" "$T/bundle/libnebula_device.so" # it needs no driver
cp "$EMULATED_NCCL" "$T/bundle/libnebula_nccl.so"
cp "$BUILD/tests/gpu_check" "$T/bundle/gpu_check.real"
cat >"$T/bundle/gpu_check" <<'SH'
#!/bin/sh
[ "$1" != codec ] || set -- codec 13
[ "$1" != attn ] || { [ "$2" = 128 ] || exit 0; set -- attn 128 1 66; }
[ "$1" != ops ] || set -- ops few "$2"
[ "$1" != modes ] || set -- modes small
[ "$1" != epilogues ] || exit 0 # this takes hours here
[ "$1" != heads ] || set -- heads 20 700 32
exec "$(dirname "$0")/gpu_check.real" "$@"
SH
printf '#!/bin/sh\necho "GPU 0: emulated"\n' >"$T/path/nvidia-smi"
chmod +x "$T/bundle/gpu_check" "$T/path/nvidia-smi"
cp "$SOURCE/tests/e2e/lib.sh" "$T/bundle/e2e.sh"
cp "$SOURCE/tests/e2e/pairs.sh" "$T/bundle/"
echo abcdef0-dirty >"$T/bundle/commit" # as --bundle leaves it
# EMU_NCCL_SHARED_DEVICE is unset: like NCCL, the emulation refuses two ranks of one host on a
# device.
export NEBULA_GPU_PATIENCE=3000 NEBULA_GPU_STEPS=6 NEBULA_GPU_WINDOW="seq_len: 48, batch: 3" \
    NEBULA_GPU_MESH="steps=1 seq=3 graphs=off" NEBULA_GPU_RATES=$BUILD/rates-device \
    PATH=$T/path:$PATH # rates: measured by cuda_rates
"$T/bundle/run" --part codec --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
(($(grep -cE '^\| [a-z0-9/ ]+ (en|de)code \| [0-9]+ \| [0-9.]+ \|$' "$T/out") == 13)) ||
    { cat "$T/out"; echo "codecs are missing"; exit 1; }
(($(grep -cE '^\| [a-z0-9/ ]+ encode, second pass \| [0-9]+ \| [0-9.]+ \|$' "$T/out") == 7)) ||
    { cat "$T/out"; echo "an encoder's passes are missing"; exit 1; }
# Equal bits would mean that both runs took the same path.
"$T/bundle/run" --part attn --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
row='^\| (as here|mma) \| 1 x 66, 16 heads of 128 \|( [0-9.]+ \|){4}'
row+='( differs by [1-9][-.0-9e]* \|| +\|)$'
(($(grep -cE "$row" "$T/out") == 2)) || { cat "$T/out"; echo "attention by other kernels"; exit 1; }
# Each process loses its device on the way: other processes run the remaining cases.
if EMU_LOSES=900 "$T/bundle/run" --part ops --into "$T/lost" >"$T/out" 2>"$T/err"; then
    cat "$T/out"; echo "nobody minds a lost device"; exit 1
fi
grep -q '^Kernels against the reference: \*\*failed, exit status 1\*\*' "$T/out" ||
    { cat "$T/out" "$T/err"; echo "another result"; exit 1; }
lost=$(grep -c '^next=' "$T/out") || true
((lost >= 1 && lost <= 10)) && (($(grep -c '| \*\*failed\*\* |$' "$T/out") == lost)) ||
    { cat "$T/out"; echo "$lost processes, and other cases"; exit 1; }
cases() {
    grep -E '^\| .* \| (ok|equal|\*\*[a-z]+\*\*) \|$' "$T/out" |
        grep -E '\| (ok|\*\*failed\*\*) \|$' | grep -c -E '(fp32|bf16)'
}
with=$(cases)
"$T/bundle/run" --part ops --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
(($(cases) == with && with > 150)) ||
    { cat "$T/out"; echo "$with cases with a device that was lost, $(cases) without"; exit 1; }
grep -q '^| rtd_loss | [0-9.]* |$' "$T/out" ||
    { cat "$T/out"; echo "nobody times rtd and distill"; exit 1; }
"$T/bundle/run" --part mesh --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
for ranks in 2 4; do
    grep -q "^Training, $ranks ranks on one card: ok" "$T/out" ||
        { cat "$T/out"; echo "no mesh of $ranks"; exit 1; }
done
(($(grep -c 'largest difference of a loss' "$T/out") == 14)) ||
    { cat "$T/out"; echo "meshes are missing"; exit 1; }
"$T/bundle/run" --part nccl --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
for what in "2 ranks on one card" "4 ranks on one card" \
    "the communicators' suite, 2 ranks on one card" \
    "the communicators' suite, 4 ranks on one card" "a rank stays away, 1x1x2" \
    "a rank stays away, 2x1x1"; do
    grep -q "^NCCL, $what: ok" "$T/out" || { cat "$T/out"; echo "not so: $what"; exit 1; }
done
(($(grep -c 'has not ended after 3000 ms' "$T/out") >= 2)) ||
    { cat "$T/out"; echo "nobody says who stayed away"; exit 1; }
"$T/bundle/run" --part clusters --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
grep -q '^Two clusters, one on the device: ok' "$T/out" ||
    { cat "$T/out"; echo "no two clusters"; exit 1; }
"$T/bundle/run" --part modes --into "$T/parts" >"$T/out" || { cat "$T/out"; exit 1; }
(($(grep -cE '^\| [a-z].* \| [0-9]+ \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \|$' "$T/out") == 5)) ||
    { cat "$T/out"; echo "a side is missing"; exit 1; }
for mode in rtd distill; do
    grep -q "^Mode $mode, both sides on the device: ok" "$T/out" ||
        { cat "$T/out"; echo "no mode $mode"; exit 1; }
done
NEBULA_GPU_PLAN=small EMU_DEVICES=2 "$T/bundle/run" --part plan --into "$T/plan" >"$T/out" ||
    grep -q '^| 124M | 0' "$T/out" ||
    { cat "$T/out"; echo "nothing was planned, or measured"; exit 1; }
NEBULA_GPU_SCIENCE=small "$T/bundle/run" --part science --into "$T/parts" >"$T/out" ||
    { cat "$T/out"; exit 1; }
row='^\| small \| [0-9]+ \| 16 \| (adamw|muon)(-300x)? \| [0-9.]+ \| [0-9.]+ \| '
(($(grep -cE "$row- \| 1 \| [0-9.]+ \|$" "$T/out") == 2 &&
    $(grep -cE "$row[-+][0-9.]+ \| [0-9]{2,} \| [0-9.]+ \|$" "$T/out") == 2)) ||
    { cat "$T/out"; echo "a scheme is missing"; exit 1; }
# PyTorch gets more time for a single shape: a fake python3 prints its arguments.
mkdir "$T/python"
cat >"$T/python/python3" <<'SH'
#!/bin/sh
[ "$1" = -c ] || printf '| torch %s | of %s |\n' "$2" "$(tr '\0' ' ' </proc/$PPID/cmdline)"
SH
chmod +x "$T/python/python3"
PATH=$T/python:$PATH NEBULA_GPU_SHAPES=350m "$T/bundle/run" --part torch --into "$T/torch" \
    >"$T/out" || { cat "$T/out"; exit 1; }
grep -q '^| torch 350m | of timeout -k 5 \(4[5-9][0-9]\|500\) ' "$T/out" ||
    { cat "$T/out"; echo "one shape has not the call's time"; exit 1; }
PATH=$T/python:$PATH "$T/bundle/run" --part torch --into "$T/torch" >"$T/out" ||
    { cat "$T/out"; exit 1; }
(($(grep -c '^| torch [0-9]*m | of timeout -k 5 2[0-9][0-9] ' "$T/out") == 2)) ||
    { cat "$T/out"; echo "two shapes do not share a call's time"; exit 1; }
rc=0
"$T/bundle/run" --report "$T/parts" >"$T/out" || rc=$?
grep -q '^| Federated and synchronous training, .* | ok |' "$T/out" ||
    { cat "$T/out"; echo "a report without the science"; exit 1; }
grep -q 'of commit abcdef0-dirty on' "$T/out" ||
    { cat "$T/out"; echo "a report of no commit"; exit 1; }
[[ $rc == 1 ]] && grep -q '^| Codecs | ok |' "$T/out" && grep -q '^| speed | \*\*not run\*\* |' \
    "$T/out" || { cat "$T/out"; echo "another report"; exit 1; }
# A bundle has no part of the C library: another machine's loader needs its own.
if [[ -e $BUILD/libnebula_cuda.so ]] && dpkg -L libc6 >"$T/libc" 2>/dev/null; then
    BUILD=$BUILD "$SOURCE/tests/gpu/run" --bundle "$T/packed" >"$T/out" ||
        { cat "$T/out"; echo "no bundle"; exit 1; }
    tar -tzf "$T/packed/lib.tar.gz" | sed 's,.*/,,' | sort >"$T/carried"
    [[ $(<"$T/packed/commit") == "$(git -C "$SOURCE" describe --always --dirty --exclude '*' \
        2>/dev/null || echo unknown)" ]] ||
        { cat "$T/packed/commit"; echo "a bundle of another commit"; exit 1; }
    grep -q libopenblas "$T/carried" ||
        { cat "$T/carried"; echo "a bundle without libraries"; exit 1; }
    theirs=$(sed 's,.*/,,' "$T/libc" | grep '\.so' | sort -u | comm -12 - "$T/carried")
    [[ -z $theirs ]] || { echo "the bundle carries parts of the C library: $theirs"; exit 1; }
fi
echo "parts run and join"
