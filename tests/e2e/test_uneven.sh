#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clusters of different speed with sync.tune: auto: the slow one leaves out steps, and the fast one
# does not wait. This holds for an attached and a built-in trainer, killed or not. All exchanged
# parameters stay equal bit for bit.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus
job() { # FILE STEPS LAUNCHER-OF-BETA
    make_job "$1"
    sed -i "s/steps: 60/steps: $2/; s/model: {/model: {vocab: 512, /; s/overlap: 0/overlap: 2/;
        s/codec: int4/codec: int4, tune: auto/
        s/\(name: alpha.*\)threads: 1/\1threads: 1, launcher: attach/;
        s/\(name: beta.*\)threads: 1/\1threads: 1, launcher: $3/" "$1"
}
run() { timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 --out "$T/$1" >"$T/$1.log" 2>&1; }
# After a run: alpha made all its steps, and beta at most PERCENT of them, as planned.
uneven() { # RUN PERCENT
    digests_equal "$T/$1"
    round_digests_equal "$T/$1"
    [[ $(summary "[.clusters[] | if .name == \"alpha\" then
        .steps_left_out == 0 else (.steps - .steps_left_out) * 100 <= $2 * .steps end] |
        all" "$T/$1") == true ]] ||
        fail "$1, wrong number of left out steps: $(jq -c '.clusters[] |
        [.name, .steps, .steps_left_out]' \
            "$T/$1/summary.json")"
    jq -s -e 'any(.[]; .kind == "tune" and .cluster == "beta" and .left_out > 0.3)' \
        "$T/$1/metrics.jsonl" >/dev/null ||
        fail "$1, wrong plans: $(jq -c 'select(.kind == "tune")' "$T/$1/metrics.jsonl")"
}

# Steps of 25 and of 50 ms.
job "$T/paced.yaml" 600 attach
sed -i 's/interval: 10/interval: 40/; s/overlap: 2/overlap: 15/' "$T/paced.yaml"
run paced & pid=$!
timeout 600 "$client" "$T/paced/clusters/alpha" "" 1 --pace 25 >"$T/a.log" 2>&1 & a=$!
timeout 600 "$client" "$T/paced/clusters/beta" "" 2 --pace 50 >"$T/b.log" 2>&1 ||
    fail "the trainer of beta failed: $(cat "$T/b.log")"
wait $a || fail "the trainer of alpha failed: $(cat "$T/a.log")"
wait $pid || fail "the job with two paces failed"
uneven paced 75
# Alpha's waiting after the first rounds: two rounds are planned before anything is measured.
[[ $(jq -s '[.[] | select(.kind == "step" and .cluster == "alpha" and .step >= 240)] |
    (.[-1].stall_s - .[0].stall_s) < 0.2 * (.[-1].train_s - .[0].train_s)' \
    "$T/paced/metrics.jsonl") == true ]] ||
    fail "alpha still waits: $(jq -c 'select(.kind == "step" and .cluster == "alpha") |
    [.step, .stall_s, .train_s]' "$T/paced/metrics.jsonl" | tail -n 3)"

# A built-in worker whose steps have twenty times the tokens that fit into the other's 4 ms. It is
# killed while it leaves out steps. The updates that it repeats equal those that it had sent.
job "$T/large.yaml" 200 local
sed -i 's/seq_len: 64, batch: 4/seq_len: 128, batch: 16/' "$T/large.yaml"
run large & pid=$!
timeout 600 "$client" "$T/large/clusters/alpha" "" 1 --pace 4 >"$T/c.log" 2>&1 & a=$!
wait_step "$T/large" 90 "$pid" || fail "the run did not reach step 90"
run=$T/large
kill -KILL "$(worker_of beta)"
wait $a || fail "alpha's trainer failed beside a worker: $(cat "$T/c.log")"
wait $pid || fail "the job with a worker failed"
uneven large 75
grep -rq 'going on from step' "$T/large" --include='*.log' ||
    fail "the worker did not restart from a checkpoint"
ledgers_verify "$T/large" alpha beta
echo "slow clusters left out steps: $(for r in paced large; do summary '[.clusters[] |
    "\(.name) \(.steps_left_out) of \(.steps)"] | join(", ")' "$T/$r"; done | paste -sd ';')"
