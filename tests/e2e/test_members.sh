#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# More than two clusters: three, of which the leader's agent is killed; five, of which one is a witness and two agents are killed, the
# leader among them. Another one takes over, training goes on, nobody forks.
. "$(dirname "$0")/lib.sh"
make_corpus

job() { # FILE CLUSTERS STEPS
    make_job "$1"
    light "$1"
    sed -i -e "s/steps: 60/steps: $3/" -e '/^  - {name: beta/d' -e '/^  - {name: alpha/d' \
        -e 's/outer: {/grace_s: 20, outer: {/' "$1"
    local i names=abcdef
    for ((i = 0; i < $2; i++)); do
        echo "  - {name: ${names:i:1}, sources: [{name: $( ((i % 2)) && echo gpl || echo other), weight: 1}], threads: 1}" >>"$1"
    done
}
pace 8
clean_up() { end_now ${pid:+"$pid"}; }
rounds() { largest "$1" round round '' 0; }
wait_rounds() { # DIR ROUNDS PID
    local i
    for ((i = 0; i < 600; i++)); do
        (($(rounds "$1") >= $2)) && return 0
        kill -0 "$3" 2>/dev/null || fail "the run ended before round $2: $(tail -n 3 "$1.log")"
        sleep 0.1
    done
    fail "no round $2 in $1 after a minute"
}
kill_agent() { # DIR NAME
    local pid
    pid=$(pgrep -f "nebula agent --home $1/clusters/$2 " | head -n 1)
    [[ -n $pid ]] || fail "no agent $2 in $1"
    kill -KILL "$pid"
}

job "$T/three.yaml" 3 700
timeout 130 "$nebula" pretrain "$T/three.yaml" --local 3 --out "$T/three" >"$T/three.log" 2>&1 &
pid=$!
wait_rounds "$T/three" 5 "$pid"
kill_agent "$T/three" a # member 0 leads first
before=$(rounds "$T/three")
wait_rounds "$T/three" $((before + 10)) "$pid"
wait "$pid" || fail "three clusters with a killed leader: $(tail -n 5 "$T/three.log")"
digests_equal "$T/three"
round_digests_equal "$T/three"
grep -q 'agent a was killed and is started again' "$T/three.log" || fail "nobody says that the agent was killed: $(cat "$T/three.log")"
ledgers_verify "$T/three" a b c
echo "three clusters, leader killed: $(summary '.rounds' "$T/three") rounds, digests equal"

job "$T/five.yaml" 4 500
echo "  - {name: w, witness: true}" >>"$T/five.yaml"
timeout 150 "$nebula" pretrain "$T/five.yaml" --local 5 --out "$T/five" >"$T/five.log" 2>&1 &
pid=$!
wait_rounds "$T/five" 4 "$pid"
kill_agent "$T/five" a
kill_agent "$T/five" c
before=$(rounds "$T/five")
wait_rounds "$T/five" $((before + 6)) "$pid"
wait "$pid" || fail "five members, one a witness: $(tail -n 5 "$T/five.log")"
digests_equal "$T/five"
round_digests_equal "$T/five"
for c in a d w; do "$nebula" ledger verify "$T/five/clusters/$c" >"$T/verify.log" 2>&1 || fail "ledger of $c: $(cat "$T/verify.log")"; done
echo "five members, one a witness, two killed: $(summary '.rounds' "$T/five") rounds, digests equal"

# The witness's agent was started anew just before the end: its ledger says that there is nothing more to come.
"$nebula" agent --home "$T/five/clusters/w" >"$T/w.log" 2>&1 &
witness=$!
job=$(basename "$T"/five/clusters/a/jobs/*)
resumed() { "$nebula" resume "$job" --home "$T/five/clusters/w" >/dev/null 2>&1; }
over() { [[ $("$nebula" jobs --home "$T/five/clusters/w" --json | jq -r '.[0].state') == done ]]; }
within 20 resumed || fail "the witness's job is not resumed: $(cat "$T/w.log")"
within 20 over || fail "the witness waits for rounds that are over: $(tail -n 3 "$T/w.log")"
kill "$witness"
wait "$witness" || true

# A job that is stopped ends at its witness too, which has nothing to save.
job "$T/stopped.yaml" 2 100000
echo "  - {name: w, witness: true}" >>"$T/stopped.yaml"
timeout 100 "$nebula" pretrain "$T/stopped.yaml" --local 3 --out "$T/stopped" >"$T/stopped.log" 2>&1 &
pid=$!
wait_rounds "$T/stopped" 2 "$pid"
"$nebula" stop "$(basename "$T"/stopped/clusters/a/jobs/*)" --home "$T/stopped/clusters/a" >/dev/null || fail "the job cannot be stopped"
within 20 grep -q ': stopped' "$T/stopped/clusters/w/agent.log" || fail "the witness goes on with a job that was stopped: $(tail -n 3 "$T/stopped/clusters/w/agent.log")"
wait "$pid" || true
echo "a job with a witness stopped: it is over there, too"

# One process for all clusters draws what those that train draw, with a witness or without.
job "$T/sync.yaml" 2 20
for n in 2 3; do
    ((n == 2)) || echo "  - {name: w, witness: true}" >>"$T/sync.yaml"
    timeout 60 "$nebula" pretrain "$T/sync.yaml" --local $n --set sync.scheme=synchronous --out "$T/sync$n" >"$T/sync$n.log" 2>&1 || fail "one process, $n clusters: $(tail -n 3 "$T/sync$n.log")"
done
digest() { summary '.clusters[0].params_digest' "$1"; }
[[ $(digest "$T/sync2") == "$(digest "$T/sync3")" ]] || fail "one process trains otherwise with a witness: $(digest "$T/sync3"), $(digest "$T/sync2")"
