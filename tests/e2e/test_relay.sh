#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two of three clusters cannot reach each other: their messages and updates go through the third.
# Once that is settled, every round contains the updates of all three, and nobody diverges. Needs
# root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
clean_up() { end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 120"
sed -i -e 's/steps: 60/steps: 100000/; s/interval: 10/interval: 20/;
    s/every_steps: 20/every_steps: 1000/' "$T/job.yaml"
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
wait_rounds b 2
"$BUILD/wanlink" ctl "$run/wan.ctl" "down 0 1" >/dev/null || fail "cannot cut the link"
cut=$(rounds a)
within 40 is_away run/clusters/a b && within 40 is_away run/clusters/b a ||
    fail "the cut link was not noticed"
noticed=$(rounds a)
passed_on() { (($(largest "$run" round round a 0 '"updates":3') > noticed)); }
within 60 passed_on || fail "no round after $noticed has the updates of all three"
settled=$(rounds a)
wait_rounds a $((settled + 4))
wait_rounds c $((settled + 4))
# b's own reports cross this link.
"$BUILD/wanlink" ctl "$run/wan.ctl" "up 0 1" >/dev/null || fail "cannot restore the link"
wait_rounds b $((settled + 5))
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status is $rc, not 3"
round_digests_equal "$run"
jq -s -e --argjson f $((settled + 2)) --argjson t $((settled + 4)) '
    [.[] | select(.kind == "round" and .round >= $f and .round <= $t and .cluster != "b")] |
    length > 0 and all(.[]; .updates == 3)' "$run/metrics.jsonl" >/dev/null ||
    fail "some rounds lack an update: $(jq -c 'select(.kind == "round") |
    [.cluster, .round, .updates]' "$run/metrics.jsonl" | tail -n 12 | tr '\n' ' ')"
echo "a and b apart from round $cut on: rounds from $((settled + 2)) on have three updates"
