#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A bit falls over in the memory of one cluster, after a merge: its parameters differ from the others' from then on. That is
# noticed in the next commit, the parameters are computed again from a checkpoint of before, and the run says what happened.
. "$(dirname "$0")/lib.sh"
digests_may_differ=1 # that is what it is about
make_corpus

for members in 3 2; do
    make_job "$T/job.yaml"
    light "$T/job.yaml"
    sed -i -e "s/steps: 60/steps: 300/; s/every_steps: 20/every_steps: 20, keep: 4/" "$T/job.yaml"
    names=(a b c)
    clusters "$T/job.yaml" "${names[@]:0:members}"
    run=$T/run$members
    NEBULA_FAULT=worker.flip.b:20 timeout 120 "$nebula" pretrain "$T/job.yaml" --local $members --out "$run" >"$run.log" 2>&1 ||
        fail "$members members: $(tail -n 5 "$run.log")"
    digests_equal "$run"
    jq -s -e 'map(select(.kind == "round")) | group_by(.round) | any(.[]; [.[].digest] | unique | length > 1)' "$run/metrics.jsonl" >/dev/null ||
        fail "$members members: the fault did not show"
    # The last word of every cluster on every round.
    jq -s -e 'map(select(.kind == "round")) | group_by([.round, .cluster]) | map(last) | group_by(.round) | all(.[]; [.[].digest] | unique | length == 1)' \
        "$run/metrics.jsonl" >/dev/null || fail "$members members: rounds differ to the end"
    [[ $(summary '.clusters[] | select(.name == "b") | .divergences' "$run") == 1 ]] || fail "$members members: b does not say that it diverged"
    ((members == 2)) || [[ $(summary '[.clusters[] | select(.name != "b") | .divergences] | add' "$run") == 0 ]] || fail "a or c says that it diverged"
    grep -q '^ERROR: the parameters of b diverged' "$run.log" || fail "the table does not say it: $(tail -n 8 "$run.log")"
    echo "$members members: noticed, computed again, digests equal"
done
