#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that hangs, here by SIGSTOP, ends nothing by itself: the agent notices that no step is made, says so once, ends all ranks and
# starts them again from the checkpoint; the run comes to the bits of one that nothing disturbed. The same for a worker of one rank.
source "$(dirname "$0")/../e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/seq_len: 64, batch: 4/seq_len: 64, batch: 8/' -e 's/{name: alpha,/{name: alpha, mesh: {tp: 2},/' "$T/job.yaml"
# A rank may be stopped in the middle of an exchange or checkpoint as well, which are given 30 times as long.
options=(--local 2 --steps 160 --set sync.interval=40 --set checkpoint.every_steps=40 --set log_every=1 --set hang_after_s=3)
hangs() { jq -R -s "[split(\"\n\")[] | fromjson? | select(.kind == \"fault\" and .cluster == \"$2\" and (.text | test(\"^the worker hangs\")))] | length" "$T/$1/metrics.jsonl"; }

timeout 200 "$nebula" pretrain "$T/job.yaml" --out "$T/whole" "${options[@]}" >"$T/whole.log" 2>&1 || fail "undisturbed: $(tail -n 5 "$T/whole.log")"
[[ $(hangs whole alpha) == 0 && $(hangs whole beta) == 0 ]] || fail "a run that trains, exchanges and evaluates counts as hanging"

NEBULA_FAULT=worker.step:+20 timeout 250 "$nebula" pretrain "$T/job.yaml" --out "$T/stop" "${options[@]}" >"$T/stop.log" 2>&1 &
pid=$!
stopped() { # CLUSTER STEP PATTERN: SIGSTOP to the last process that was started so
    local victim
    wait_step "$T/stop" "$2" "$pid" "$1" || fail "the run does not come to step $2 of $1: $(tail -n 3 "$T/stop.log")"
    within 20 saved "$T/stop" "$1" || fail "no checkpoint of $1 at step $2"
    victim=$(pgrep -f "$3" | sort -n | tail -n 1)
    [[ -n $victim ]] || fail "no process of $1 found"
    kill -STOP "$victim"
    for ((i = 0; i < 1200; i++)); do
        [[ $(hangs stop "$1") == 1 ]] && return
        kill -0 "$pid" 2>/dev/null || fail "the run ended: $(tail -n 3 "$T/stop.log")"
        sleep 0.1
    done
    fail "nobody notices that $victim of $1 hangs"
}
stopped alpha 45 "nebula worker $T/stop/clusters/alpha/.* --rank"
stopped beta 85 "nebula worker $T/stop/clusters/beta/"
wait "$pid" || fail "the run with hanging workers failed: $(tail -n 5 "$T/stop.log")"
digests_equal "$T/stop"
[[ $(summary '.clusters[0].params_digest' "$T/stop") == "$(summary '.clusters[0].params_digest' "$T/whole")" ]] || fail "other parameters than undisturbed"
went_on "$T/stop" alpha rank-0.log
went_on "$T/stop" beta worker.log
grep -q 'alpha: the worker hangs: it has been silent for [0-9]* s, and the limit is [0-9]* s' "$T/stop.log" || fail "no line: $(cat "$T/stop.log")"
# Of a worker that hangs when it has said its last word, nothing is lost; its job ends all the same.
NEBULA_FAULT=worker.end:+300000 timeout 60 "$nebula" pretrain "$T/job.yaml" --out "$T/end" "${options[@]}" >"$T/end.log" 2>&1 || fail "a worker that does not end: $(tail -n 5 "$T/end.log")"
for c in alpha beta; do
    cat "$T/end/clusters/$c"/*.log | has 'the worker hangs: [0-9]* s after its report' || fail "nobody says that the worker of $c does not end"
done
none_left() { ! pgrep -f "nebula worker $T/" >/dev/null; }
within 20 none_left || fail "ranks are left: $(pgrep -af "nebula worker $T/")"
echo "a rank that hangs is ended, and the run comes to the same bits"
