#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clusters with different memory split the same step into different micro-batches. Losses, tokens
# and data stay the same, and final parameters are equal, also when a run is resumed with another
# split. nebula plan proposes a split for each cluster's memory, `auto` fills it in, and an
# impossible split is refused.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml"
sed -i 's/codec: int4/codec: fp32/; s/batch: 4, accumulate: 1/batch: 4, accumulate: 2/;
    s/windows: 16/windows: 4/; s/steps: 60/steps: 30/; s/every_steps: 20/every_steps: 10/
    $a\log_every: 3' "$T/job.yaml"
run() {
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 \
        --out "$T/$2" "${@:3}" >"$T/$2.log" 2>&1 || fail "the run $2 failed"
}
losses() {
    jq -s -r '[.[] | select(.kind == "step")] | unique_by([.cluster, .step]) | .[] |
        "\(.cluster) \(.step) \(.tokens) \(.loss)"' "$T/$1/metrics.jsonl"
}
# RUN RUN: equal steps and tokens; losses within 1e-3, those of the first step within 1e-6.
alike() {
    paste -d ' ' <(losses "$1") <(losses "$2") | awk '
        function far(a, b) { d = (a - b) / b; return d < 0 ? -d : d }
        $1 != $5 || $2 != $6 || $3 != $7 || far($4, $8) > ($2 == 1 ? 1e-6 : 1e-3) { print; bad = 1 }
        END { exit bad || NR < 10 }' || fail "$1 and $2 differ"
}

run job whole
sed 's/{name: alpha,/{name: alpha, batch: 2, recompute: true,/;
    s/{name: beta,/{name: beta, batch: 8, mesh: {dp: 2},/' "$T/job.yaml" >"$T/cut.yaml"
run cut cut
digests_equal "$T/cut"
alike whole cut
has '4 micro-batches of 2 sequences, recomputing' "$T"/cut/clusters/alpha/jobs/*/worker.log ||
    fail "alpha has other micro-batches: $(cat "$T"/cut/clusters/alpha/jobs/*/worker.log)"
has '1 micro-batches of 8 sequences$' "$T"/cut/clusters/beta/jobs/*/rank-0.log ||
    fail "beta has other micro-batches: $(cat "$T"/cut/clusters/beta/jobs/*/rank-0.log)"
jq -e '[.clusters[].tokens] == [30 * 8 * 64, 30 * 8 * 64]' "$T/cut/summary.json" >/dev/null ||
    fail "wrong number of tokens: $(jq -c '[.clusters[].tokens]' "$T/cut/summary.json")"

# A stopped run is resumed with other micro-batches.
pace 300
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/again" >"$T/again.log" 2>&1 &
pid=$!
wait_step "$T/again" 9 "$pid" alpha || fail "the run did not reach step 9"
kill -INT "$pid"
wait "$pid" || true
unset NEBULA_FAULT
stopped=$(steps_done "$T/again" alpha)
((stopped >= 9 && stopped < 30)) || fail "the run stopped at step $stopped, not between 9 and 30"
run cut again --resume
digests_equal "$T/again"
alike whole again
echo "the same steps in other micro-batches, also after step $stopped with another split"

# A split for each cluster's memory.
"$nebula" plan --profile >"$T/here.json" 2>/dev/null || fail "nebula plan --profile failed"
shape "$T/job.yaml" 'n_layers: 4, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 512'
sed -i 's/seq_len: 64, batch: 4, accumulate: 2/seq_len: 512, batch: 16, accumulate: 1/' \
    "$T/job.yaml"
plan() {
    timeout 600 "$nebula" plan "$T/$1.yaml" --wan 1gbit:1ms --site "alpha=$T/here.json" \
        --site "beta=$T/tight.json" "${@:2}" 2>"$T/plan.err"
}
cp "$T/here.json" "$T/tight.json"
plan job --json >"$T/plan.json" || fail "plan failed: $(cat "$T/plan.err")"
jq --argjson b "$(jq '.written.clusters[1] | .rank_bytes - 0.6 * .acts_bytes' "$T/plan.json")" \
    '.memory = $b / 0.85' "$T/here.json" >"$T/tight.json"
# The job as written does not fit, and a run would use it as written. The proposed job fits.
short() {
    local rc=0
    plan job "$@" || rc=$?
    [[ $rc == 1 ]] &&
        has 'beta: the job does not fit as written, but the proposal does' <"$T/plan.err" ||
        fail "plan $*: exit status $rc, $(cat "$T/plan.err")"
}
short --json >"$T/plan.json"
jq -e '(.written.clusters[0].fits) and (.written.clusters[1].fits | not) and
    (.proposed.clusters | all(.[]; .fits) and .[0].batch * .[0].accumulate == 16 and
    .[1].batch * .[1].accumulate == 16
       and (.[1].batch < .[0].batch or (.[1].recompute and (.[0].recompute | not))))' \
           "$T/plan.json" >/dev/null ||
           fail "wrong plan: $(jq -c '.written.clusters, .proposed.clusters' "$T/plan.json")"
short >"$T/plan.txt"
want=$(jq -r '.proposed.clusters[1] | "batch: \(.batch)"' "$T/plan.json") \
    again=$(jq -r '.proposed.clusters[1].recompute' "$T/plan.json")
grep -qE "^  beta: mesh: .*($want|recompute: $again)" "$T/plan.txt" ||
    fail "the plan does not show the proposal: $(tail -n 12 "$T/plan.txt")"

# Then `auto` fills it in.
sed "s/batch: 16, accumulate: 1/batch: auto, accumulate: 16/;
    s/{name: alpha,/{name: alpha, profile: here.json,/;
    s/{name: beta,/{name: beta, profile: tight.json,/" "$T/job.yaml" >"$T/auto.yaml"
cd "$T"
run auto auto --steps 1 --set sync.interval=1 --set eval.windows=1 --set recompute=auto
cd - >/dev/null
jq -e --slurpfile p "$T/plan.json" '.spec as $j | $p[0].proposed.clusters as $c |
    $j["data.batch"] == $c[0].batch and ($j.clusters[1].batch // $j["data.batch"]) == $c[1].batch
       and (if $j.clusters[1] | has("recompute") then
       $j.clusters[1].recompute else $j.recompute end) == $c[1].recompute' \
           "$T/auto/job.json" >/dev/null ||
    fail "auto: planned $(jq -c '.proposed.clusters | map([.batch, .accumulate, .recompute])' \
        "$T/plan.json"), ran $(jq -c .spec "$T/auto/job.json")"
digests_equal "$T/auto"

refuse() { # TEXT KEYS-OF-ALPHA options…
    local rc=0 out text=$1
    sed "s/{name: alpha,/{name: alpha, $2,/" "$T/job.yaml" >"$T/bad.yaml"
    out=$(timeout 600 "$nebula" check "$T/bad.yaml" "${@:3}" 2>&1) || rc=$?
    [[ $rc == 2 && $out == *"$text"* ]] || fail "$2: exit status $rc, or no '$text' in: $out"
}
refuse 'does not divide the sequences of a step' 'batch: 3'
refuse 'is not in 1..65536' 'batch: 0'
refuse 'more than 65536 micro-batches' 'batch: 1' --set data.batch=1024 --set data.accumulate=128
refuse 'neither true nor false' 'recompute: yes'
refuse 'an attached trainer chooses' 'batch: 2, launcher: attach' --set model.vocab=512
refuse 'sync.scheme: synchronous' 'recompute: true' --set sync.scheme=synchronous
echo "each cluster has micro-batches of its own"
