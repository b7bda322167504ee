#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A bit flips in the memory of one cluster after a merge: its parameters diverge. The next commit
# detects it, the cluster recomputes its parameters from an earlier checkpoint, and the run reports
# it.
. "$(dirname "$0")/lib.sh"
digests_may_differ=1 # the test makes them differ
make_corpus

for members in 3 2; do
    make_job "$T/job.yaml"
    tiny "$T/job.yaml"
    sed -i -e "s/steps: 60/steps: 180/; s/every_steps: 20/every_steps: 20, keep: 4/" "$T/job.yaml"
    names=(a b c)
    clusters "$T/job.yaml" "${names[@]:0:members}"
    run=$T/run$members
    NEBULA_FAULT=worker.flip.b:10 timeout 600 "$nebula" pretrain "$T/job.yaml" --local $members \
        --out "$run" >"$run.log" 2>&1 ||
        fail "the run with $members members failed"
    digests_equal "$run"
    jq -s -e 'map(select(.kind == "round")) | group_by(.round) |
        any(.[]; [.[].digest] | unique | length > 1)' "$run/metrics.jsonl" >/dev/null ||
        fail "$members members: the fault had no effect"
    # The last report of every cluster for every round.
    jq -s -e 'map(select(.kind == "round")) | group_by([.round, .cluster]) | map(last) |
        group_by(.round) | all(.[]; [.[].digest] | unique | length == 1)' \
        "$run/metrics.jsonl" >/dev/null || fail "$members members: rounds still differ at the end"
    [[ $(summary '.clusters[] | select(.name == "b") | .divergences' "$run") == 1 ]] ||
        fail "$members members: b does not report its divergence"
    ((members == 2)) ||
        [[ $(summary '[.clusters[] | select(.name != "b") | .divergences] | add' "$run") == 0 ]] ||
        fail "$members members: a or c reports a divergence"
    grep -q '^ERROR: the parameters of b diverged' "$run.log" ||
        fail "the printed table does not report it"
    echo "$members members: noticed, computed again, digests equal"
done
