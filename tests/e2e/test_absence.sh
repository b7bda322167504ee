#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Both sides miss twenty intervals (a third of this short run), then a round merges them. The
# loss ends near the loss of an uninterrupted run and never jumps. Needs root and TUN for the
# emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml" "merge_after: 4"
sed -i 's/steps: 60/steps: 300/; s/interval: 10/interval: 5/; s/overlap: 0/overlap: 3/;
    s/every_steps: 20/every_steps: 0/; s/windows: 16/windows: 32/; $a log_every: 2' "$T/job.yaml"
clean_up() { kill -CONT "${stopped[@]}" 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/whole" >"$T/whole.log" 2>&1 ||
    fail "the uninterrupted run failed"
pace 10 # otherwise the run ends before the link returns
run=$T/cut
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:10ms --out "$run" \
    >"$run.log" 2>&1 &
pid=$!
last_step() { steps_done "$run" alpha; }
reaches() { (($(last_step) >= $1)); }
within 60 reaches 70 || fail "no steps are made"
"$BUILD/wanlink" ctl "$run/wan.ctl" down >/dev/null || fail "cannot cut the link"
down_at=$(last_step)
within 60 reaches $((down_at + 100)) || fail "training stopped without the link at $(last_step)"
received() { # HOME: bytes from its peer
    local status
    status=$("$nebula" status --home "$run/clusters/$1" --json 2>/dev/null) || true
    [[ $status =~ \"recv_bytes\":([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}
hears() { (($(received "$1") > $2)); }
# The workers wait until the link is back, so that the run does not end before.
stopped=("$(worker_of alpha)" "$(worker_of beta)")
kill -STOP "${stopped[@]}"
before=("$(received alpha)" "$(received beta)")
"$BUILD/wanlink" ctl "$run/wan.ctl" up >/dev/null || fail "cannot restore the link"
within 60 hears alpha "${before[0]}" && within 60 hears beta "${before[1]}" ||
    fail "the link does not return"
during=$(last_step)
kill -CONT "${stopped[@]}"
wait "$pid" || fail "the interrupted run failed"
pid=
digests_equal "$T/cut"
round_digests_equal "$T/cut"
missed=$(jq -s '[.[] | select(.kind == "round" and .merge) | .missed] | max // 0' \
    "$T/cut/metrics.jsonl")
((missed >= 15)) ||
    fail "the merge round came after $missed missed intervals (down at $down_at, up at $during)"

# One round merges what both learned, as an average. In two rounds each part would count in full.
jq -s -e '[.[] | select(.kind == "round" and .merge)] | group_by(.round) |
    any(.[]; (map(.cluster) | unique | length) == 2 and all(.[]; .missed >= 5))' \
    "$T/cut/metrics.jsonl" >/dev/null ||
    fail "the two clusters' absences were merged in different rounds"

# Step lines of beta's agent from the outage arrive later: every step of both clusters is there
# once, in order, with the time at which it was made.
jq -s -e '
    map(select(.kind == "step")) | group_by(.cluster) | (.[0] | map(.step)) as $alpha |
    length == 2 and all(.[]; map(.step) == $alpha and map(.t) == (map(.t) | sort))' \
    "$T/cut/metrics.jsonl" >/dev/null ||
    fail "step lines of an outage are missing, or out of order"
jq -s -e --argjson a $((down_at + 10)) --argjson b "$during" '
    def t($of; $step):
        first(.[] | select(.kind == "step" and .cluster == $of and .step == $step)) | .t;
    ([.[].cluster // empty] | unique) as [$x, $y] |
    t($x; $a) < t($y; $b) and t($y; $a) < t($x; $b)' "$T/cut/metrics.jsonl" >/dev/null ||
    fail "step lines of an outage do not have the time at which they were made"

# The mean training loss of each cluster over 40 logged steps before and after its own merge. Single
# steps differ by half a nat.
merge_step=$(jq -s '[.[] | select(.kind == "round" and .merge) | .step] | max' \
    "$T/cut/metrics.jsonl")
jq -s -e '
    (map(select(.kind == "round" and .merge)) | group_by(.cluster) |
    map({key: .[0].cluster, value: (map(.step) | min)}) | from_entries) as $at |
    map(select(.kind == "step")) | group_by(.cluster) | length == 2 and
    all(.[]; $at[.[0].cluster] as $m | sort_by(.step) |
        ([.[] | select(.step <= $m) | .loss][-40:] | add / length) as $before |
        ([.[] | select(.step > $m) | .loss][:40] | add / length) as $after |
        $after < $before + 0.3)' \
    "$T/cut/metrics.jsonl" >/dev/null ||
    fail "the loss jumped at the merge round (step $merge_step)"
mean_loss() { summary '[.clusters[].eval_loss] | add / length' "$1"; }
whole=$(mean_loss "$T/whole") cut=$(mean_loss "$T/cut")
awk -v a="$whole" -v b="$cut" 'BEGIN { exit !(b < a + 0.35) }' ||
    fail "held-out loss $cut after the absence, $whole without"
echo "$missed intervals missed, merged at step $merge_step: loss $cut, uninterrupted $whole"
