#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/judge on reports in the form of tests/gpu/run. Each goal alone can be missed, and a
# missing figure counts as a missed goal.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
cat >"$T/good" <<'MD'
| 268435456 elements | GB/s | of a copy |
| --- | --- | --- |
| copy on the device | 4100 | 1.00 |
| int8 encode | 3000 | 0.73 |
| int8 encode, second pass | 3700 | 0.90 |
| int8 decode | 3200 | 0.78 |
| int4 encode | 2870 | 0.70 |
| int4 decode | 3280 | 0.80 |
| int3 encode | 2950 | 0.72 |
| int3 decode | 3280 | 0.80 |
| int2 encode | 2950 | 0.72 |
| int2 decode | 3280 | 0.80 |
| bf16 encode | 3200 | 0.78 |
| bf16 decode | 3200 | 0.78 |
| topk 64/4096 encode | 2900 | 0.71 |
| topk 512/4096 encode | 2880 | 0.70 |
| topk 512/4096 encode, second pass | 2500 | 0.61 |
| topk 64/4096 decode | 3100 | 0.76 |
| outer step | 1000 | 0.24 |
| model | batch | tokens/s | ms a step | TFLOP/s | of a product of 8192³ | GB | loss |
| 124m | 32 x 1024 | 410000 | 79.9 | 351.0 | 50.0 % | 21.0 | 9.1 |
| 350m | 16 x 1024 | 160000 | 102.4 | 390.0 | 55.5 % | 30.0 | 9.0 |
| torch 2.9.0+cu129 124m | 32 x 1024 | 400000 | 81.9 |
| torch 2.9.0+cu129 350m | 16 x 1024 | 160000 | 102.4 |
MD
judge() { # STATUS MISSED FILE
    local rc=0
    "$here/judge" "$3" >"$T/out" || rc=$?
    [[ $rc == "$1" && $(grep -c MISSED "$T/out") == "$2" ]] ||
        { echo "FAILED: ${4:-} exit status $rc, not $1 with $2 missed:"; cat "$T/out"; exit 1; }
}
judge 0 0 "$T/good"
grep -q '^0 of 17 goals are missed' "$T/out" ||
    { echo "FAILED: other goals:"; cat "$T/out"; exit 1; }
miss() { # FROM TO [COUNT]
    sed "s,$1,$2," "$T/good" >"$T/bad"
    ! cmp -s "$T/good" "$T/bad" || { echo "FAILED: $1 is not in the report"; exit 1; }
    judge 1 "${3:-1}" "$T/bad" "$1: $2:"
}
miss '| int8 decode | 3200 | 0.78' '| int8 decode | 2000 | 0.69'
miss '| 2900 | 0.71' '| 600 | 0.15'
miss '50.0 %' '49.9 %'
miss '| 160000 | 102.4 | 390' '| 159999 | 102.4 | 390'
miss '| torch 2.9.0+cu129 124m | 32 x 1024 | 400000' '| torch 2.9.0+cu129 124m | 32 x 1024 | 410001'
miss '^| 350m .*' ''
# to mawk, a NaN equals everything
for figure in '0.73' '410000' '50.0 %' '400000'; do miss "| $figure" '| nan'; done
miss '^| \(int.\|bf16\|topk.*\) \(en\|de\)code .*' '' 13
for one in 'int8 encode' 'int3 decode' 'int2 encode' 'bf16 decode' 'topk 64/4096 encode' \
    'topk 512/4096 encode' 'topk 64/4096 decode'; do
    miss "^| $one .*" ''
done
miss '| int8 encode | 3000 | 0.73' '| int8 encode | 2800 | 0.68' # whatever one pass of it has
miss 'bf16 encode | 3200 | 0.78' 'bf16 encode | 2000 | 0.49'
miss '^| torch .* 350m .*' ''
miss '^| torch .*' '' 2
grep -q '^| tokens/s, 124m | 410000 | PyTorch was not measured | \*\*MISSED\*\* |' "$T/out" ||
    { echo "FAILED: no word of PyTorch:"; cat "$T/out"; exit 1; }

