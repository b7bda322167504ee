#!/usr/bin/env bash
# nebula plan: what it predicts of steps, bytes and whole run against what a run then measures; keys that say auto; other
# sites' profiles; roles; what it refuses.
source "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$T/cache
make_corpus
make_job "$T/job.yaml"
# Large enough that a step is work and not hand-overs.
sed -i -e 's/n_layers: 2, d_model: 64, n_heads: 4, n_kv_heads: 2, d_ff: 128/n_layers: 4, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384/' \
    -e 's/seq_len: 64, batch: 4/seq_len: 64, batch: 8/' -e 's/overlap: 0/overlap: 2/' "$T/job.yaml"
wan=50mbit:20ms

plan() { timeout 100 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: measured / predicted within bounds
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN { exit !(p > 0 && m / p >= lo && m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3: not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}

# The machine's load comes and goes: rates are the best seen, a run may be slower. Three times as fast is never right.
plan "$T/job.yaml" --local 2 --wan $wan --json >"$T/plan.json"
timeout 200 "$nebula" pretrain "$T/job.yaml" --local 2 --wan $wan --out "$T/out" >"$T/out.log" 2>&1 || fail "pretrain: $(tail -n 5 "$T/out.log")"
predicted=$(jq '.written.clusters[0].step_s' "$T/plan.json")
measured=$(summary '[.clusters[] | .train_s / .steps] | min' "$T/out")
near 'seconds a step' "$predicted" "$measured" 0.5 6
near 'bytes sent' "$(jq .written.sent_bytes "$T/plan.json")" "$(summary '.clusters[0].wan_sent_bytes' "$T/out")" 0.8 1.25
near 'bits a parameter' "$(jq .written.exchange.bits_per_param "$T/plan.json")" "$(summary .wire_bits_per_param "$T/out")" 0.8 1.2
jq -e '.written.clusters | length == 2 and all(.[]; .fits and .mesh == [1, 1, 1] and .batch == 8)' "$T/plan.json" >/dev/null || fail "plan.json: $(cat "$T/plan.json")"
jq -e '.written.exchange | .interval == 10 and .overlap == 2 and .codec == "int4" and .carried' "$T/plan.json" >/dev/null || fail "exchange: $(jq .written.exchange "$T/plan.json")"
# Rates are kept: the second time nothing is measured.
plan "$T/job.yaml" --local 2 --wan $wan >"$T/plan.txt"
! grep -q measuring "$T/plan.err" || fail "rates are measured twice"
grep -q 'measured before' "$T/plan.txt" && grep -q 'to take it over' "$T/plan.txt" || fail "plan says: $(cat "$T/plan.txt")"

# A slower link: longer intervals or fewer bits, never more; and it says so when nothing helps.
slow() { jq '.proposed.exchange | .bytes / .interval' "$T/slow.json"; }
plan "$T/job.yaml" --local 2 --wan 1gbit:1ms --json >"$T/slow.json"; fast=$(slow)
plan "$T/job.yaml" --local 2 --wan 1mbit:100ms --json >"$T/slow.json"
awk -v a="$fast" -v b="$(slow)" 'BEGIN { exit !(b < a) }' || fail "a slow link gets $(slow) bytes a step, a fast one $fast"
plan "$T/job.yaml" --local 2 --wan 10kbit:100ms --set sync.codec=fp32 --json >"$T/slow.json"
jq -e '.written.exchange.carried == false and .written.exchange.busy > 0.9' "$T/slow.json" >/dev/null || fail "fp32 over 10 kbit/s is fine: $(cat "$T/slow.json")"

# Another site: ten times slower, so that the job's slower side is there, and the other waits.
"$nebula" plan --profile >"$T/here.json"
jq '.gemm |= map(. / 10) | .attn_fwd |= map(. / 10) | .attn_bwd |= map(. / 10) | .rows /= 10 | .logits /= 10' "$T/here.json" >"$T/slow-site.json"
plan "$T/job.yaml" --wan $wan --site "beta=$T/slow-site.json" --json >"$T/site.json"
jq -e '.written.clusters | .[1].step_s > 5 * .[0].step_s and .[0].wait_s > .[1].wait_s' "$T/site.json" >/dev/null || fail "the slow site: $(jq .written "$T/site.json")"
# Who teaches: a small teacher the slow site, a large one the fast site.
sed 's/n_layers: 4/n_layers: 1/' "$T/job.yaml" >"$T/small.yaml"
sed 's/n_layers: 4/n_layers: 200/' "$T/job.yaml" >"$T/large.yaml"
plan "$T/job.yaml" --wan $wan --site "beta=$T/slow-site.json" --teacher "$T/small.yaml" --json >"$T/roles.json"
[[ $(jq -r .roles.teacher "$T/roles.json") == beta ]] || fail "a small teacher: $(jq .roles "$T/roles.json")"
plan "$T/job.yaml" --wan $wan --site "beta=$T/slow-site.json" --generator "$T/large.yaml" --json >"$T/roles.json"
[[ $(jq -r .roles.generator "$T/roles.json") == alpha ]] || fail "a large generator: $(jq .roles "$T/roles.json")"

# auto: resolved before the job travels; the run is an ordinary one.
sed -e 's/interval: 10/interval: auto/' -e 's/overlap: 2/overlap: auto/' -e 's/codec: int4/codec: auto/' -e 's/batch: 8, accumulate: 1/batch: auto, accumulate: 8/' \
    -e 's/name: alpha,/name: alpha, mesh: auto,/' "$T/job.yaml" >"$T/auto.yaml"
timeout 200 "$nebula" pretrain "$T/auto.yaml" --local 2 --wan $wan --steps 40 --set recompute=auto --out "$T/auto" >"$T/auto.log" 2>&1 || fail "auto: $(tail -n 5 "$T/auto.log")"
digests_equal "$T/auto"
jq -e 'all(.clusters[]; .steps == 40 and .tokens == 40 * 8 * 64)' "$T/auto/summary.json" >/dev/null || fail "auto: other steps: $(cat "$T/auto/summary.json")"
grep -q 'plan: interval' "$T/auto.log" || fail "auto: nothing is said of the choice: $(cat "$T/auto.log")"
! grep -q auto "$T/auto/job.json" || fail "auto travels: $(cat "$T/auto/job.json")"

refuse() { # STATUS TEXT arguments…
    local want=$1 text=$2 rc=0 out
    shift 2
    out=$(timeout 100 "$nebula" "$@" 2>&1) || rc=$?
    [[ $rc == "$want" && $out == *"$text"* ]] || fail "$*: exit status $rc (not $want), or no '$text' in: $out"
}
refuse 2 'is not RATE:DELAY' plan "$T/job.yaml" --wan fast
refuse 2 'CLUSTER=FILE' plan "$T/job.yaml" --site "gamma=$T/here.json"
echo '{"nebula_profile": 1}' >"$T/bad.json"
refuse 2 'processors' plan "$T/job.yaml" --site "beta=$T/bad.json"
refuse 2 'sync.link' pretrain "$T/auto.yaml" --out "$T/none"
jq '.memory = 1e7' "$T/here.json" >"$T/tiny.json"
# Modes whose clusters do unlike things are refused, with what does help; rates of devices there are none of, and it says so.
sed -e 's/mode: replicas/mode: rtd/' -e 's/{name: alpha,/{name: alpha, role: generator,/' -e 's/{name: beta, sources.*}\],/{name: beta, role: discriminator,/' "$T/job.yaml" >"$T/rtd.yaml"
refuse 2 'mode: rtd, but plan reckons with replicas only' plan "$T/rtd.yaml"
refuse 2 '--generator' plan "$T/rtd.yaml"
refuse 2 'mode: rtd, but plan' plan "$T/job.yaml" --wan $wan --generator "$T/rtd.yaml"
sed -e 's/mode: replicas/mode: distill/' -e 's/{name: alpha, sources.*}\],/{name: alpha, role: student,/' -e 's/{name: beta, sources.*}\],/{name: beta, role: student,/' "$T/job.yaml" >"$T/distill.yaml"
refuse 2 'mode: distill, but plan reckons with replicas only' plan "$T/distill.yaml"
refuse 2 'mode distill takes no auto' plan "$T/distill.yaml" --set sync.interval=auto
sed 's/{name: beta,/{name: beta, device: cuda,/' "$T/job.yaml" >"$T/cuda.yaml"
plan "$T/cuda.yaml" --wan $wan --json >"$T/cuda.json"
jq -e '[.written, .proposed] | all(.[].clusters; .[0].device_reckoned and (.[1].device_reckoned | not) and all(.[]; .rates_of == "processors"))' "$T/cuda.json" >/dev/null ||
    fail "a cluster on a device is reckoned with: $(cat "$T/cuda.json")"
plan "$T/cuda.yaml" --wan $wan >"$T/cuda.txt"
[[ $(grep -A 2 '^  beta: mesh' "$T/cuda.txt" | grep -c 'device: cuda IS NOT RECKONED WITH') == 2 && $(grep -c 'IS NOT RECKONED' "$T/cuda.txt") == 2 ]] || fail "nothing is said of the device: $(cat "$T/cuda.txt")"
refuse 1 'does not fit' plan "$T/job.yaml" --site "beta=$T/tiny.json"
echo "plan: predictions hold"
