#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# More than two clusters. With three, the leader's agent is killed. With five, one is a witness and
# two agents are killed, the leader's among them. Another leader takes over, training continues, and
# nobody diverges.
. "$(dirname "$0")/lib.sh"
make_corpus

job() { # FILE CLUSTERS STEPS
    make_job "$1"
    light "$1"
    shape "$1" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
    sed -i -e "s/steps: 60/steps: $3/" -e '/^  - {name: beta/d' -e '/^  - {name: alpha/d' \
        -e 's/outer: {/grace_s: 20, outer: {/' "$1"
    local i names=abcdef
    for ((i = 0; i < $2; i++)); do
        echo "  - {name: ${names:i:1}, sources: [{name: $( ((i % 2)) && echo gpl ||
            echo other), weight: 1}], threads: 1}" >>"$1"
    done
}
pace 20
clean_up() { end_now ${pid:+"$pid"}; }
rounds() { largest "$1" round round '' 0; }
wait_rounds() { wait_round "$@" || fail "$1 did not reach round $2, or it ended"; } # DIR ROUND PID
kill_agent() { # DIR NAME
    local pid
    pid=$(pgrep -o -f "nebula agent --home $1/clusters/$2 ") ||
        fail "there is no agent $2 in $1"
    kill -KILL "$pid"
}

job "$T/three.yaml" 3 300
timeout 600 "$nebula" pretrain "$T/three.yaml" --local 3 --out "$T/three" >"$T/three.log" 2>&1 &
pid=$!
wait_rounds "$T/three" 5 "$pid"
kill_agent "$T/three" a # member 0 is the first leader
before=$(rounds "$T/three")
wait_rounds "$T/three" $((before + 10)) "$pid"
wait "$pid" || fail "the run of three clusters with a killed leader failed"
digests_equal "$T/three"
round_digests_equal "$T/three"
grep -q 'agent a was killed and is started again' "$T/three.log" ||
    fail "the log does not mention the killed agent: $(cat "$T/three.log")"
ledgers_verify "$T/three" a b c
echo "three clusters, leader killed: $(summary '.rounds' "$T/three") rounds, digests equal"

job "$T/five.yaml" 4 250
echo "  - {name: w, witness: true}" >>"$T/five.yaml"
timeout 600 "$nebula" pretrain "$T/five.yaml" --local 5 --out "$T/five" >"$T/five.log" 2>&1 &
pid=$!
wait_rounds "$T/five" 4 "$pid"
kill_agent "$T/five" a
kill_agent "$T/five" c
before=$(rounds "$T/five")
wait_rounds "$T/five" $((before + 6)) "$pid"
wait "$pid" || fail "the run of five members failed"
digests_equal "$T/five"
round_digests_equal "$T/five"
for c in a d w; do
    "$nebula" ledger verify "$T/five/clusters/$c" >"$T/verify.log" 2>&1 ||
        fail "the ledger of $c does not verify: $(cat "$T/verify.log")"
done
echo "five members, one a witness, two killed: $(summary '.rounds' "$T/five") rounds, digests equal"

# The witness's agent is restarted just before the end. Its ledger must have every round.
"$nebula" agent --home "$T/five/clusters/w" >"$T/w.log" 2>&1 &
witness=$!
job=$(basename "$T"/five/clusters/a/jobs/*)
resumed() { "$nebula" resume "$job" --home "$T/five/clusters/w" >/dev/null 2>&1; }
over() { [[ $("$nebula" jobs --home "$T/five/clusters/w" --json | jq -r '.[0].state') == done ]]; }
within 20 resumed || fail "the witness's job is not resumed: $(cat "$T/w.log")"
within 20 over || fail "the witness waits for rounds that are done"
kill "$witness"
wait "$witness" || true

# A stopped job ends at its witness too, which has nothing to save.
job "$T/stopped.yaml" 2 100000
echo "  - {name: w, witness: true}" >>"$T/stopped.yaml"
timeout 600 "$nebula" pretrain "$T/stopped.yaml" --local 3 \
    --out "$T/stopped" >"$T/stopped.log" 2>&1 &
pid=$!
wait_rounds "$T/stopped" 2 "$pid"
"$nebula" stop "$(basename "$T"/stopped/clusters/a/jobs/*)" \
    --home "$T/stopped/clusters/a" >/dev/null || fail "the job cannot be stopped"
within 20 grep -q ': stopped' "$T/stopped/clusters/w/agent.log" ||
    fail "the witness continues with a stopped job"
wait "$pid" || true
echo "a job with a witness stopped: it ended there, too"

# With one process for all clusters, a witness does not change the random draws of the clusters that
# train.
job "$T/sync.yaml" 2 20
for n in 2 3; do
    ((n == 2)) || echo "  - {name: w, witness: true}" >>"$T/sync.yaml"
    timeout 600 "$nebula" pretrain "$T/sync.yaml" --local $n --set sync.scheme=synchronous \
        --out "$T/sync$n" >"$T/sync$n.log" 2>&1 ||
        fail "the run of $n clusters in one process failed"
done
digest() { summary '.clusters[0].params_digest' "$1"; }
[[ $(digest "$T/sync2") == "$(digest "$T/sync3")" ]] ||
    fail "a witness changes the run in one process: $(digest "$T/sync3"), $(digest "$T/sync2")"