# tests/gpu/run uses the judge's result, here in a bundle whose gpu_check prints a report's lines.
mkdir "$T/bundle" "$T/path"
touch "$T/bundle/libnebula_cuda.so"
cp "$here/run" "$here/judge" "$here/../parallel/lib.sh" "$T/bundle/"
printf '#!/bin/sh\necho "GPU 0: none"\n' >"$T/path/nvidia-smi"
cat >"$T/path/python3" <<'SH'
#!/bin/sh
[ -z "$NO_TORCH" ] || exit 1
[ "$1" = -c ] || [ "$2" = attn ] || grep "^| torch .* $2 " "$FIGURES" # torch_peer.py SHAPE
SH
# A tool that never ends and ignores signals.
printf '#!/bin/bash\ntrap "" TERM\n[[ $2 != racecheck ]] || sleep 60\n' >"$T/path/compute-sanitizer"
cat >"$T/bundle/gpu_check" <<'SH'
#!/bin/sh
case $1 in
device) [ -z "$NO_DEVICE" ] || { echo "libcublasLt.so.13: cannot open"; exit 77; }
    grep -q there "$(dirname "$0")/lib/library" || exit 1; echo "a fake" ;;
ops) [ -z "$OPS_FAIL" ] || exit 3
    echo "kernels from ${2:-0}"
    if [ "${2:-0}" -lt "${LOSES_UNTIL:-0}" ]; then echo "next=$(($2 + 7))"; exit 3; fi
    exit "${OPS_STATUS:-0}" ;;
codec) grep -E 'code( \||, )' "$FIGURES" ;;
speed) grep "^| $2 " "$FIGURES" ;;
attn) exit "${ATTN_STATUS:-0}" ;;
nccl) echo "no NCCL"; exit 1 ;;
esac
SH
chmod +x "$T"/path/* "$T/bundle/gpu_check"
mkdir "$T/lib" # what a bundle carries packed is there before its programs run
echo there >"$T/lib/library"
tar -C "$T" -czf "$T/bundle/lib.tar.gz" lib
run() { # STATUS FILE [OPTIONS...]
    local rc=0 status=$1
    export FIGURES=$2
    shift 2
    PATH=$T/path:$PATH "$T/bundle/run" "$@" >"$T/out" 2>"$T/err" || rc=$?
    [[ $rc == "$status" ]] ||
        { echo "FAILED: tests/gpu/run $* ends with $rc, not $status:"; cat "$T/out" "$T/err"
        exit 1; }
}
says() { grep -q "$1" "$T/out" || { echo "FAILED: not in the report: $1"; cat "$T/out"; exit 1; }; }
printf '#!/bin/sh\n' >"$T/path/compute-sanitizer.ok"
cp "$T/path/compute-sanitizer" "$T/slow"
cp "$T/path/compute-sanitizer.ok" "$T/path/compute-sanitizer"
chmod +x "$T/path/compute-sanitizer"
run 0 "$T/good"
says '^| Goals | ok |'
says '^| Training, 2 ranks on one card | not here |'
sed 's/55.5 %/45.5 %/' "$T/good" >"$T/bad"
run 1 "$T/bad"
says '^| Goals | \*\*missed\*\* |'
NO_TORCH=1 run 1 "$T/good"
says '^| PyTorch, torch.compile, 124m | not here |'
says '^| tokens/s, 350m | 160000 | PyTorch was not measured | \*\*MISSED\*\* |'
says '^| Goals | \*\*missed\*\* |'
NO_TORCH=1 run 0 "$T/good" --part torch --into "$T/torch"
NO_TORCH=1 run 0 "$T/good" --part attn --into "$T/attn"
says '^Attention, head_dim 64: ok'
says '^Attention, PyTorch: not here'
ATTN_STATUS=1 run 1 "$T/good" --part attn --into "$T/attn"
says '^Attention, head_dim 128: \*\*failed, exit status 1\*\*'
OPS_FAIL=1 run 1 "$T/good" --quick
says '^| Kernels against the reference | \*\*failed, exit status 3\*\* |'
run 0 "$T/good" --quick
# A GPU that cannot be opened, at once or later, differs from a machine without one.
NO_DEVICE=1 run 1 "$T/good" --quick
for what in 'GPU 0: none cannot be opened: libcublasLt.so.13: cannot open' \
    '^LD_LIBRARY_PATH=.*/bundle/lib' 'libnebula_cuda.so'; do
    grep -q "$what" "$T/err" || { echo "FAILED: not said: $what"; cat "$T/err"; exit 1; }
