#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of three is away for the last rounds, makes its remaining steps alone, and returns after the
# others have finished the job without it. It saves and evaluates the common result, not its own
# result. The first agent that it reaches has been restarted meanwhile. Needs root and TUN for the
# emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
clean_up() { end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e 's/steps: 60/steps: 400/; s/interval: 10/interval: 20/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
tiny "$T/job.yaml"
pace 5
run=$T/run
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms --out "$run" \
    >"$run.log" 2>&1 &
pid=$!
wait_step "$run" 120 "$pid" c || fail "c makes no steps"
for other in 0 1; do
    "$BUILD/wanlink" ctl "$run/wan.ctl" "down $other 2" >/dev/null || fail "cannot cut the link"
done

done_at() {
    "$nebula" jobs --home "$run/clusters/$1" --json 2>/dev/null |
        jq -e '.[0].state == "done"' >/dev/null
}
own_steps() {
    "$nebula" status --home "$run/clusters/c" --json 2>/dev/null |
        jq -e '.jobs[0].step == 400' >/dev/null
}
away() { done_at a && done_at b && own_steps; }
within 60 away || fail "a and b do not finish without c, or c makes no steps alone"
! done_at c || fail "c finished alone"
was=$(agent_of b)
kill -KILL "$was"
anew() { local now; now=$(agent_of b) && [[ $now && $now != "$was" ]] && done_at b; }
within 30 anew || fail "b's agent is not restarted"
"$BUILD/wanlink" ctl "$run/wan.ctl" "up 1 2" >/dev/null || fail "cannot restore the link"
within 60 done_at c ||
    fail "c waits for rounds that b has; b's job had ended before its agent was restarted"
"$BUILD/wanlink" ctl "$run/wan.ctl" "up 0 2" >/dev/null || fail "cannot restore the link"
wait "$pid" || fail "the exit status is $?, not 0"
pid=
digests_equal "$run"
ledgers_verify "$run" a b c
last() {
    jq -s --arg c "$1" '[.[] | select(.kind == "round" and .cluster == $c and .share > 0) |
        .round] | max' "$run/metrics.jsonl"
}
(($(last c) < $(last a))) ||
    fail "c took part in the last round, $(last a), so it was not left behind"
[[ $(summary '[.clusters[].eval_loss] | unique | length' "$run") == 1 ]] ||
    fail "held-out losses differ although all digests are equal: $(summary '[.clusters[] |
    "\(.name) \(.eval_loss)"] | join(", ")' "$run")"
for c in b c; do
    cmp "$run"/clusters/a/jobs/*/model.ckpt "$run"/clusters/$c/jobs/*/model.ckpt ||
        fail "$c saved other parameters than a"
done
echo "c took part up to round $(last c) of $(last \
    a), and saved what all have: held-out loss $(summary '.clusters[0].eval_loss' "$run")"
