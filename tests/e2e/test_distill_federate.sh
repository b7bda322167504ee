#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two students form one model: each gets labels for its own batches from the teacher, and rounds
# average the two. All rounds and both students end with the same bits, also when workers of all
# three clusters are killed. The teacher only votes.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
batch=2 windows=6
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20
three=$(cluster_list beta student gamma student alpha teacher)
job "$T/job.yaml" "$three" "teacher: {init: $T/teacher/checkpoint/model.ckpt}, federate: true"
cat >>"$T/job.yaml" <<YAML
sync:
  {interval: 10, fragments: 2, overlap: 2, codec: int4, commit_all: true,
   outer: {lr: 0.9, momentum: 0.6}}
YAML
students() {
    summary '[.clusters[] | select(.name != "alpha") | .params_digest] | unique | join(" ")' "$1"
}
run "$T/job.yaml" 3 "$T/calm"
want=$(students "$T/calm")
[[ $want && $want != *" "* ]] || fail "the students differ: $want"
round_digests_equal "$T/calm"
jq -e '.rounds >= 5 and .quality.clusters.beta.taught_share == 1 and
    .quality.clusters.gamma.taught_share == 1
       and .quality.clusters.beta.eval_loss == .quality.clusters.gamma.eval_loss' \
           "$T/calm/summary.json" >/dev/null ||
    fail "the students are not one model: $(jq -c '[.rounds, .quality]' "$T/calm/summary.json")"
jq -s -e '[.[] | select(.kind == "round") | .cluster] | unique == ["beta", "gamma"]' \
    "$T/calm/metrics.jsonl" >/dev/null ||
    fail "these clusters merged: $(jq -s -c '[.[] | select(.kind == "round") | .cluster] | unique' \
        "$T/calm/metrics.jsonl")"
# The result differs from that of a single student. The steps are the same, but each student reads
# half of the batches.
sed 's/, federate: true//' "$T/job.yaml" >"$T/apart.yaml"
run "$T/apart.yaml" 3 "$T/apart"
[[ $(summary '[.clusters[] | select(.name != "alpha") | .params_digest] | unique | length' \
    "$T/apart") == 2 ]] || fail "two separate students are equal"
both_loss=$(summary .quality.clusters.beta.eval_loss "$T/calm") \
    alone_loss=$(summary .quality.clusters.beta.eval_loss "$T/apart")

NEBULA_FAULT=worker.step:+100 timeout 600 "$nebula" distill "$T/job.yaml" --local 3 \
    --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
kill_workers "$T/kill" "$pid" 13-beta 27-alpha 38-gamma
wait "$pid" || fail "the run with killed workers failed"
[[ $(students "$T/kill") == "$want" ]] ||
    fail "digests after kill -9: $(students "$T/kill"), undisturbed: $want"
round_digests_equal "$T/kill"

refused() { # MESSAGE OPTIONS...
    local text=$1
    shift
    rm -rf "$T/no"
    if timeout 600 "$nebula" distill "$T/job.yaml" --local 3 \
        --out "$T/no" "$@" >"$T/no.log" 2>&1; then
        fail "accepted: $*"
    fi
    grep -q "$text" "$T/no.log" || fail "no message '$text' with $*"
}
refused "distill.federate" --set distill.relay=true
echo "two students, one model $want: loss $both_loss, of one student alone $alone_loss"
