#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of three members loses its disk while its update waits for that of a slow member. The member
# is back and trains when the update of its previous incarnation is committed. It takes over this
# update, continues after the steps in it, and does not repeat them.
. "$(dirname "$0")/lib.sh"
make_corpus
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()

make_job "$T/job.yaml" "grace_s: 600, commit_all: false"
sed -i -e "s/steps: 60/steps: 3000/; s/interval: 10/interval: 500/" "$T/job.yaml"
tiny "$T/job.yaml"
pace 4
clusters "$T/job.yaml" a b c
run=$T/run
rounds() { largest "$run" round round "$1" -1; } # CLUSTER
wait_until() { # WHAT COMMAND…
    local end=$((SECONDS + 240)) what=$1
    shift
    until "$@"; do
        kill -0 "$pid" 2>/dev/null || fail "the run ended before: $what"
        ((SECONDS < end)) || fail "no success in time: $what"
        sleep 0.1
    done
}
reached() { (($(rounds "$1") >= $2)); }
logged() { has "$1" "$run"/clusters/b/jobs/*/worker.log; }
waits() { # CLUSTER: has sent its update and waits at the end of an interval
    local at before
    before=$(steps_done "$run" "$1")
    sleep 1
    at=$(steps_done "$run" "$1")
    ((at > 0 && at == before && at % 500 == 0))
}
saved_both() {
    (($(largest "$run" checkpoint step a 0) > 1000 && $(largest "$run" checkpoint step c 0) > 1000))
}
new_worker() { [[ $(worker_of b) ]] && logged "b: fragment 0 taken over from a snapshot"; }

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
pid=$!
nebula_pid=$(started_by "$pid")

wait_until "a second round" reached b 1
# A snapshot must come from a checkpoint after this round.
wait_until "checkpoints behind it" saved_both
slow=$(worker_of c)
kill -STOP "$slow"
stopped=("$slow")
wait_until "a waits for the slow one" waits a
wait_until "b waits for the slow one" waits b
sent=$(steps_done "$run" b) round=$(rounds a)

kill -STOP "$nebula_pid" # so that it does not restart b's agent at once
stopped+=("$nebula_pid")
kill -KILL "$(agent_of b)" "$(worker_of b)"
rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
kill -CONT "$nebula_pid"
wait_until "b takes over a snapshot" new_worker
late=$(worker_of b)
kill -STOP "$late"
stopped=("$slow" "$late")
(($(rounds a) == round)) || fail "round $(rounds a) is already committed; it was $round"
kill -CONT "$slow"
wait_until "the commit" reached a $((round + 1))
kill -CONT "$late"
stopped=()
wait_until "b takes over the update of its previous incarnation" logged \
    "an update that this cluster sent before it lost its disk is committed"
wait "$pid" || fail "the run failed"
digests_equal "$run"
round_digests_equal "$run"
ledgers_verify "$run" a b c
skipped=$(summary '.clusters[] | select(.name == "b") | .lost_steps' "$run")
# b may repeat the steps that it made before it was stopped, but not the whole interval of 500.
((skipped <= sent && skipped > sent - 400)) ||
    fail "b made $((3000 - skipped)) steps after its loss, but $sent of 3000 were sent before"
grep -oh 'an update that this cluster sent .*' "$run"/clusters/b/jobs/*/worker.log
echo "$((3000 - skipped)) steps made after the loss, $sent sent before it; digests equal"
