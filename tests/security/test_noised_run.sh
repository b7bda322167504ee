#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A `private` job with differential privacy (sync.dp): three clusters, one of two ranks. All end
# with the same parameters, also after a worker was killed. summary.json and `nebula check` agree on
# epsilon. Keys that contradict it are refused.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus

sync="gate: private, codec: bf16, row_weights: false, grace_s: 4"
make_job "$T/job.yaml" "$sync, dp: {clip: 0.02, noise: 4, delta: 1e-5}"
sed -i -e '/name: alpha/d; /name: beta/d; s/codec: int4, //' \
    -e 's/fragments: 1/fragments: 2/; s/steps: 60/steps: 30/' "$T/job.yaml"
for i in 0 1 2; do
    text=$([[ $i == 1 ]] && echo other || echo gpl)
    echo "  - {name: c$i, sources: [{name: $text, weight: 1}], threads: 1}" >>"$T/job.yaml"
done
sed -i 's/{name: c1,/{name: c1, mesh: {dp: 2}, launcher: local,/' "$T/job.yaml"

run() { # OUT SET...
    local out=$1
    shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$out" "$@" >"$out.log" 2>&1 ||
        fail "$out: $(tail -n 4 "$out.log")"
}
run "$T/noised"
digests_equal "$T/noised"
round_digests_equal "$T/noised"
# Again, with a worker killed in the middle. It continues from its checkpoint, and sends the same
# bytes again.
run=$T/again
pace 200
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
pid=$!
clean_up() { end_now "$pid"; }
merged() { (($(largest "$run" round round c0 -1) >= 1)); }
within 60 merged || fail "c0 merges no rounds: $(tail -n 3 "$run.log")"
kill -KILL "$(worker_of c0)"
wait "$pid" || fail "the run with a killed worker failed: $(tail -n 4 "$run.log")"
grep -q 'c0: .*started again' "$run.log" ||
    fail "the log does not say that a worker was killed: $(cat "$run.log")"
digests_equal "$run"
round_digests_equal "$run"
[[ $(summary '.privacy.releases' "$run") == 7 ]] ||
    fail "expected 7 sums, found $(summary '.privacy' "$run"): repeated sums count twice"
unset NEBULA_FAULT
digest() { summary '.clusters[0].params_digest' "$1"; }
[[ $(digest "$T/noised") != $(digest "$T/again") ]] ||
    fail "two runs with different keys add the same noise"

# Three rounds of one fragment and four of the other make 7 sums, each of half an update: ρ = 7 /
# 64. Its ε at δ 1e-5 is 2.011 (dp-accounting).
[[ $(summary '.privacy.releases' "$T/noised") == 7 ]] ||
    fail "expected 7 sums, found $(summary '.privacy' "$T/noised")"
epsilon=$(summary '.privacy.epsilon' "$T/noised")
awk "BEGIN { exit !($epsilon > 2.005 && $epsilon < 2.015) }" ||
    fail "epsilon is $epsilon, expected 2.011"
grep -q "^epsilon 2.01 at delta 1e-05" "$T/noised.log" ||
    fail "the table of the run has no epsilon 2.01: $(tail -n 6 "$T/noised.log")"
"$nebula" check "$T/job.yaml" --json >"$T/check.json" 2>/dev/null || fail "check"
jq -e --argjson e "$epsilon" '.privacy.releases == 7 and (.privacy.epsilon - $e | fabs) < 1e-6' \
    "$T/check.json" >/dev/null ||
    fail "nebula check says $(jq .privacy "$T/check.json"), expected 7 sums and $epsilon"
"$nebula" check "$T/job.yaml" >"$T/check" 2>&1 || fail "check"
grep -q 'privacy   epsilon 2.01' "$T/check" ||
    fail "nebula check shows no epsilon: $(cat "$T/check")"
! grep -q 'protects little' "$T/check" || fail "nebula check warns of a small epsilon"
"$nebula" check "$T/job.yaml" --set sync.dp.noise=0.5 >"$T/check" 2>&1 || fail "check"
grep -q 'Above 10 this protects little' "$T/check" ||
    fail "nebula check does not warn of a large epsilon: $(cat "$T/check")"
run "$T/open" --set sync.dp.clip=0 --set sync.dp.noise=0
[[ $(summary '.privacy' "$T/open") == null ]] ||
    fail "a run without noise has an epsilon: $(summary .privacy "$T/open")"
echo "three clusters: epsilon $epsilon after 7 sums, held-out loss" \
    "$(summary '.clusters[0].eval_loss' "$T/noised"), without noise" \
    "$(summary '.clusters[0].eval_loss' "$T/open")"

refused() { # TEXT SET...
    local text=$1
    shift
    if "$nebula" check "$T/job.yaml" "$@" >"$T/check" 2>&1; then fail "accepted: $*"; fi
    grep -q "$text" "$T/check" || fail "$*: expected '$text', found: $(cat "$T/check")"
}
refused 'sync.dp.clip: needs sync.gate: private' --set sync.gate=trusted
refused 'sync.dp.clip: is missing' --set sync.dp.clip=0
refused 'sync.dp.noise: is missing' --set sync.dp.noise=0
refused 'sync.private_range: does not work with sync.dp.clip' --set sync.private_range=1
refused 'sync.codec: must be bf16' --set sync.codec=auto
refused 'sync.dp.noise: must be 0.05 or more' --set sync.dp.noise=0.01
refused 'sync.dp.clip' --set sync.dp.clip=-1
refused 'sync.dp.clip' --set sync.dp.clip=nan
