#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of three sends through a line so thin that the others, which wait sync.grace_s for it, commit without it again and again: it says so, and
# what to change; nebula plan says it before. With a better line it takes part again. Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "no TUN device or not root"
export XDG_CACHE_HOME=$T/cache
make_corpus
clean_up() { end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 0.3, commit_all: false"
sed -i -e 's/steps: 60/steps: 2000/; s/codec: int4/codec: fp32/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
light "$T/job.yaml"
pace 20
run=$T/run
timeout 200 "$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms \
    --out "$run" >"$run.log" 2>&1 &
pid=$!
wait_step "$run" 30 "$pid" c || fail "c does not train"
rate() {
    for to in 0 1; do
        "$BUILD/wanlink" ctl "$run/wan.ctl" "rate $1 2 $to" >/dev/null || fail "cannot set the rate"
    done
}
# Where the thin line is the leader's, whose word others wait for, it is one of them that is late.
said() {
    {
        grep '"kind":"fault"' "$run/metrics.jsonl" || true
    } | has '"text":".*left out of .* rounds in a row.*sync.grace_s'
}
! said || fail "somebody is left out already"
rate 4mbit
within 60 said || fail "nobody says that it is left out"
rate 200mbit
all_three() { largest "$run" round round '' 0 '"updates":3,'; }
before=$(all_three)
again() { (($(all_three) > before + 2)); }
within 60 again || fail "not all take part again after round $before"
timeout 100 "$nebula" plan "$T/job.yaml" --wan 1mbit:5ms >"$T/plan.txt" 2>"$T/plan.err" ||
    fail "plan: $(cat "$T/plan.err")"
grep -q 'WAIT 0.3 s FOR IT (sync.grace_s)' "$T/plan.txt" ||
    fail "plan says nothing of the grace: $(cat "$T/plan.txt")"
timeout 100 "$nebula" plan "$T/job.yaml" --wan 200mbit:5ms --json 2>/dev/null |
    jq -e '.written.exchange.late == false' >/dev/null || fail "plan: late on a fast line"
echo "left out, said so, and back after round $before"