done
OPS_STATUS=77 run 1 "$T/good" --quick
says '^| Kernels against the reference | \*\*failed, exit status 1\*\* |'
# Each process that loses the device costs one case; after ten the run ends.
LOSES_UNTIL=20 run 1 "$T/good" --quick
says '^| Kernels against the reference | \*\*failed, exit status 1\*\* |'
says '^3 processes lost the device'
for from in 0 7 14 21; do says "^kernels from $from$"; done
LOSES_UNTIL=1000 run 1 "$T/good" --quick
says '^| Kernels against the reference | \*\*failed, exit status 3\*\* |'
says '^kernels from 70$'
! grep -q '^kernels from 77$' "$T/out" || { echo "FAILED: too many processes"; exit 1; }
mv "$T/bundle/libnebula_cuda.so" "$T/object"
run 77 "$T/good" --quick
mv "$T/object" "$T/bundle/libnebula_cuda.so"

# Without NCCL there are no meshes, which is no failure. A mesh that fails for another reason is a
# failure.
printf '#!/bin/sh\n' >"$T/bundle/mesh_train"
printf '%s\n' '#!/bin/sh' \
    'echo "cannot load /x/libnebula_nccl.so: libnccl.so.2: cannot open shared object file" >&2' \
    'exit 1' >"$T/bundle/nebula"
touch "$T/bundle/libnebula_nccl.so"
chmod +x "$T/bundle/mesh_train" "$T/bundle/nebula"
run 0 "$T/good" --part mesh --into "$T/mesh"
says '^Training, 4 ranks on one card: not here'
cp "$T/bundle/mesh_train" "$T/bundle/conform_comm"
run 0 "$T/good" --part nccl --into "$T/nccl"
(($(grep -c '^NCCL, .*: not here' "$T/out") == 6)) ||
    { echo "FAILED: not all of NCCL is not here:"; cat "$T/out"; exit 1; }
printf '#!/bin/sh\necho "cannot load /x/libnebula_cuda.so: no" >&2\nexit 1\n' >"$T/bundle/nebula"
run 1 "$T/good" --part mesh --into "$T/mesh"
run 1 "$T/good" --part nccl --into "$T/nccl"
says "^NCCL, the communicators' suite, 2 ranks on one card: \*\*failed, exit status 1\*\*"
says '^no such message'
# The output lacks the suite's result, or the report of an absent rank.
printf '#!/bin/sh\necho "nccl: rank 0 of 2"\n' >"$T/bundle/nebula"
run 1 "$T/good" --part nccl --into "$T/nccl"
says '^rank 1 of 2 did not run'
says "^NCCL, the communicators' suite, 2 ranks on one card: \*\*failed, exit status 1\*\*"
says '^a rank stayed away, and nobody minded'
says '^NCCL, a rank stays away, 2x1x1: \*\*failed, exit status 1\*\*'

