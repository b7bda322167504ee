#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# --tensorboard writes event files that a reader made from the format's description accepts, with
# the figures of metrics.jsonl. After a kill -9 and --resume, both files are readable.
# tests/peers/tensorboard tests with TensorBoard itself.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$0")
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 300/; s/every_steps: 20/every_steps: 30/; $a\log_every: 5' "$T/job.yaml"
read_all() {
    python3 "$here/tfevents.py" "$1/tensorboard" >"$T/scalars" 2>"$T/read" ||
        fail "the event files cannot be read: $(cat "$T/read")"
}

NEBULA_FAULT=worker.step:+40 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/run" \
    --tensorboard >"$T/run.log" 2>&1 &
pid=$!
wait_step "$T/run" 70 "$pid" || fail "the run ended before step 70"
pretrain=$(pgrep -P "$pid" -x nebula | head -n 1)
kill -KILL "$pretrain"
wait "$pid" || true
read_all "$T/run" # all written records are intact
first=$(ls "$T/run/tensorboard/alpha")
# Cuts the file, as a crash in the middle of a record would.
truncate -s -7 "$T/run/tensorboard/alpha/$first"
for ((i = 0; i < 1200; i++)); do # until the agents of the killed command have ended
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/run" --resume \
        --tensorboard >"$T/resumed.log" 2>&1 && break
    grep -q 'another nebula works in' "$T/resumed.log" || fail "the run could not be resumed"
    sleep 0.1
done
read_all "$T/run"
grep -q '^1 files cut short' "$T/read" || fail "the cut file is not recognised: $(cat "$T/read")"
# The trace of the same run has each merge of both clusters, and flows between them.
"$nebula" trace "$T/run" | grep -q 'trace.json: .* events' || fail "no trace"
jq -e --slurpfile m "$T/run/metrics.jsonl" '.traceEvents
    | ([.[] | select(.ph == "X" and (.name | startswith("merge")))] | length) ==
        ([$m[] | select(.kind == "round")] | length)
    and ([.[] | select(.ph == "s")] | length) == ([.[] | select(.ph == "f")] | length)
    and any(.ph == "f" and .pid == 1) and any(.ph == "f" and .pid == 2)
    and any(.ph == "C" and .name == "link" and .args.sent_bit_s > 0)
    and all(.ph != "X" or .dur > 0)' "$T/run/trace.json" >/dev/null || fail "the trace is wrong"
(ulimit -f 4 && ! "$nebula" trace "$T/run" -o "$T/cut.json" 2>"$T/cut.log") &&
    has "error cannot write $T/cut.json: File too large" "$T/cut.log" && [[ ! -e $T/cut.json ]] ||
    fail "a trace that the disk has no room for: $(cat "$T/cut.log")"
[[ $(find "$T/run/tensorboard/alpha" "$T/run/tensorboard/beta" -type f | wc -l) == 4 ]] ||
    fail "wrong event files: $(ls "$T"/run/tensorboard/*)"

says() { jq -s -e "$1" "$T/scalars" >/dev/null || fail "wrong event files: not $1"; }
for tag in loss/train loss/held_out optim/lr throughput/tokens_per_s time/stall_s wan/sent_bytes \
    wan/received_bytes wan/goodput_bits_per_s round/payload_bytes; do
    says "[.[] | select(.tag == \"$tag\") | .run] | unique == [\"alpha\", \"beta\"]"
done
says '[.[] | select(.start) | select(.start == 1 and .step > 0) | .run] |
    unique == ["alpha", "beta"]'
says '[.[].wall] | all(. > 1700000000 and . < 5000000000)'
says '[.[] | select(.tag == "loss/held_out") | .step] | all(. == 300)'
# For these steps, the second files hold exactly the values of metrics.jsonl (floats there, decimals
# here).
for name in alpha beta; do
    second=$(ls "$T/run/tensorboard/$name" | sort | tail -n 1)
    jq -r --arg f "$second" \
        --arg c "$name" 'select(.run == $c and .file == $f and .tag == "loss/train") |
        "\(.step) \(.value)"' "$T/scalars" >"$T/seen"
    [[ $(wc -l <"$T/seen") -ge 20 ]] || fail "$name has too few points: $(cat "$T/seen")"
    jq -r --arg c "$name" 'select(.kind == "step" and .cluster == $c) | "\(.step) \(.loss)"' \
        "$T/run/metrics.jsonl" | tail -n "$(wc -l <"$T/seen")" >"$T/want"
    paste -d ' ' "$T/seen" "$T/want" | awk '$1 != $3 || $2 - $4 > 1e-6 * $4 || $4 - $2 > 1e-6 * $4 {
        print; bad = 1 } END { exit bad }' >"$T/differ" ||
            fail "$name differs from metrics.jsonl: $(head -n 3 "$T/differ")"
done
want=$(jq '.clusters[0].eval_loss' "$T/run/summary.json")
says "[.[] | select(.tag == \"loss/held_out\" and .run == \"alpha\") | .value - $want] |
    all(. < 1e-5 and . > -1e-5)"

# Without the option there are no event files. A folder that cannot be made is reported before the
# run starts.
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 20 --set optim.warmup=5 \
    --out "$T/plain" >"$T/plain.log" 2>&1 || fail "the run without event files failed"
[[ ! -e $T/plain/tensorboard ]] || fail "there are event files without the option"
mkdir -p "$T/no" && : >"$T/no/tensorboard"
if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/no" \
    --tensorboard >"$T/no.log" 2>&1; then
    fail "a run without its folder succeeded"
fi
grep -q "$T/no/tensorboard" "$T/no.log" || fail "the reason is missing: $(cat "$T/no.log")"
echo "$(wc -l <"$T/scalars") scalars in 4 files, $(cat "$T/read")"
