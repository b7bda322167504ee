#!/usr/bin/env bash
# tests/gpu/judge on reports as tests/gpu/run prints them: every goal alone can be missed, and a figure that is not there counts as missed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
cat >"$T/good" <<'MD'
| 268435456 elements | GB/s | of a copy |
| --- | --- | --- |
| copy on the device | 4100 | 1.00 |
| int8 encode | 3000 | 0.73 |
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
    [[ $rc == "$1" && $(grep -c MISSED "$T/out") == "$2" ]] || { echo "FAILED: ${4:-} exit status $rc, not $1 with $2 missed:"; cat "$T/out"; exit 1; }
}
judge 0 0 "$T/good"
grep -q '^0 of 16 goals are missed' "$T/out" || { echo "FAILED: other goals:"; cat "$T/out"; exit 1; }
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
miss '^| \(int.\|bf16\|topk.*\) \(en\|de\)code .*' '' 12
for one in 'int8 encode' 'int3 decode' 'int2 encode' 'bf16 decode' 'topk 64/4096 decode'; do miss "^| $one .*" ''; done
miss 'bf16 encode | 3200 | 0.78' 'bf16 encode | 2000 | 0.49'
sed '/^| torch/d' "$T/good" >"$T/bare"
judge 0 0 "$T/bare" "without PyTorch:"

# tests/gpu/run takes the judge's word, here of a bundle whose gpu_check prints a report's lines.
mkdir "$T/bundle" "$T/path"
cp "$here/run" "$here/judge" "$T/bundle/"
printf '#!/bin/sh\necho "GPU 0: none"\n' >"$T/path/nvidia-smi"
cat >"$T/bundle/gpu_check" <<'SH'
#!/bin/sh
case $1 in
device) echo "a fake" ;;
codec) grep -E 'code \|' "$FIGURES" ;;
speed) grep "^| $2 " "$FIGURES" ;;
nccl) echo "no NCCL"; exit 1 ;;
esac
SH
chmod +x "$T/path/nvidia-smi" "$T/bundle/gpu_check"
run() { # STATUS FILE
    local rc=0
    FIGURES=$2 PATH=$T/path:$PATH "$T/bundle/run" >"$T/out" 2>&1 || rc=$?
    [[ $rc == "$1" ]] || { echo "FAILED: tests/gpu/run ends with $rc, not $1:"; cat "$T/out"; exit 1; }
}
run 0 "$T/bare"
grep -q '^| Goals | ok |' "$T/out" || { echo "FAILED: no goals:"; cat "$T/out"; exit 1; }
sed 's/55.5 %/45.5 %/' "$T/bare" >"$T/bad"
run 1 "$T/bad"
grep -q '^| Goals | \*\*failed, exit status 1\*\* |' "$T/out" || { echo "FAILED: not the goals:"; cat "$T/out"; exit 1; }
echo "every goal can be missed, and fails the run"
