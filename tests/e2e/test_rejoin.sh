#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member that the ledgers of the others cannot update any more restarts from a snapshot. Cases: it
# lost its disk, its job folder, or its ledger alone, or it was away for longer than updates are
# kept. Nobody diverges, and training ends.
. "$(dirname "$0")/lib.sh"
make_corpus
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()

make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e "s/steps: 60/steps: 1500/" "$T/job.yaml"
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
pace 12
clusters "$T/job.yaml" a b c
run=$T/run
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUND
    wait_round "$run" "$2" "$pid" "$1" || fail "$1 did not reach round $2, or the run ended"
}
# Reads the agent's own log, because console messages cross a link that has just come up.
snapshots() { grep -c "a snapshot is here" "$run/clusters/$1/agent.log" || true; }
more_snapshots() { (($(snapshots "$1") > $2)); } # CLUSTER BEFORE
wait_snapshot() { # CLUSTER BEFORE WHAT
    within 40 more_snapshots "$1" "$2" || fail "there is no snapshot after $3"
}

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
pid=$!
nebula_pid=$(started_by "$pid")

wait_rounds b 6
# The whole disk of b is lost: only its keys remain.
kill -STOP "$nebula_pid" # so that it does not restart the agent at once
stopped=("$nebula_pid")
kill -KILL "$(agent_of b)" "$(worker_of b)"
rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
kill -CONT "$nebula_pid"
stopped=()
before=$(rounds a)
wait_snapshot b 0 "the loss of a disk"
wait_rounds b $((before + 5))
echo "disk of b lost: at round $(rounds b) again"

# Only the job folder of c is lost: its ledger and blobs remain.
before=$(snapshots c)
kill -STOP "$(agent_of c)"
stopped=("$(agent_of c)")
kill -KILL "$(worker_of c)"
job=$(echo "$run"/clusters/c/jobs/*)
rm -rf "$job"
mkdir -p -m 700 "$job/checkpoint" # as if its worker had restarted before the snapshot came
kill -CONT "${stopped[@]}"
stopped=()
round=$(rounds a)
wait_rounds c $((round + 5))
wait_snapshot c "$before" "the loss of a job folder"
echo "job folder of c lost: at round $(rounds c) again"

# Only the ledger of c is lost: the job folder remains, but its checkpoints are useless.
before=$(snapshots c)
kill -STOP "$nebula_pid"
stopped=("$nebula_pid")
kill -KILL "$(agent_of c)" "$(worker_of c)"
rm -rf "$run/clusters/c/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs}
kill -CONT "$nebula_pid"
stopped=()
round=$(rounds a)
wait_rounds c $((round + 5))
wait_snapshot c "$before" "the loss of a ledger"
compgen -G "$run/clusters/c/jobs/*/former/checkpoint/*" >/dev/null ||
    fail "the old checkpoints were not kept"
echo "ledger of c lost: at round $(rounds c) again"

# b is away, with its whole disk, for longer than the others keep updates.
before=$(snapshots b)
round=$(rounds a)
stopped=("$(agent_of b)" "$(worker_of b)")
kill -STOP "${stopped[@]}"
within 30 is_away run/clusters/a b && within 30 is_away run/clusters/c b ||
    fail "b is stopped, but its links are up"
round=$(rounds a)
wait_rounds a $((round + 30)) # the others keep updates for b for two more seconds
kill -CONT "${stopped[@]}"
stopped=()
round=$(rounds a)
wait_rounds b $((round + 5))
wait_snapshot b "$before" "an absence"
echo "b away for more than 30 rounds: at round $(rounds b) again"

wait "$pid" || fail "the run failed"
digests_equal "$run"
round_digests_equal "$run"
ledgers_verify "$run" a b c
# All three contribute again, and none stays late: a round takes less than grace_s.
travel=$(jq -R -s '[split("\n")[] | fromjson? | select(.kind == "round" and .updates == 3) |
    .travel_s][-45:] | sort | .[length / 2 | floor] // 0' \
    "$run/metrics.jsonl")
awk -v t="$travel" 'BEGIN { exit !(t > 0 && t < 0.9) }' ||
    fail "rounds still wait for a member at the end: half of the last ones took over $travel s"
echo "$(summary '.rounds' \
    "$run") rounds, digests equal, steps lost: $(summary '[.clusters[] |
    "\(.name) \(.lost_steps)"] | join(", ")' "$run")"
