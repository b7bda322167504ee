#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan of a job with sync.tune: auto: the predicted H, τ and codec of each cluster, against a
# run. Steps have a fixed duration, so the load of the machine does not matter. The test has two
# runs: one of trainers of different speed (attach_client --pace), and one of the built-in trainer,
# whose updates have a realistic size.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
"$BUILD/wanlink" probe >/dev/null || skip "there is no emulated WAN"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml" "tune: {mode: auto, overlap_max: 8, codec: false}"
shape "$T/job.yaml" 'n_layers: 2, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384'
sed -i -e 's/model: {/model: {vocab: 512, /; s/steps: 60/steps: 300/' \
    -e 's/overlap: 0/overlap: 2/; s/every_steps: 20/every_steps: 0/' "$T/job.yaml"
wan=30mbit:40ms fast=40 slow=120 # ms a step

plan() { timeout 600 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: bounds of measured / predicted
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN {
        exit !(p > 0 && m / p >= lo && m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3, not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}

# Profiles of machines with this step time: the rates of this machine, scaled until plan predicts
# it.
"$nebula" plan --profile >"$T/here.json" 2>/dev/null || fail "nebula plan --profile failed"
site() { # NAME MS
    local factor=1 ms i
    cp "$T/here.json" "$T/$1.json"
    for ((i = 0; i < 8; i++)); do
        plan "$T/job.yaml" --wan $wan --site "alpha=$T/$1.json" --json >"$T/one.json"
        ms=$(jq '.written.clusters[0].step_s * 1000' "$T/one.json")
        jq -ne "$ms / $2 | . > 0.99 and . < 1.01" >/dev/null && return
        factor=$(jq -n "$factor * $ms / $2")
        jq --argjson f "$factor" '(.fp32, .bf16) |= map_values(map(. * $f)) | .update *= $f' \
            "$T/here.json" >"$T/$1.json"
    done
    fail "no profile gives a step of $2 ms: plan predicts $ms"
}
site alpha $fast
site beta $slow
sites=(--site "alpha=$T/alpha.json" --site "beta=$T/beta.json")
plan "$T/job.yaml" --wan $wan "${sites[@]}" --json >"$T/plan.json"
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed --json >"$T/fixed.json"
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed >"$T/fixed.txt"
# For a job without sync.tune: auto, plan shows the effect of balancing, but does not count it.
jq -e '(.written.tuning.on | not) and .written.wall_s > 300 * 0.115' "$T/fixed.json" >/dev/null ||
    fail "wrong tuning of the fixed job: $(jq -c .written.tuning "$T/fixed.json")"
jq -e '.written.tuning.on and .written.wall_s == .written.tuning.wall_s' \
    "$T/plan.json" >/dev/null ||
    fail "wrong tuning of the auto job: $(jq -c .written.tuning "$T/plan.json")"
grep -q 'with sync.tune: auto, in the middle of a run of' "$T/fixed.txt" ||
    fail "the text of the plan does not show the effect: $(cat "$T/fixed.txt")"
# plan also proposes sync.tune: auto, if the bound of the overlap allows any proposed interval.
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed \
    --set sync.tune.overlap_max=0 >"$T/free.txt"
grep -q 'sync.tune: auto (a run of' "$T/free.txt" ||
    fail "the plan does not propose sync.tune: auto: $(cat "$T/free.txt")"

sed 's/threads: 1/threads: 1, launcher: attach/' "$T/job.yaml" >"$T/attach.yaml"
timeout 600 "$nebula" pretrain "$T/attach.yaml" --local 2 --wan $wan \
    --out "$T/run" >"$T/run.log" 2>&1 &
run=$!
timeout 600 "$client" "$T/run/clusters/alpha" "" 1 --pace $fast >"$T/alpha.log" 2>&1 & a=$!
timeout 600 "$client" "$T/run/clusters/beta" "" 2 --pace $slow >"$T/beta.log" 2>&1 & b=$!
wait $run || fail "the first run failed"
wait $a || fail "the trainer of alpha failed: $(cat "$T/alpha.log")"
wait $b || fail "the trainer of beta failed: $(cat "$T/beta.log")"
digests_equal "$T/run"
planned() { jq ".written.tuning.clusters[$1]$2" "$T/plan.json"; }
# Only the second half of the run counts, when the controller has settled.
half() {
    jq -s "[.[] | select(.kind == \"$1\" and .cluster == \"$2\")] | .[length / 2 | floor:] |
        $3" "$T/run/metrics.jsonl"
}
# Updates of attach_client are sparser and smaller than real ones. So the codec is fixed here and
# the time in flight is mostly delay. The second run compares bytes.
near 'steps that the slower cluster makes of an interval' \
    "$(planned 1 .steps)" "$(half round beta '[.[].tokens] | add / length / 256')" 0.8 1.25
near 'steps that the faster cluster makes of an interval' \
    "$(planned 0 .steps)" "$(half round alpha '[.[].tokens] | add / length / 256')" 0.99 1.01
for c in 0 1; do
    name=$([[ $c == 0 ]] && echo alpha || echo beta)
    near "overlap of $name" "$(planned $c .overlap)" \
        "$(half round $name '[.[].overlap] | add / length')" 0.6 1.4
    near "interval of $name" "$(planned $c .interval)" \
        "$(half round $name '[.[].interval] | add / length')" 1 1
done
near 'seconds of the run' \
    "$(jq .written.wall_s "$T/plan.json")" "$(half round alpha 'max_by(.t).t')" 0.75 1.6

# A link that cannot carry int4 at this pace, and carries int2 easily.
sed -i 's/, codec: false//' "$T/job.yaml"
wan=1800kbit:20ms
site both 45 # the step sleeps for 40 of these ms
plan "$T/job.yaml" --wan $wan --site "alpha=$T/both.json" --site "beta=$T/both.json" \
    --json >"$T/plan.json"
pace 40
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan $wan \
    --out "$T/real" >"$T/real.log" 2>&1 || fail "the second run failed"
digests_equal "$T/real"
levels='["int8", "int4", "int3", "int2"]'
for c in 0 1; do
    name=$([[ $c == 0 ]] && echo alpha || echo beta)
    was=$(jq -s "[.[] | select(.kind == \"round\" and .cluster == \"$name\")] |
        .[length / 2 | floor:] | map(.codec as \$k | $levels | index(\$k)) |
        add / length" "$T/real/metrics.jsonl")
    jq -e --argjson was "$was" "$levels as \$r | .written.tuning.clusters[$c].codec as \$k |
        (\$r | index(\$k)) - \$was | fabs <= 1" "$T/plan.json" >/dev/null ||
        fail "codec of $name: planned $(planned $c .codec), measured level $was of $levels"
    jq -e ".written.tuning.clusters[$c].codec | . == \"int2\" or
        . == \"int3\"" "$T/plan.json" >/dev/null ||
            fail "plan predicts $(planned $c .codec) on a link of $wan"
    near "bytes sent by $name" "$(planned $c .sent_bytes)" \
        "$(summary ".clusters[$c].wan_sent_bytes" "$T/real")" 0.6 1.6
done
echo "plan of a tuned run: predictions hold"
