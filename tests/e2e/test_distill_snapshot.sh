#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Students that form one model take a snapshot. One student was away for longer than updates are
# kept, and its worker is killed before its next checkpoint. Another student lost its job folder,
# and then its disk. Their labels continue from the oldest that the teacher still has, and no
# student diverges.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()
four=$(cluster_list beta student gamma student delta student alpha teacher)
job "$T/job.yaml" "$four" "teacher: {init: $T/teacher/checkpoint/model.ckpt}, federate: true"
sed -i 's/batch: 6, accumulate: 2/batch: 1, accumulate: 1/;
    s/every_steps: 10/every_steps: 40, keep: 2/; s/^log_every: 1/log_every: 5/;
    s/windows: 20/windows: 2/' "$T/job.yaml"
cat >>"$T/job.yaml" <<YAML
sync:
  {interval: 10, fragments: 1, overlap: 2, codec: int4, grace_s: 1, commit_all: false,
   outer: {lr: 0.9, momentum: 0.6}}
YAML
job "$T/teacher.yaml" "$one"
small='n_layers: 1, d_model: 16, n_heads: 2, d_ff: 32'
sed -i "s/n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96/$small/" "$T/job.yaml" "$T/teacher.yaml"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 5

pace 16
run=$T/run
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
reaches() { (($(rounds "$1") >= $2)) || ! kill -0 "$pid" 2>/dev/null; }
wait_rounds() { # CLUSTER ROUNDS
    within 60 reaches "$1" "$2" && (($(rounds "$1") >= $2)) || fail "$1 did not reach round $2"
}
log_of() { cat "$run/clusters/$1"/jobs/*/worker.log 2>/dev/null; }
took() { (($(log_of "$1" | grep -c 'taken over from a snapshot') > ${2:-0})); } # CLUSTER BEFORE
gone() { # ROUND: beta and gamma no longer keep its updates
    [[ $(find "$run"/clusters/{beta,gamma}/blobs -name "*-r$(printf %08d "$1")-*.blob") == '' ]]
}

timeout 600 "$nebula" distill "$T/job.yaml" --local 4 --steps 100000 --out "$run" >"$run.log" 2>&1 &
pid=$!
nebula_pid=$(started_by "$pid")

# Delta is away but keeps its disk. Its worker is killed after it has taken the snapshot, long
# before its next checkpoint.
wait_rounds delta 12
stopped=("$(agent_of delta)" "$(worker_of delta)")
kill -STOP "${stopped[@]}"
within 30 is_away run/clusters/beta delta && within 30 is_away run/clusters/gamma delta ||
    fail "delta is stopped, but its links are up"
missed=$(($(rounds delta) + 3)) # delta still gets the messages in its queues
wait_rounds beta $((missed + 20))
within 60 gone "$missed" || fail "the updates of round $missed are still kept for delta"
kill -CONT "${stopped[@]}"
stopped=()
within 30 took delta || fail "delta took no snapshot"
sleep 0.2
kill -KILL "$(worker_of delta)" || true
wait_rounds delta $(($(rounds beta) + 5))
echo "delta away: at round $(rounds delta) again"

# Only the job folder of gamma is lost: its worker starts from step 0, until its agent has a
# snapshot.
lose_folder() { # WHEN
    kill -STOP "$(agent_of gamma)"
    stopped=("$(agent_of gamma)")
    kill -KILL "$(worker_of gamma)"
    rm -rf "$run"/clusters/gamma/jobs/*
    kill -CONT "${stopped[@]}"
    stopped=()
    within 30 took gamma || fail "gamma took no snapshot after its job folder was lost$1"
    wait_rounds gamma $(($(rounds beta) + 5))
    echo "job folder of gamma lost$1: at round $(rounds gamma) again"
}
lose_folder ''

# Its whole disk is lost: only its keys remain.
kill -STOP "$nebula_pid" # so that it does not restart the agent at once
stopped=("$nebula_pid")
kill -KILL "$(agent_of gamma)" "$(worker_of gamma)"
rm -rf "$run/clusters/gamma/"{ledger.db{,-wal,-shm},streams.db{,-wal,-shm},blobs,jobs}
kill -CONT "$nebula_pid"
stopped=()
within 30 took gamma || fail "gamma took no snapshot after its disk was lost"
wait_rounds gamma $(($(rounds beta) + 5))
echo "disk of gamma lost: at round $(rounds gamma) again"
lose_folder ' with a ledger that began from a snapshot'

kill -INT "$pid"
wait "$pid" || true
pid=
round_digests_equal "$run"
for name in beta gamma delta; do
    ! log_of "$name" | has 'no labels for' || fail "$name had no labels"
done
jq -r -R 'fromjson? | select(.kind == "fault" and (.text | test("labels of steps"))) |
    "\(.cluster): \(.text)"' "$run/metrics.jsonl"
