#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A link turns into a black hole in mid-run. Training continues locally, the round completes after
# the link returns, a long absence ends in a merge round, and both clusters have equal parameters.
# Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml" "merge_after: 2"
sed -i 's/steps: 60/steps: 2400/; s/interval: 10/interval: 100/; s/every_steps: 20/every_steps: 0/;
    s/fragments: 1/fragments: 2/' "$T/job.yaml"
light "$T/job.yaml"
pace 12

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:40ms \
    --out "$T/run" >"$T/run.log" 2>&1 &
pid=$!
for ((i = 0; i < 1200; i++)); do
    [[ $(grep -c '"kind":"round"' "$T/run/metrics.jsonl" 2>/dev/null) -ge 4 ]] && break
    sleep 0.1
done
((i < 300)) || fail "the run made no rounds"
"$BUILD/wanlink" ctl "$T/run/wan.ctl" down >/dev/null || fail "cannot cut the link"
down_at=$(jq -s '[.[] | select(.kind == "step") | .step] | max' "$T/run/metrics.jsonl")
noticed() {
    jq -s -e 'def said($k; $t): any(.[]; .kind == $k and ((.text // "") | test($t)));
        said("fault"; "link to .* is down") and said("note"; "link to .* is up") and
        (said("fault"; "is up") | not)' \
        "$T/run/metrics.jsonl" >/dev/null 2>&1 # the last line may be half-written
}
within 40 noticed || fail "the outage or its end was not reported"
last_step() { steps_done "$T/run" ''; }
# More than merge_after intervals alone. This takes seconds, or longer on a busy machine.
for ((i = 0; i < 40; i++)); do
    during=$(last_step)
    ((during > down_at + 400)) && break
    sleep 1
done
((during > down_at + 400)) || fail "training stopped during the outage ($down_at to $during)"
"$BUILD/wanlink" ctl "$T/run/wan.ctl" up >/dev/null || fail "cannot restore the link"
wait "$pid" || fail "the run failed"
digests_equal "$T/run"
round_digests_equal "$T/run"
jq -s -e '[.[] | select(.kind == "round" and .merge) | .fragment] | unique == [0, 1]' \
    "$T/run/metrics.jsonl" >/dev/null ||
    fail "not every fragment has a merge round after $((during - down_at)) steps alone"
echo "outage from step $down_at to about $during survived; digests equal"
