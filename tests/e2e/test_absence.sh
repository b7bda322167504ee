#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Both sides miss twenty intervals (over a quarter of this short run), then a round merges them. The
# loss ends near the loss of an uninterrupted run and never jumps. Needs root and TUN for the
# emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml" "merge_after: 4"
sed -i 's/steps: 60/steps: 800/; s/interval: 10/interval: 10/; s/overlap: 0/overlap: 3/;
    s/every_steps: 20/every_steps: 0/; s/windows: 16/windows: 64/' "$T/job.yaml"
pace 5 # otherwise the run ends before the link returns

run() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:10ms \
        --out "$1" >"$1.log" 2>&1
}
last_step() { steps_done "$1" ''; }

run "$T/whole" || fail "the uninterrupted run failed"
run "$T/cut" &
pid=$!
for ((i = 0; i < 600; i++)); do (($(last_step "$T/cut") >= 150)) && break; sleep 0.05; done
"$BUILD/wanlink" ctl "$T/cut/wan.ctl" down >/dev/null || fail "cannot cut the link"
down_at=$(last_step "$T/cut")
for ((i = 0; i < 1200; i++)); do
    (($(last_step "$T/cut") >= down_at + 190)) && break
    sleep 0.05
done
during=$(last_step "$T/cut")
((during >= down_at + 190)) || fail "training stopped without the link ($down_at to $during)"
"$BUILD/wanlink" ctl "$T/cut/wan.ctl" up >/dev/null || fail "cannot restore the link"
wait "$pid" || fail "the interrupted run failed"
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
jq -s -e --argjson a $((down_at + 50)) --argjson b $((during - 50)) '
    def t($of; $step):
        first(.[] | select(.kind == "step" and .cluster == $of and .step == $step)) | .t;
    ([.[].cluster // empty] | unique) as [$x, $y] |
    t($x; $a) < t($y; $b) and t($y; $a) < t($x; $b)' "$T/cut/metrics.jsonl" >/dev/null ||
    fail "step lines of an outage do not have the time at which they were made"

# The mean training loss of each cluster over 20 logged steps before and after its own merge. Single
# steps differ by half a nat.
merge_step=$(jq -s '[.[] | select(.kind == "round" and .merge) | .step] | max' \
    "$T/cut/metrics.jsonl")
jq -s -e '
    (map(select(.kind == "round" and .merge)) | group_by(.cluster) |
    map({key: .[0].cluster, value: (map(.step) | min)}) | from_entries) as $at |
    map(select(.kind == "step")) | group_by(.cluster) | length == 2 and
    all(.[]; $at[.[0].cluster] as $m | sort_by(.step) |
        ([.[] | select(.step <= $m) | .loss][-20:] | add / length) as $before |
        ([.[] | select(.step > $m) | .loss][:20] | add / length) as $after |
        $after < $before + 0.3)' \
    "$T/cut/metrics.jsonl" >/dev/null ||
    fail "the loss jumped at the merge round (step $merge_step)"
mean_loss() { summary '[.clusters[].eval_loss] | add / length' "$1"; }
whole=$(mean_loss "$T/whole") cut=$(mean_loss "$T/cut")
awk -v a="$whole" -v b="$cut" 'BEGIN { exit !(b < a + 0.35) }' ||
    fail "held-out loss $cut after the absence, $whole without"
echo "$missed intervals missed, merged at step $merge_step: loss $cut, uninterrupted $whole"
