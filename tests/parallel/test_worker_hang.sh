#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank that hangs, here by SIGSTOP, does not end by itself. The agent detects that no step is
# made, reports it once, ends all ranks and restarts them from the checkpoint. The run ends with the
# bits of an undisturbed one. The same for a worker of one rank.
source "$(dirname "$0")/../e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/{name: alpha,/{name: alpha, mesh: {tp: 2},/' "$T/job.yaml"
# A rank may also be stopped during an exchange or a checkpoint, where the limit is 30 times as
# long.
options=(--local 2 --steps 120 --set sync.interval=40 --set checkpoint.every_steps=40 \
    --set log_every=1 --set hang_after_s=8)
hangs() { # RUN CLUSTER
    grep '"kind":"fault".*"text":"the worker hangs' "$T/$1/metrics.jsonl" |
        grep -c "\"cluster\":\"$2\""
}

timeout 600 "$nebula" pretrain "$T/job.yaml" \
    --out "$T/whole" "${options[@]}" >"$T/whole.log" 2>&1 ||
    fail "the undisturbed run failed"
[[ $(hangs whole alpha) == 0 && $(hangs whole beta) == 0 ]] ||
    fail "a run that trains, exchanges and evaluates counts as hanging"

NEBULA_FAULT=worker.step:+80 timeout 600 "$nebula" pretrain "$T/job.yaml" \
    --out "$T/stop" "${options[@]}" >"$T/stop.log" 2>&1 &
pid=$!
stopped() { # CLUSTER STEP PATTERN: stops the newest matching process at this step
    local victim
    wait_step "$T/stop" "$2" "$pid" "$1" ||
        fail "$1 does not reach step $2"
    within 20 saved "$T/stop" "$1" || fail "$1 has no checkpoint at step $2"
    victim=$(pgrep -f "$3" | sort -n | tail -n 1)
    [[ -n $victim ]] || fail "there is no process of $1"
    kill -STOP "$victim"
    hung=$1
    reported() { (($(hangs stop "$hung"))); }
    within 90 reported || fail "the agent does not report that $victim of $1 hangs"
}
stopped alpha 45 "nebula worker $T/stop/clusters/alpha/.* --rank"
stopped beta 85 "nebula worker $T/stop/clusters/beta/"
wait "$pid" || fail "the run with hanging workers failed"
[[ $(hangs stop alpha) == 1 && $(hangs stop beta) == 1 ]] ||
    fail "a hang is not reported once: $(grep hangs "$T/stop/metrics.jsonl")"
digests_equal "$T/stop"
[[ $(summary '.clusters[0].params_digest' \
    "$T/stop") == "$(summary '.clusters[0].params_digest' "$T/whole")" ]] ||
    fail "the parameters differ from the undisturbed run"
went_on "$T/stop" alpha rank-0.log
went_on "$T/stop" beta worker.log
text='alpha: the worker hangs: it has been silent for [0-9]* s, '
text+='and the limit is [0-9]* s'
grep -q "$text" "$T/stop.log" || fail "the hang is not reported: $(cat "$T/stop.log")"
# A worker that hangs after its final report loses nothing, and its job ends.
NEBULA_FAULT=worker.end:+300000 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 \
    --out "$T/end" --set hang_after_s=3 >"$T/end.log" 2>&1 ||
    fail "the run failed with a worker that does not end"
for c in alpha beta; do
    cat "$T/end/clusters/$c"/*.log |
        has 'the worker hangs: it has not exited [0-9]* s after its report' ||
        fail "the agent of $c does not report that its worker does not end"
done
none_left() { ! pgrep -f "nebula worker $T/" >/dev/null; }
within 20 none_left || fail "some ranks remain: $(pgrep -af "nebula worker $T/")"
echo "a hanging rank is ended, and the run ends with the same bits"
