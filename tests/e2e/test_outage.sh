#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A link turns into a black hole in mid-run. Training continues locally, the round completes after
# the link returns, a long absence ends in a merge round, and both clusters have equal parameters.
# Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml" "merge_after: 2"
sed -i 's/steps: 60/steps: 1600/; s/interval: 10/interval: 100/; s/every_steps: 20/every_steps: 0/;
    s/fragments: 1/fragments: 2/' "$T/job.yaml"
light "$T/job.yaml"
pace 12

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:40ms \
    --set hang_after_s=600 --out "$T/run" >"$T/run.log" 2>&1 &
pid=$!
clean_up() { end_now $pid; }
run=$T/run
wait_round "$run" 1 "$pid" || fail "the run made no rounds"
"$BUILD/wanlink" ctl "$run/wan.ctl" down >/dev/null || fail "cannot cut the link"
down_at=$(steps_done "$run" alpha)
# More than merge_after intervals alone. Then the workers wait, and steps remain for merge rounds,
# however long the outage lasts.
wait_step "$run" $((down_at + 401)) "$pid" alpha || fail "training stopped during the outage"
workers=("$(worker_of alpha)" "$(worker_of beta)")
kill -STOP "${workers[@]}"
during=$(steps_done "$run" alpha)
noticed() {
    jq -s -e 'def said($k; $t): any(.[]; .kind == $k and ((.text // "") | test($t)));
        said("fault"; "link to .* is down") and said("note"; "link to .* is up") and
        (said("fault"; "is up") | not)' \
        "$T/run/metrics.jsonl" >/dev/null 2>&1 # the last line may be half-written
}
within 40 noticed || fail "the outage or its end was not reported"
"$BUILD/wanlink" ctl "$run/wan.ctl" up >/dev/null || fail "cannot restore the link"
kill -CONT "${workers[@]}"
wait "$pid" || fail "the run failed"
digests_equal "$T/run"
round_digests_equal "$T/run"
jq -s -e '[.[] | select(.kind == "round" and .merge) | .fragment] | unique == [0, 1]' \
    "$T/run/metrics.jsonl" >/dev/null ||
    fail "not every fragment has a merge round after $((during - down_at)) steps alone"
echo "outage from step $down_at to about $during survived; digests equal"
