#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of three clusters sends over a slow line. The others wait sync.grace_s for it, and repeatedly
# commit without it. The late cluster reports that it is late, and names the key to change. nebula
# plan predicts this. On a better line the cluster takes part again. Needs root and TUN for the
# emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
clean_up() { end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e 's/steps: 60/steps: 2000/; s/codec: int4/codec: fp32/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
tiny "$T/job.yaml"
pace 200
run=$T/run
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms \
    --out "$run" >"$run.log" 2>&1 &
pid=$!
wait_step "$run" 30 "$pid" c || fail "c does not train"
rate() {
    for to in 0 1; do
        "$BUILD/wanlink" ctl "$run/wan.ctl" "rate $1 2 $to" >/dev/null || fail "cannot set the rate"
    done
}
# If the leader has the slow line, another cluster is the late one, because all wait for the
# leader's messages. So any cluster may report it.
said() {
    {
        grep '"kind":"fault"' "$run/metrics.jsonl" || true
    } | has '"text":".*left out of .* rounds in a row.*sync.grace_s'
}
! said || fail "a cluster is already left out"
rate 500kbit
within 60 said || fail "no cluster reports that it is left out"
rate 200mbit
all_three() { largest "$run" round round '' 0 '"updates":3,'; }
before=$(all_three)
again() { (($(all_three) > before + 2)); }
within 60 again || fail "after round $before not all clusters take part again"
timeout 600 "$nebula" plan "$T/job.yaml" --wan 1mbit:5ms >"$T/plan.txt" 2>"$T/plan.err" ||
    fail "plan failed: $(cat "$T/plan.err")"
grep -q 'WAIT 1 s FOR IT (sync.grace_s)' "$T/plan.txt" ||
    fail "plan does not mention sync.grace_s: $(cat "$T/plan.txt")"
timeout 600 "$nebula" plan "$T/job.yaml" --wan 200mbit:5ms --json 2>/dev/null |
    jq -e '.written.exchange.late == false' >/dev/null ||
    fail "plan predicts lateness on a fast line"
echo "left out, reported it, and back after round $before"
