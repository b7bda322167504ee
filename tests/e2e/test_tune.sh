#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The controller in a whole run: a link that becomes a hundred times slower changes codec or overlap a few rounds later on both sides, with a
# reason; all agree on the parameters all the same. How soon and how well is a matter of unit_tune, in virtual time: here others
# may be using the machine.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null || skip "no emulated WAN"
make_corpus
make_job "$T/job.yaml" "tune: auto"
light "$T/job.yaml"
pace 80
out=$T/run

timeout 110 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 200mbit:2ms --steps 100000 \
    --set model.d_model=128 --set model.d_ff=512 \
    --set sync.overlap=3 --set sync.tune.overlap_max=6 --set checkpoint.every_steps=0 \
    --set sync.tune.coarsest=int2 --out "$out" >"$T/run.log" 2>&1 &
run=$!
rounds() { largest "$out" round round alpha 0; }
until_round() { # N: waits until a round beyond it was merged
    for ((i = 0; i < 400; i++)); do
        (($(rounds) >= $1)) && return
        kill -0 $run 2>/dev/null || fail "the run ended early"
        sleep 0.1
    done
    fail "round $1 did not come: $(rounds)"
}
until_round 6
"$BUILD/wanlink" ctl "$out/wan.ctl" rate 1500kbit >/dev/null
dropped=$(rounds)
until_round $((dropped + 8))
kill -INT $run
wait $run || true

# of both clusters
tunes() {
    jq -s "[.[] | select(.kind == \"tune\" and .round >= $dropped) |
        select($1)]" "$out/metrics.jsonl"
}
[[ $(tunes \
    '(.plan_codec == "int3" or .plan_codec == "int2" or .overlap > 3) and (.reason | length > 10)' |
    jq length) -ge 2 ]] ||
    fail "no plan changed after the drop: $(tunes true)"
first=$(tunes true | jq '[.[].round] | min')
((first <= dropped + 5)) || fail "round $first was the first that saw the drop of round $dropped"
used=$(jq -s "[.[] | select(.kind == \"round\" and .round >= $first + 2) |
    .codec + \"/\" + (.overlap | tostring)] | unique" "$out/metrics.jsonl")
[[ $(jq 'any(.[]; . != "int4/3")' <<<"$used") == true ]] || fail "no worker obeyed a plan: $used"
round_digests_equal "$out"

# Fixed is fixed: nothing is planned, whatever the link does.
unset NEBULA_FAULT
timeout 60 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 1mbit:20ms --steps 30 \
    --set sync.tune=fixed --out "$T/fixed" >"$T/fixed.log" 2>&1 ||
    fail "fixed"
jq -s -e '[.[] | select(.kind == "tune")] | length == 0' "$T/fixed/metrics.jsonl" >/dev/null ||
    fail "a fixed run was tuned"
echo "after round $dropped: $(tunes true |
    jq -c '[.[] | [.round, .plan_codec, .overlap]] | unique')"