# Two clusters end with the same parameters, one of them on the device.
cp "$here/../e2e/lib.sh" "$T/bundle/e2e.sh"
cp "$here/../e2e/pairs.sh" "$T/bundle/"
cat >"$T/bundle/nebula" <<'SH'
#!/bin/sh
[ "$1" = pretrain ] || exit 0
grep -q 'name: alpha, device: cuda.*' "$2" && grep -q 'name: beta, device: cpu' "$2" || exit 1
while [ "$1" != --out ]; do shift; done
mkdir "$2"
printf '{"clusters": [{"device": "%s",\n"params_digest": "ab12"}, ' "$DEVICE" >"$2/summary.json"
printf '{"device": "cpu (x)",\n"params_digest": "%s"}]}\n' "$DIGEST" >>"$2/summary.json"
SH
DEVICE="cuda (a card, bf16)" DIGEST=ab12 run 0 "$T/good" --part clusters --into "$T/clusters"
says '^Two clusters, one on the device: ok'
DEVICE="cuda (a card, bf16)" DIGEST=ab13 run 1 "$T/good" --part clusters --into "$T/clusters"
says '^digests differ'
DEVICE="cpu (y)" DIGEST=ab12 run 1 "$T/good" --part clusters --into "$T/clusters"
says '^other devices'
# Both sides of rtd and distill learn, and a plan is right within a factor of two.
cat >"$T/bundle/nebula" <<'SH'
#!/bin/sh
say() {
    printf '{"clusters": [{"device": "%s",\n"steps": 40, "train_s": %s, ' "$DEVICE" "${TOOK:-1}"
    printf '"loss_first": 2.5, "loss_last": 2.25}, '
    printf '{"device": "cuda (y)", "loss_first": 2.5,\n"loss_last": %s}]}\n' "$LAST"
}
case $1 in
plan) grep -q 'name: alpha, device: cuda' "$2" && [ "$(grep -c name: "$2")" = 1 ] || exit 1
    [ "$5" = --json ] || { echo "a step of 0.02 s"; exit; }
    printf '{"machines": [{"step": 7}], "written": {"clusters": [{"step_s": 0.02}]}}\n' ;;
data)
    while [ "$1" != --out ]; do shift; done
    mkdir "$2"
    echo '{"sources": [{"test": ["x"]}]}' >"$2/corpus.json" ;;
pretrain | distill) while [ "$1" != --out ]; do shift; done; mkdir "$2"; say >"$2/summary.json" ;;
esac
SH
DEVICE="cuda (x)" LAST=2.0e-1 run 0 "$T/good" --part modes --into "$T/modes"
for mode in rtd distill; do says "^Mode $mode, both sides on the device: ok"; done
DEVICE="cuda (x)" LAST=2.6 run 1 "$T/good" --part modes --into "$T/modes"
says '^a loss has not fallen'
DEVICE="cpu (x)" LAST=2 run 1 "$T/good" --part modes --into "$T/modes"
says '^other devices'
run 0 "$T/good" --part plan --into "$T/plan"
says '^| 124M | 0.0200 | 0.0250 | 1.25 |'
for took in 0.3 2; do TOOK=$took run 1 "$T/good" --part plan --into "$T/plan"; done
rm "$T/bundle/e2e.sh" "$T/bundle/conform_comm"

# Every mesh of a list is judged, not only the last. Here an earlier one has other losses.
cat >"$T/bundle/nebula" <<'SH'
#!/bin/sh
shift 2 # ranks N
exec "$@"
SH
cat >"$T/bundle/mesh_train" <<'SH'
#!/bin/sh
loss=3.5
case "$1x$2x$3 $*" in "$WRONG_MESH "*"$WRONG_TYPE"*) loss=3.85 ;; esac
printf '0 %s 1 0\neval %s\n' $loss $loss
SH
run 0 "$T/good" --part mesh --into "$T/mesh"
says '^Training, 2 ranks on one card: ok'
says '^Training, 4 ranks on one card: ok'
for wrong in 2x1x1 1x1x2 1x2x1; do
    for type in fp32 bf16; do
        WRONG_MESH=$wrong WRONG_TYPE=device=$type run 1 "$T/good" --part mesh --into "$T/mesh"
        says "^dp ${wrong%%x*}, pp .* device=$type .*: step 0: loss 3.85, one rank has 3.5"
        says '^Training, 2 ranks on one card: \*\*failed, exit status 1\*\*'
        says '^Training, 4 ranks on one card: ok'
    done
done
rm "$T/bundle/mesh_train" "$T/bundle/nebula" "$T/bundle/libnebula_nccl.so"

