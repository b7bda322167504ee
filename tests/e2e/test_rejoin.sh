#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member that the others' ledgers cannot bring up to date any more begins anew from a snapshot: one whose disk was lost, one
# whose job folder was lost, or its ledger alone, and one that was away for longer than updates are kept. Nobody forks, training ends.
. "$(dirname "$0")/lib.sh"
make_corpus
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()

make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e "s/steps: 60/steps: 3000/" "$T/job.yaml"
light "$T/job.yaml"
pace 8
clusters "$T/job.yaml" a b c
run=$T/run
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUNDS
    local i
    for ((i = 0; i < 600; i++)); do
        (($(rounds "$1") >= $2)) && return 0
        kill -0 "$pid" 2>/dev/null || fail "the run ended before round $2 of $1"
        sleep 0.1
    done
    fail "no round $2 of $1 after a minute"
}
# By its own log: what it says to the console crosses a link that has only just come back.
snapshots() { grep -c "a snapshot is here" "$run/clusters/$1/agent.log" || true; }
wait_snapshot() { # CLUSTER BEFORE WHAT
    local i
    for ((i = 0; i < 100; i++)); do
        (($(snapshots "$1") > $2)) && return 0
        sleep 0.1
    done
    fail "no snapshot after $3"
}

timeout 200 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
pid=$!
nebula_pid=$(started_by "$pid")

wait_rounds b 12
# Its disk: what is left are its keys.
kill -STOP "$nebula_pid" # so that its agent is not started again at once
stopped=("$nebula_pid")
kill -KILL "$(agent_of b)" "$(worker_of b)"
rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
kill -CONT "$nebula_pid"
stopped=()
before=$(rounds a)
for ((i = 0; i < 600 && !$(snapshots b); i++)); do sleep 0.1; done
(($(snapshots b) >= 1)) || fail "no snapshot after the loss of a disk"
wait_rounds b $((before + 10))
echo "disk of b lost: at round $(rounds b) again"

# Its job folder alone: ledger and blobs are there.
before=$(snapshots c)
kill -STOP "$(agent_of c)"
stopped=("$(agent_of c)")
kill -KILL "$(worker_of c)"
job=$(echo "$run"/clusters/c/jobs/*)
rm -rf "$job"
mkdir -p -m 700 "$job/checkpoint" # as its worker does that begins again before a snapshot has come
kill -CONT "${stopped[@]}"
stopped=()
round=$(rounds a)
wait_rounds c $((round + 10))
wait_snapshot c "$before" "the loss of a job folder"
echo "job folder of c lost: at round $(rounds c) again"

# Its ledger alone: the job folder is there, and its checkpoints say nothing any more.
before=$(snapshots c)
kill -STOP "$nebula_pid"
stopped=("$nebula_pid")
kill -KILL "$(agent_of c)" "$(worker_of c)"
rm -rf "$run/clusters/c/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs}
kill -CONT "$nebula_pid"
stopped=()
round=$(rounds a)
wait_rounds c $((round + 10))
wait_snapshot c "$before" "the loss of a ledger"
compgen -G "$run/clusters/c/jobs/*/former/checkpoint/*" >/dev/null ||
    fail "its checkpoints are not kept"
echo "ledger of c lost: at round $(rounds c) again"

# Away, with all its disk, for longer than the others keep updates.
before=$(snapshots b)
round=$(rounds a)
stopped=("$(agent_of b)" "$(worker_of b)")
kill -STOP "${stopped[@]}"
within 30 is_away run/clusters/a b && within 30 is_away run/clusters/c b ||
    fail "b is stopped, and its links are up"
round=$(rounds a)
wait_rounds a $((round + 40)) # two seconds later, too, updates stay for it
kill -CONT "${stopped[@]}"
stopped=()
round=$(rounds a)
wait_rounds b $((round + 5))
wait_snapshot b "$before" "an absence"
echo "b away for more than 40 rounds: at round $(rounds b) again"

wait "$pid" || fail "run failed"
digests_equal "$run"
round_digests_equal "$run"
ledgers_verify "$run" a b c
# All three contribute again, and nobody is late for good: a round does not last its grace.
travel=$(jq -R -s '[split("\n")[] | fromjson? | select(.kind == "round" and .updates == 3) |
    .travel_s][-150:] | sort | .[length / 2 | floor] // 0' \
    "$run/metrics.jsonl")
awk -v t="$travel" 'BEGIN { exit !(t > 0 && t < 0.9) }' ||
    fail "rounds wait for somebody to the end: half of the last ones took over $travel s"
echo "$(summary '.rounds' \
    "$run") rounds, digests equal, steps lost: $(summary '[.clusters[] |
    "\(.name) \(.lost_steps)"] | join(", ")' "$run")"
