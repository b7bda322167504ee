#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of three clusters is cut off for many intervals and continues to train. The others continue to
# commit. It returns in one merge round. There its weight follows from its tokens since the common
# base (a third, if all are equally fast), not from the length of its absence. Needs root and TUN
# for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
clean_up() { end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 20, merge_after: 3"
sed -i -e 's/steps: 60/steps: 100000/; s/interval: 10/interval: 20/;
    s/every_steps: 20/every_steps: 1000, keep: 8/' "$T/job.yaml"
light "$T/job.yaml"
pace 10
clusters "$T/job.yaml" a b c
run=$T/run
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUND
    wait_round "$run" "$2" "$pid" "$1" || fail "$1 did not reach round $2, or the run ended"
}
"$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms --out "$run" >"$run.log" 2>&1 &
pid=$!
wait_rounds c 2
for other in 0 1; do
    "$BUILD/wanlink" ctl "$run/wan.ctl" "down $other 2" >/dev/null || fail "cannot cut the link"
done
# c trains at the same pace; its reports cross the link later.
wait_rounds a $(($(rounds a) + 8))
for other in 0 1; do
    "$BUILD/wanlink" ctl "$run/wan.ctl" "up $other 2" >/dev/null || fail "cannot restore the link"
done
merges() {
    jq -R -s -e '[split("\n")[] | fromjson? |
        select(.kind == "round" and .cluster == "c" and .merge and .share > 0)] | length > 0' \
        "$run/metrics.jsonl" >/dev/null
}
within 60 merges || fail "c does not return in a merge round"
wait_rounds c $(($(rounds c) + 2))
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status is $rc, not 3"
round_digests_equal "$run"
returned=$(jq -s '[.[] | select(.kind == "round" and .cluster == "c" and .merge and .share > 0)] |
    min_by(.round)' "$run/metrics.jsonl")
round=$(jq .round <<<"$returned") share=$(jq .share <<<"$returned")
tokens=$(jq .tokens <<<"$returned")
other=$(jq -s --argjson r "$round" '[.[] |
    select(.kind == "round" and .cluster == "a" and .round == $r)][0].tokens' "$run/metrics.jsonl")
((tokens > 3 * other)) ||
    fail "c sends $tokens tokens in round $round, a sends $other: c was not away for long"
# The common base: c's last update before the cut. From then on, all updates of the others count.
# The report of c's last round before the cut may be lost; then the base is one round later.
since() {
    jq -s --argjson r "$round" --argjson mine "$tokens" --argjson later "$1" '
    ([.[] | select(.kind == "round" and .cluster == "c" and .round < $r and .share > 0) | .round] |
    max + $later) as $base |
    [.[] | select(.kind == "round" and .cluster != "c" and .round > $base and .round <= $r)] |
    (unique_by([.cluster, .round]) | map(.tokens) | add) as $others | $mine / ($mine + $others)' \
    "$run/metrics.jsonl"
}
awk -v s="$share" -v w="$(since 0)" -v l="$(since 1)" -v t="$tokens" -v o="$other" '
    function near(x) { return s > x - 0.001 && s < x + 0.001 }
    BEGIN { exit !((near(w) || near(l)) && s < t / (t + 2 * o) - 0.1) }' ||
    fail "c counts $share in round $round, but its part of all tokens is $(since 0) or $(since 1)"
ledgers_verify "$run" a b c
echo "round $round: c returns with $tokens tokens, a sends $other; c counts $share"