# Parts of several calls, joined afterwards, make the same report; The report shows a missing, cut
# or failed part. Each call leaves one file.
parts=$T/parts
for part in ops train graphs attn codec nccl speed torch mesh clusters modes attach plan; do
    run 0 "$T/good" --part $part --into "$parts"
done
run 1 "$T/good" --report "$parts"
says '^| sanitizers | \*\*not run\*\* |'
run 0 "$T/good" --part sanitizers:memcheck --part sanitizers:synccheck --part sanitizers:initcheck \
    --into "$parts"
run 1 "$T/good" --report "$parts"
says '^| sanitizers:racecheck | \*\*not run\*\* |'
run 0 "$T/good" --part sanitizers --into "$parts"
run 0 "$T/good" --report "$parts"
says '^# On a GPU'
says '^a fake; driver'
says '^| compute-sanitizer racecheck | ok |'
says '^0 of 17 goals are missed'
! grep -q '<!--' "$T/out" || { echo "FAILED: marks show"; exit 1; }
cp "$T/out" "$T/report"
run 0 "$T/good" --report "$parts" --to "$T/written"
[[ ! -s $T/out ]] && cmp "$T/report" "$T/written" ||
    { echo "FAILED: not the same report in a file"; exit 1; }
run 0 "$T/good" --part ops --part train --part graphs --part codec --part speed --part torch \
    --into "$T/one"
run 0 "$T/good" --part attn --part nccl --part clusters --part modes --part attach --part plan \
    --part mesh --into "$T/two"
run 0 "$T/good" --part sanitizers --into "$T/three"
(($(find "$T/one" "$T/two" "$T/three" -type f | wc -l) == 3)) ||
    { echo "FAILED: not a file a call"; find "$T/one" "$T/two" "$T/three"; exit 1; }
chmod -R a-w "$T/one" "$T/two" # where calls are made, what comes back is read-only
run 0 "$T/good" --report "$T/one" "$T/two" "$T"/three/sanitizers.md
chmod -R u+w "$T/one" "$T/two"
sed -i 's/ [0-9]* |$//' "$T/report" "$T/out" # seconds
cmp "$T/report" "$T/out" ||
    { echo "FAILED: three calls report something else than ten"; diff "$T/report" "$T/out"; exit 1
    }
mv "$parts/speed.md" "$T/kept"
run 1 "$T/good" --report "$parts"
says '^| speed | \*\*not run\*\* |'
says '^| Goals | \*\*missed\*\* |'
grep -v '^<!-- row' "$T/kept" >"$parts/speed.md"
run 1 "$T/good" --report "$parts"
says '^| speed | \*\*cut off\*\* |'
grep -v '^<!-- end speed' "$T/kept" >"$parts/speed.md" # behind its first step
run 1 "$T/good" --report "$parts"
says '^| Training speed, 124m | ok |'
says '^| speed | \*\*cut off\*\* |'
run 1 "$T/good" --part no-such-part
run 1 "$T/good" --report "$T/no-such-folder"
run 1 "$T/good" --report

# A part ends in its time, whatever its steps do; the report names the skipped steps.
sed -i 's/^part_limit=.*/part_limit=6/;
    s/"compute-sanitizer $tool" 130/"compute-sanitizer $tool" 5/' "$T/bundle/run"
cp "$T/slow" "$T/path/compute-sanitizer"
start=$SECONDS
run 1 "$T/good" --part sanitizers --into "$parts"
((SECONDS - start < 30)) || { echo "FAILED: $((SECONDS - start)) s for a part of 6"; exit 1; }
says '^compute-sanitizer memcheck: ok'
says '^compute-sanitizer racecheck: \*\*not done in'
says '^compute-sanitizer initcheck: \*\*not done in 0 s'
# A call ends in its time, too; the report names the skipped parts.
run 1 "$T/good" --part sanitizers --part ops --limit 7 --into "$parts"
says '^compute-sanitizer memcheck: ok'
says '^Kernels against the reference: \*\*not done in 0 s'
echo "every goal can be missed, and fails the run; parts end in time, and join"
