#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The controller in a whole run: the link becomes a hundred times slower, and a few rounds later
# both sides change codec or overlap, with a reason. Parameters still agree. unit_tune tests in
# virtual time how soon and how well this happens, because other programs may use this machine.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null || skip "there is no emulated WAN"
make_corpus
make_job "$T/job.yaml" "tune: auto"
light "$T/job.yaml"
pace 80
out=$T/run

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 200mbit:2ms --steps 100000 \
    --set model.d_model=128 --set model.d_ff=512 \
    --set sync.overlap=3 --set sync.tune.overlap_max=6 --set checkpoint.every_steps=0 \
    --set sync.tune.coarsest=int2 --out "$out" >"$T/run.log" 2>&1 &
run=$!
rounds() { largest "$out" round round alpha 0; }
until_round() { # N: waits until round N is merged
    wait_round "$out" "$1" "$run" alpha || fail "round $1 did not come; the last is $(rounds)"
}
until_round 6
"$BUILD/wanlink" ctl "$out/wan.ctl" rate 1500kbit >/dev/null
dropped=$(rounds)
until_round $((dropped + 8))
kill -INT $run
wait $run || true

# Of both clusters.
tunes() {
    jq -s "[.[] | select(.kind == \"tune\" and .round >= $dropped) |
        select($1)]" "$out/metrics.jsonl"
}
[[ $(tunes \
    '(.plan_codec == "int3" or .plan_codec == "int2" or .overlap > 3) and (.reason | length > 10)' |
    jq length) -ge 2 ]] ||
    fail "no plan changed after the link became slower: $(tunes true)"
first=$(tunes true | jq '[.[].round] | min')
((first <= dropped + 5)) || fail "round $first was the first to notice the change of round $dropped"
used=$(jq -s "[.[] | select(.kind == \"round\" and .round >= $first + 2) |
    .codec + \"/\" + (.overlap | tostring)] | unique" "$out/metrics.jsonl")
[[ $(jq 'any(.[]; . != "int4/3")' <<<"$used") == true ]] || fail "no worker followed a plan: $used"
round_digests_equal "$out"

# With sync.tune: fixed nothing is planned, whatever the link does.
unset NEBULA_FAULT
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 1mbit:20ms --steps 30 \
    --set sync.tune=fixed --out "$T/fixed" >"$T/fixed.log" 2>&1 ||
    fail "the run with sync.tune: fixed failed"
jq -s -e '[.[] | select(.kind == "tune")] | length == 0' "$T/fixed/metrics.jsonl" >/dev/null ||
    fail "a fixed run was tuned"
echo "after round $dropped: $(tunes true |
    jq -c '[.[] | [.round, .plan_codec, .overlap]] | unique')"
