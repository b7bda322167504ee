#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan of a job with sync.tune: auto: H, τ and codec that it predicts for each cluster, against what a run comes to. Steps take as
# long as they are told to, so that another load on the machine does not matter. Two runs: trainers of unlike speed (attach_client --pace), and the
# built-in one, whose updates are as large as real ones are.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
"$BUILD/wanlink" probe >/dev/null || skip "no emulated WAN"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml" "tune: {mode: auto, overlap_max: 8, codec: false}"
sed -i -e 's/model: {/model: {vocab: 512, /; s/steps: 60/steps: 300/; s/d_model: 64, n_heads: 4, n_kv_heads: 2, d_ff: 128/d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384/' \
    -e 's/overlap: 0/overlap: 2/; s/every_steps: 20/every_steps: 0/' "$T/job.yaml"
wan=30mbit:40ms fast=40 slow=120 # ms a step

plan() { timeout 100 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: measured / predicted within bounds
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN { exit !(p > 0 && m / p >= lo && m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3: not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}

# Machines on which a step takes so long: this one's rates, stretched until the plan says so.
"$nebula" plan --profile >"$T/here.json" 2>/dev/null || fail "no profile"
site() { # NAME MS
    local factor=1 ms i
    cp "$T/here.json" "$T/$1.json"
    for ((i = 0; i < 8; i++)); do
        plan "$T/job.yaml" --wan $wan --site "alpha=$T/$1.json" --json >"$T/one.json"
        ms=$(jq '.written.clusters[0].step_s * 1000' "$T/one.json")
        jq -ne "$ms / $2 | . > 0.99 and . < 1.01" >/dev/null && return
        factor=$(jq -n "$factor * $ms / $2")
        jq --argjson f "$factor" '(.gemm, .attn_fwd, .attn_bwd) |= map(. * $f) | .rows *= $f | .logits *= $f | .soft *= $f | .update *= $f | .op_s /= $f' "$T/here.json" >"$T/$1.json"
    done
    fail "a step of $2 ms: it says $ms"
}
site alpha $fast
site beta $slow
sites=(--site "alpha=$T/alpha.json" --site "beta=$T/beta.json")
plan "$T/job.yaml" --wan $wan "${sites[@]}" --json >"$T/plan.json"
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed --json >"$T/fixed.json"
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed >"$T/fixed.txt"
# What balance does to it is said of a job that does not ask for it, but not counted.
jq -e '(.written.tuning.on | not) and .written.wall_s > 300 * 0.115' "$T/fixed.json" >/dev/null || fail "fixed: $(jq -c .written.tuning "$T/fixed.json")"
jq -e '.written.tuning.on and .written.wall_s == .written.tuning.wall_s' "$T/plan.json" >/dev/null || fail "auto: $(jq -c .written.tuning "$T/plan.json")"
grep -q 'with sync.tune: auto, in the middle of a run of' "$T/fixed.txt" || fail "it is not said: $(cat "$T/fixed.txt")"
# And proposed, where its bound of overlap goes with whatever interval is proposed.
plan "$T/job.yaml" --wan $wan "${sites[@]}" --set sync.tune=fixed --set sync.tune.overlap_max=0 >"$T/free.txt"
grep -q 'sync.tune: auto (a run of' "$T/free.txt" || fail "it is not proposed: $(cat "$T/free.txt")"

sed 's/threads: 1/threads: 1, launcher: attach/' "$T/job.yaml" >"$T/attach.yaml"
timeout 100 "$nebula" pretrain "$T/attach.yaml" --local 2 --wan $wan --out "$T/run" >"$T/run.log" 2>&1 &
run=$!
timeout 100 "$client" "$T/run/clusters/alpha" "" 1 --pace $fast >"$T/alpha.log" 2>&1 & a=$!
timeout 100 "$client" "$T/run/clusters/beta" "" 2 --pace $slow >"$T/beta.log" 2>&1 & b=$!
wait $run || fail "the run: $(tail -n 3 "$T/run.log" "$T/alpha.log" "$T/beta.log")"
wait $a || fail "alpha: $(cat "$T/alpha.log")"
wait $b || fail "beta: $(cat "$T/beta.log")"
digests_equal "$T/run"
planned() { jq ".written.tuning.clusters[$1]$2" "$T/plan.json"; }
# Of the second half of the run: when the controller has come to rest.
half() { jq -s "[.[] | select(.kind == \"$1\" and .cluster == \"$2\")] | .[length / 2 | floor:] | $3" "$T/run/metrics.jsonl"; }
# Their updates are sparser than what training sends, and smaller: the codec is pinned here, the way is mostly its delay, and bytes are compared below.
near 'steps that the slower cluster makes of an interval' "$(planned 1 .steps)" "$(half round beta '[.[].tokens] | add / length / 256')" 0.8 1.25
near 'steps that the faster cluster makes of an interval' "$(planned 0 .steps)" "$(half round alpha '[.[].tokens] | add / length / 256')" 0.99 1.01
for c in 0 1; do
    name=$([[ $c == 0 ]] && echo alpha || echo beta)
    near "overlap of $name" "$(planned $c .overlap)" "$(half round $name '[.[].overlap] | add / length')" 0.6 1.4
    near "interval of $name" "$(planned $c .interval)" "$(half round $name '[.[].interval] | add / length')" 1 1
done
near 'seconds of the run' "$(jq .written.wall_s "$T/plan.json")" "$(half round alpha 'max_by(.t).t')" 0.75 1.6

# A link that carries no int4 at this pace, and int2 with room.
sed -i 's/, codec: false//' "$T/job.yaml"
wan=1800kbit:20ms
site both 45 # 40 of them waited
plan "$T/job.yaml" --wan $wan --site "alpha=$T/both.json" --site "beta=$T/both.json" --json >"$T/plan.json"
pace 40
timeout 150 "$nebula" pretrain "$T/job.yaml" --local 2 --wan $wan --out "$T/real" >"$T/real.log" 2>&1 || fail "the second run: $(tail -n 3 "$T/real.log")"
digests_equal "$T/real"
levels='["int8", "int4", "int3", "int2"]'
for c in 0 1; do
    name=$([[ $c == 0 ]] && echo alpha || echo beta)
    was=$(jq -s "[.[] | select(.kind == \"round\" and .cluster == \"$name\")] | .[length / 2 | floor:] | map(.codec as \$k | $levels | index(\$k)) | add / length" "$T/real/metrics.jsonl")
    jq -e --argjson was "$was" "$levels as \$r | .written.tuning.clusters[$c].codec as \$k | (\$r | index(\$k)) - \$was | fabs <= 1" "$T/plan.json" >/dev/null ||
        fail "codec of $name: planned $(planned $c .codec), was the $was-th of $levels"
    jq -e ".written.tuning.clusters[$c].codec | . == \"int2\" or . == \"int3\"" "$T/plan.json" >/dev/null || fail "a link of $wan carries $(planned $c .codec)"
    near "bytes sent by $name" "$(planned $c .sent_bytes)" "$(summary ".clusters[$c].wan_sent_bytes" "$T/real")" 0.6 1.6
done
echo "plan of a tuned run: predictions hold"
