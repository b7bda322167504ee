#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan predicts steps, bytes, meshes and waiting on a slow line. The predictions are compared
# with the measurements of runs. Also `auto` keys, profiles of other sites, and refusals. Streams
# (modes rtd and distill) are in test_plan_streams.sh.
source "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$T/cache
export NEBULA_BF16=plain # as in the rates
cp -r "$BUILD/rates" "$T/cache" # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml"
# Large enough that a step is mostly arithmetic, not overhead.
shape "$T/job.yaml" 'n_layers: 4, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384'
sed -i 's/seq_len: 64, batch: 4/seq_len: 64, batch: 8/; s/overlap: 0/overlap: 2/
    s/windows: 16/windows: 4/' "$T/job.yaml"
wan=50mbit:20ms

plan() { timeout 600 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: bounds of measured / predicted
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN {
        exit !(p > 0 && m / p >= lo && m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3, not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}

train() {
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --local "$2" --wan "$3" \
        --out "$T/$4" "${@:5}" >"$T/$4.log" 2>&1 || fail "the run $4 failed"
}
plan "$T/job.yaml" --local 2 --wan $wan --set steps=20 --json >"$T/plan.json"
train job 2 $wan out --steps 20
# A busy machine can take ten times as long for a step. So seconds are compared only at night. The
# comparison is between two models in runs at the same time.
if [[ ${NEBULA_TESTS:-} == nightly ]]; then
    make_job "$T/small.yaml"
    for f in small job; do sed '/name: beta/d' "$T/$f.yaml" >"$T/$f-one.yaml"; done
    # lasts about as long as the other run
    train small-one 1 $wan small --steps 500 --set sync.scheme=none &
    train job-one 1 $wan large --steps 40 --set sync.scheme=none
    wait $! || fail "the run of the small model failed"
    for f in small job; do plan "$T/$f-one.yaml" --local 1 --json >"$T/$f-plan.json"; done
    measured() { summary '.clusters[0] | .train_s / .steps' "$T/$1"; }
    near 'seconds a step, of a large model to a small one' \
        "$(jq -n --slurpfile a "$T/job-plan.json" \
            --slurpfile b "$T/small-plan.json" \
            '($a[0].written.clusters[0].step_s) / ($b[0].written.clusters[0].step_s)')" \
        "$(awk -v a="$(measured large)" -v b="$(measured small)" 'BEGIN { print a / b }')" 0.25 4
    # The step time itself is compared with the fastest step: load makes steps slower, never faster.
    for x in 'small small' 'job large'; do
        read -r name dir <<<"$x"
        near "seconds of the fastest step, $dir model" \
            "$(jq .written.clusters[0].step_s "$T/$name-plan.json")" \
            "$(jq -s '([.[] | select(.kind == "step") | .tokens_per_s] | max) as $best |
            ([.[] | select(.kind == "step")][0].tokens) / $best' "$T/$dir/metrics.jsonl")" 0.33 3
    done
fi
# Received bytes: on a busy machine TCP sends some bytes twice.
near 'bytes sent' "$(jq .written.sent_bytes "$T/plan.json")" \
    "$(summary '.clusters[1].wan_recv_bytes' "$T/out")" 0.8 1.25
near 'bits a parameter' \
    "$(jq .written.exchange.bits_per_param "$T/plan.json")" \
    "$(summary .wire_bits_per_param "$T/out")" 0.8 1.2
jq -e '.written.clusters | length == 2 and all(.[]; .fits and .mesh == [1, 1, 1] and .batch == 8)' \
    "$T/plan.json" >/dev/null || fail "wrong clusters in the plan: $(cat "$T/plan.json")"
jq -e '.written.exchange | .interval == 10 and .overlap == 2 and .codec == "int4" and .carried' \
    "$T/plan.json" >/dev/null ||
    fail "wrong exchange in the plan: $(jq .written.exchange "$T/plan.json")"
# Rates are cached: plans measure nothing.
! grep -q measuring "$T/plan.err" || fail "rates are measured twice"
plan "$T/job.yaml" --local 2 --wan $wan >"$T/plan.txt"
# The step time of an attached trainer is not that of the built-in one. With --step its exchange is
# predicted.
sed 's/threads: [0-9]*}/launcher: attach}/; s/^model: {/&vocab: 512, /' \
    "$T/job.yaml" >"$T/attach.yaml"
plan "$T/attach.yaml" --wan $wan >"$T/attach.txt"
! grep -q 'activations\|tokens/s' "$T/attach.txt" &&
    grep -q 'step not known (give --step alpha=SECONDS' "$T/attach.txt" ||
    fail "wrong plan for an attached trainer: $(cat "$T/attach.txt")"
plan "$T/attach.yaml" --wan $wan --step alpha=0.5 --json |
    jq -e '.written | .clusters[0].step_s == 0.5 and .clusters[1].step_guessed and
    .exchange.interval == 10 and .wall_s > 30' >/dev/null ||
        fail "wrong plan for an attached trainer with --step"
refuses 2 'steps of this cluster are predicted' plan "$T/job.yaml" --step alpha=0.5
grep -q 'measured before' "$T/plan.txt" && grep -q 'to use it' "$T/plan.txt" ||
    fail "the text of the plan is incomplete: $(cat "$T/plan.txt")"

# The text form, for the job as written and as proposed: the memory of a rank, the time of a step,
# the stages of an update, and the waiting.
said() { # TIMES REGULAR-EXPRESSION
    [[ $(grep -cE "$2" "$T/plan.txt") == "$1" ]] ||
        fail "the plan does not contain $1 times '$2': $(cat "$T/plan.txt")"
}
time='[0-9][0-9.e+]* m?s' size='[0-9][0-9.]* [kMGT]?B'
line="^  alpha: mesh \\{dp: 1, pp: 1, tp: 1\\}, [0-9]+ x [0-9]+ sequences.*: step $time, "
said 2 "${line}[0-9]+ tokens/s \\(compute $time, update $time\\)\$"
line="^    memory of a rank $size: parameters and gradients $size, moments $size, "
line+="activations $size, exchange $size, its codec and frames $size, a checkpoint's copy $size"
said 4 "$line\$"
line='^  exchange every [0-9]+ steps with [^ ]+ '
line+='\(about [0-9.]+ bits per parameter, at most [0-9.]+\), '
line+='merged [0-9]+ steps later: '
line+="encode $time \\| transfer $time \\| agree $time \\| merge $time; waits $time per interval"
said 2 "$line\$"
said 1 "^  exchange every 10 steps with int4 .*, merged 2 steps later: "
said 2 "^    $size per interval and cluster, [0-9.]+ % of the link\$"

# Ranks of a mesh over TCP, and a line so slow that training waits for it: the waiting at an
# exchange and the memory of a rank. An exchange takes seconds there, on any machine. A busy machine
# makes one cluster also wait for the other, so the smaller wait counts.
make_job "$T/mesh.yaml"
sed -i -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2, tp: 1},/' \
    -e 's/{name: beta,/{name: beta, mesh: {tp: 2},/' "$T/mesh.yaml"
plan "$T/mesh.yaml" --local 2 --wan 1mbit:50ms --set steps=30 --set sync.codec=fp32 \
    --json >"$T/mesh.json"
train mesh 2 1mbit:50ms mesh --steps 30 --set sync.codec=fp32
digests_equal "$T/mesh"
rounds=$(jq -s '[.[] | select(.kind == "round" and .cluster == "alpha")] | length' \
    "$T/mesh/metrics.jsonl")
near 'seconds waited at an exchange' \
    "$(jq .written.exchange.stall_s "$T/mesh.json")" \
    "$(summary "[.clusters[].stall_s] | min / $rounds" "$T/mesh")" 0.6 1.8
# The parts of an exchange. The plan is compared with the fastest measured parts, because load only
# makes them slower. A part takes a few ms, with cold caches.
of_rounds() {
    jq -s "[.[] | select(.kind == \"round\")] | map(.$2) | sort | .[$3]" "$T/$1/metrics.jsonl"
}
near 'seconds until an update of a mesh is committed' \
    "$(jq '.written.exchange | .travel_s + .agree_s' "$T/mesh.json")" \
    "$(of_rounds mesh travel_s 'length / 2 | floor')" 0.6 1.8
if [[ ${NEBULA_TESTS:-} == nightly ]]; then
    near 'seconds to encode' \
        "$(jq .written.exchange.encode_s "$T/plan.json")" "$(of_rounds out encode_s 0)" 0.2 8
    near 'seconds to merge' \
        "$(jq .written.exchange.merge_s "$T/plan.json")" "$(of_rounds out apply_s 0)" 0.2 8
fi
jq -s -e '[.[] | select(.kind == "round" and .cluster == "alpha") | .stall_s] | add > 1' \
    "$T/mesh/metrics.jsonl" >/dev/null || fail "rounds on a slow line do not report the waiting"
near 'bytes sent by a mesh' \
    "$(jq .written.sent_bytes "$T/mesh.json")" \
    "$(summary '.clusters[1].wan_recv_bytes' "$T/mesh")" 0.7 1.5
jq -e '.written.clusters | (.[0].mesh == [2, 1, 1]) and (.[1].mesh == [1, 1, 2]) and
    .[0].dp_bytes > 0 and .[0].tp_bytes == 0 and .[1].tp_bytes > 0 and .[1].dp_bytes == 0
       and .[1].params_bytes < 0.8 * .[0].params_bytes and .[0].exchange_bytes > 0 and
       .[0].owner_bytes == 0' "$T/mesh.json" >/dev/null ||
           fail "wrong meshes: $(jq .written.clusters "$T/mesh.json")"

# A slower link gives longer intervals or fewer bits, never more. The plan reports it if nothing
# helps.
slow() { jq '.proposed.exchange | .bytes / .interval' "$T/slow.json"; }
plan "$T/job.yaml" --local 2 --wan 1gbit:1ms --json >"$T/slow.json"; fast=$(slow)
plan "$T/job.yaml" --local 2 --wan 1mbit:100ms --json >"$T/slow.json"
awk -v a="$fast" -v b="$(slow)" 'BEGIN { exit !(b < a) }' ||
    fail "a slow link gets $(slow) bytes a step, a fast one only $fast"
plan "$T/job.yaml" --local 2 --wan 10kbit:100ms --set sync.codec=fp32 --json >"$T/slow.json"
jq -e '.written.exchange.carried == false and .written.exchange.busy > 0.9' \
    "$T/slow.json" >/dev/null || fail "the plan accepts fp32 over 10 kbit/s: $(cat "$T/slow.json")"

# Another site is ten times slower. The plan must show that this site is the slower one, and that
# the other cluster waits.
"$nebula" plan --profile >"$T/here.json"
jq '(.fp32, .bf16) |= map_values(map(. / 10))' "$T/here.json" >"$T/slow-site.json"
plan "$T/job.yaml" --wan $wan --site "beta=$T/slow-site.json" --json >"$T/site.json"
jq -e '.written.clusters | .[1].step_s > 5 * .[0].step_s and .[0].wait_s > .[1].wait_s' \
    "$T/site.json" >/dev/null || fail "wrong plan for a slow site: $(jq .written "$T/site.json")"
# With sync.tune: auto the slow cluster leaves out as many steps as allowed, and the run is as long
# as the faster one's. Different lines get different codecs.
plan "$T/job.yaml" --wan $wan --site "beta=$T/slow-site.json" --set steps=400 --json >"$T/site.json"
jq -e '.written.tuning | (.on | not) and .clusters[0].steps == 10 and
    .clusters[1].steps == 10 * 8 / 64' "$T/site.json" >/dev/null ||
        fail "wrong tuning: $(jq -c .written.tuning "$T/site.json")"
plan "$T/job.yaml" --wan 500mbit:2ms --wan beta=1mbit:50ms --set sync.tune=auto --set steps=400 \
    --json >"$T/unlike.json"
jq -e '.link.clusters[0].bits_per_s == 500e6 and .link.clusters[1].bits_per_s == 1e6 and
    .link.bits_per_s == 1e6 and
       (.written.tuning | .on and .clusters[0].codec == "int4" and .clusters[1].codec != "int4" and
       .clusters[1].sent_bytes < .clusters[0].sent_bytes)' "$T/unlike.json" >/dev/null ||
    fail "wrong plan for different lines: $(jq -c '.link, .written.tuning' "$T/unlike.json")"
# `auto` keys are resolved before the job is sent; the run is an ordinary one.
sed -e 's/interval: 10/interval: auto/' -e 's/overlap: 2/overlap: auto/' \
    -e 's/codec: int4/codec: auto/' -e 's/batch: 8, accumulate: 1/batch: auto, accumulate: 8/' \
    -e 's/name: alpha,/name: alpha, mesh: auto,/' "$T/job.yaml" >"$T/auto.yaml"
timeout 600 "$nebula" pretrain "$T/auto.yaml" --local 2 --wan $wan --steps 20 --set recompute=auto \
    --out "$T/auto" >"$T/auto.log" 2>&1 || fail "the run with auto keys failed"
digests_equal "$T/auto"
jq -e 'all(.clusters[]; .steps == 20 and .tokens == 20 * 8 * 64)' \
    "$T/auto/summary.json" >/dev/null ||
    fail "the run with auto keys has other steps: $(cat "$T/auto/summary.json")"
grep -q 'plan: interval' "$T/auto.log" ||
    fail "the log does not show what was chosen: $(cat "$T/auto.log")"
plan "$T/auto.yaml" --local 2 --wan $wan --set steps=20 --set recompute=auto --json >"$T/auto.json"
jq -e --slurpfile run "$T/auto/job.json" '$run[0].spec as $j | .written as $p |
    $p.exchange.interval == $j["sync.interval"] and $p.exchange.overlap == $j["sync.overlap"] and
    $p.exchange.codec == $j["sync.codec"]
       and $p.clusters[0].batch == $j["data.batch"] and
       $p.clusters[0].accumulate == $j["data.accumulate"]' "$T/auto.json" >/dev/null ||
    fail "auto keys: planned $(jq -c '.written.exchange, .written.clusters[0]' \
        "$T/auto.json"), ran $(jq -c .spec "$T/auto/job.json")"
! grep -q auto "$T/auto/job.json" || fail "job.json still contains auto: $(cat "$T/auto/job.json")"
# A resumed run keeps the choice, although link and machine have changed or are unknown.
cp "$T/auto/job.json" "$T/auto.was"
for now in "--wan 1mbit:300ms" ""; do
    read -ra words <<<"$now"
    XDG_CACHE_HOME=$T/cache2 timeout 600 "$nebula" pretrain "$T/auto.yaml" --local 2 "${words[@]}" \
        --steps 20 --set recompute=auto --out "$T/auto" --resume >"$T/auto2.log" 2>&1 ||
        fail "the run with auto keys, resumed with '$now', failed"
    cmp "$T/auto.was" "$T/auto/job.json" ||
        fail "the run with auto keys, resumed with '$now', chose again"
done

# mesh: auto uses several ranks where this is faster. It is faster here, because every operation
# takes the same time. With hosts of its own it uses the job's number of ranks. If no mesh of this
# number is possible, it uses none.
jq '.processors = 4 | .fp32.one = .fp32.step | .link = 1e12 | .link_s = 1e-9' "$T/here.json" \
    >"$T/four.json"
sed -e 's/batch: 8, accumulate: 1/batch: 1, accumulate: 8/; s/threads: 1/threads: 4/' \
    -e "s#{name: \(alpha\|beta\),#{name: \1, mesh: auto, profile: $T/four.json,#" \
    -e 's|{name: beta,|{name: beta, launcher: mpirun, ranks: RANKS,|' "$T/job.yaml" >"$T/ranks.yaml"
sed 's/RANKS/2/' "$T/ranks.yaml" >"$T/two.yaml"
sed 's/RANKS/7/' "$T/ranks.yaml" >"$T/seven.yaml"
plan "$T/two.yaml" --wan $wan --json >"$T/two.json"
jq -e '[.written.clusters[].mesh | .[0] * .[1] * .[2]] == [4, 2]' "$T/two.json" >/dev/null ||
    fail "wrong meshes from mesh: auto: $(jq -c '[.written.clusters[].mesh]' "$T/two.json")"
plan "$T/two.yaml" --wan $wan --ranks beta=4 --json |
    jq -e '.written.clusters[1].mesh | .[0] * .[1] * .[2] == 4' >/dev/null ||
    fail "--ranks has no effect"
sed '/name: beta/d' "$T/two.yaml" >"$T/four.yaml"
train four 1 $wan four --steps 2 --set sync.scheme=none
jq -e '.spec.clusters[0].mesh | .[0] * .[1] * .[2] == 4' "$T/four/job.json" >/dev/null ||
    fail "mesh: auto chose $(jq -c '.spec.clusters[0]' "$T/four/job.json")"
grep -q '4 ranks: dp' "$T"/four/clusters/alpha/jobs/*/rank-0.log ||
    fail "the worker does not have four ranks: $(cat "$T"/four/clusters/alpha/jobs/*/*.log)"

# Every job in configs/. Their corpora are not here, and the plan reports the assumed vocabulary.
shipped=0
for f in "$(dirname "$0")"/../../configs/*.yaml; do
    grep -q '^clusters:' "$f" || continue
    plan "$f" --json >"$T/shipped.json"
    jq -e '.vocab_assumed == 32000 and (.written | (.clusters // .sides) | length >= 2)' \
        "$T/shipped.json" >/dev/null || fail "wrong plan of $f: $(cat "$T/shipped.json")"
    shipped=$((shipped + 1))
done
((shipped >= 5)) || fail "configs has only $shipped jobs"
plan "$T/job.yaml" --local 2 --json | jq -e '.vocab_assumed == null' >/dev/null ||
    fail "the plan does not look at a corpus that is here"

# nebula check must accept the job that plan proposes. Private sums fix the codec; early intervals
# and sync.tune limit the choice.
sed 's/overlap: 2, codec: int4/overlap: 2, row_weights: false, gate: private, codec: bf16/;
    $a\  - {name: gamma, threads: 1}' "$T/job.yaml" >"$T/private.yaml"
for c in "$T/private.yaml" "$T/job.yaml --wan 20mbit:500ms --set sync.early_steps=100" \
    "$T/job.yaml --wan 10gbit:1ms --set sync.tune=auto" \
    "$T/auto.yaml --wan 10gbit:1ms --set sync.tune=auto"; do
    read -ra words <<<"$c"
    plan "${words[@]}" --json >"$T/taken.json"
    jq -e '.proposed | .sent_bytes > 0 and .wall_s > 0 and .exchange.interval > 0' \
        "$T/taken.json" >/dev/null || fail "wrong plan of $c: $(cat "$T/taken.json")"
    mapfile -t sets < <(jq -r '.proposed.exchange |
        "--set", "sync.interval=\(.interval)", "--set", "sync.overlap=\(.overlap)", "--set",
        "sync.codec=\(.codec)"' "$T/taken.json")
    [[ ${words[1]:-} != --wan ]] || words=("${words[0]}" "${words[@]:3}")
    "$nebula" check "${words[@]}" "${sets[@]}" >"$T/taken.log" 2>&1 ||
        fail "check refuses what plan $c proposes: $(cat "$T/taken.log")"
done
plan "$T/private.yaml" >"$T/taken.txt"
! grep -q sync.tune "$T/taken.txt" ||
    fail "plan proposes sync.tune: auto with private sums: $(cat "$T/taken.txt")"
timeout 600 "$nebula" pretrain "$T/auto.yaml" --local 2 --steps 20 --set sync.tune=auto \
    --out "$T/tuned" >"$T/tuned.log" 2>&1 || fail "the run with auto keys and sync.tune failed"
# One process has the whole machine, with and without --local.
sed 's/, threads: 1}/}/' "$T/job.yaml" >"$T/threads.yaml"
for local in "" "--local 2"; do
    read -ra words <<<"$local"
    plan "$T/threads.yaml" "${words[@]}" --set sync.scheme=synchronous --json |
        jq '.written | .wall_s, .clusters[].fits' >"$T/alone${local:+-local}"
done
cmp "$T/alone" "$T/alone-local" ||
    fail "--local changes the plan of sync.scheme synchronous: $(cat "$T/alone-local")"

refuse() { # STATUS TEXT arguments…
    local want=$1 text=$2 rc=0 out
    shift 2
    out=$(timeout 600 "$nebula" "$@" 2>&1) || rc=$?
    refused=$out
    [[ $rc == "$want" && $out == *"$text"* ]] ||
        fail "$*: exit status $rc (not $want), or no '$text' in: $out"
}
refuse 2 'is not RATE:DELAY' plan "$T/job.yaml" --wan fast
refuse 2 'CLUSTER=RATE:DELAY' plan "$T/job.yaml" --wan gamma=1mbit:1ms
refuse 2 'is not RATE:DELAY' plan "$T/job.yaml" --wan beta=slow
refuse 2 'CLUSTER=FILE' plan "$T/job.yaml" --site "gamma=$T/here.json"
jq 'del(.processors)' "$T/here.json" >"$T/bad.json"
refuse 2 'processors' plan "$T/job.yaml" --site "beta=$T/bad.json"
refuse 2 'sync.link' pretrain "$T/auto.yaml" --out "$T/none"
refuse 2 'seed differs' pretrain "$T/auto.yaml" --local 2 --steps 20 --seed 9 --set recompute=auto \
    --out "$T/auto" --resume
jq '.memory = 1e7' "$T/here.json" >"$T/tiny.json"
# The rates of a device that is not here: the plan reports that it ignores the device.
sed 's/{name: beta,/{name: beta, device: cuda,/' "$T/job.yaml" >"$T/cuda.yaml"
plan "$T/cuda.yaml" --wan $wan --json >"$T/cuda.json"
jq -e '[.written, .proposed] |
    all(.[].clusters; .[0].device_reckoned and (.[1].device_reckoned | not) and
    all(.[]; .rates_of == "processors"))' "$T/cuda.json" >/dev/null ||
    fail "the plan does not report that it ignores the device: $(cat "$T/cuda.json")"
plan "$T/cuda.yaml" --wan $wan >"$T/cuda.txt"
[[ $(grep -A 2 '^  beta: mesh' "$T/cuda.txt" | grep -c 'device: cuda IS NOT IN THE FIGURES') == 2 &&
    $(grep -c 'IS NOT IN THE FIGURES' "$T/cuda.txt") == 2 ]] ||
    fail "the text of the plan does not report that it ignores the device: $(cat "$T/cuda.txt")"
refuse 1 'does not fit' plan "$T/job.yaml" --site "beta=$T/tiny.json"
refuse 1 'beta: NO MESH OF 7 RANKS divides the model and the 8 sequences of a step' \
    plan "$T/seven.yaml" --wan $wan
refuse 2 'clusters.ranks: cluster beta: no mesh of 7 ranks divides' \
    pretrain "$T/seven.yaml" --local 2 --out "$T/none"
# The seconds of a step are unknown. So `auto` must be refused. Otherwise it would silently become
# the default.
jq '.link = 0 | .link_s = 0' "$T/four.json" >"$T/no-link.json"
sed -e 's/interval: 10/interval: auto/' \
    -e "s|{name: beta,|{name: beta, mesh: {dp: 4}, profile: $T/no-link.json,|" "$T/job.yaml" \
    >"$T/unknown.yaml"
for command in "plan" "pretrain --local 2 --out $T/none"; do
    read -ra words <<<"$command"
    text='sync.interval: auto cannot be decided, because the time of '
    text+="cluster beta's steps is not known: the link between two ranks"
    refuse 1 "$text" "${words[0]}" "$T/unknown.yaml" --wan $wan "${words[@]:1}"
done
plan "$T/unknown.yaml" --wan $wan --set sync.interval=10 >"$T/unknown.txt" # the job as written runs
# This machine's memory says nothing about a site that is unknown.
kept=$(ls -t "$T"/cache/nebula/plan-*.json | head -n 1)
mkdir -p "$T/small/nebula"
cp "$T/tiny.json" "$T/small/nebula/${kept##*/}"
sed 's/interval: 10/interval: auto/' "$T/job.yaml" >"$T/interval.yaml"
XDG_CACHE_HOME=$T/small refuse 1 \
    "cluster alpha has too little memory for this model with the job's settings" \
    pretrain "$T/interval.yaml" --local 2 --out "$T/none"
text='cluster beta: this machine has too little memory for its part, '
text+='and the machine of the cluster is not known'
XDG_CACHE_HOME=$T/small refuse 1 "$text" pretrain "$T/interval.yaml" --set sync.link=$wan \
    --home "$T/nobody" --out "$T/none"
has 'no agent' <<<"$refused" || fail "the error is not about the missing agent: $refused"
# The plan proposes bf16 where it pays, and predicts it where the job sets it. It says so where
# processors lack bf16.
for how in twice:2 half:0.5 never:0; do
    jq --argjson f "${how#*:}" '.bf16 = (.fp32 | map_values(map(. * $f)))' "$T/here.json" \
        >"$T/${how%:*}.json"
done
sed 's/{name: alpha,/{name: alpha, device: cpu, precision: bf16,/' "$T/job.yaml" >"$T/bf16.yaml"
bf16() { # PROFILE JOB txt|json
    plan "$T/$2.yaml" --wan $wan --site "alpha=$T/$1.json" \
        --site "beta=$T/$1.json" $([[ $3 == txt ]] || echo --json) >"$T/$1-$2.$3"
}
bf16 twice job json
bf16 twice bf16 json
bf16 twice bf16 txt
bf16 half bf16 txt
bf16 never bf16 txt
bf16 never bf16 json
bf16 half job txt
jq -e --slurpfile b "$T/twice-job.json" '($b[0].written.clusters[0]) as $f | .written.clusters |
    (.[0].precision == "bf16") and (.[1].precision == "fp32")
    and .[0].step_s < 0.9 * $f.step_s and (.[0].bf16_gain - $f.bf16_gain | fabs < 1e-6) and
    $f.bf16_gain > 1.1 and $f.bf16_gain < 2 and .[0].rank_bytes > $f.rank_bytes' \
        "$T/twice-bf16.json" >/dev/null ||
    fail "wrong plan with bf16 twice as fast: $(jq .written.clusters "$T/twice-bf16.json")"
grep -q 'beta: precision: bf16 (steps 1' "$T/twice-bf16.txt" &&
    ! grep -q 'alpha: precision' "$T/twice-bf16.txt" ||
    fail "wrong proposal with bf16 twice as fast: $(cat "$T/twice-bf16.txt")"
grep -q 'SLOWER: set precision: fp32' "$T/half-bf16.txt" &&
    ! grep -q 'precision: bf16' "$T/half-job.txt" ||
    fail "wrong plan with bf16 half as fast: $(cat "$T/half-bf16.txt" "$T/half-job.txt")"
[[ $(grep -c 'precision: bf16 IS NOT IN THE FIGURES' "$T/never-bf16.txt") == 2 ]] &&
    jq -e '.written.clusters[0] | .precision == "fp32" and (.precision_reckoned | not) and
    .bf16_gain == null' "$T/never-bf16.json" >/dev/null ||
    fail "wrong plan without bf16: $(cat "$T/never-bf16.txt")"
# The rates measured here are those of plain C, whose bf16 is slower.
jq -e '(.bf16 | .step + .one | all(. > 0)) and .bf16.step[0] < .fp32.step[0]' \
    "$T/here.json" >/dev/null ||
    fail "wrong bf16 rates in the profile: $(jq -c '[.bf16, .fp32]' "$T/here.json")"
echo "plan: predictions hold"
