#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member lost its disk. The cluster that it asks first sends false parameters with a matching
# digest, but trains on with the true ones. The other clusters report their digests, so the member
# drops the state, the run names the sender, and the state of the next cluster is used. This also
# holds if the digests arrive after the worker has started from the state.
. "$(dirname "$0")/lib.sh"
make_corpus
clean_up() { kill -CONT "${stopped[@]}" 2>/dev/null || true; end_now ${pid:+"$pid"}; }
stopped=()

make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e "s/steps: 60/steps: 500/" "$T/job.yaml"
tiny "$T/job.yaml"
clusters "$T/job.yaml" a b c
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
reaches() { (($(rounds "$1") >= $2)) || ! kill -0 "$pid" 2>/dev/null; }
wait_rounds() { # CLUSTER ROUNDS
    within 60 reaches "$1" "$2" && (($(rounds "$1") >= $2)) || fail "$1 did not reach round $2"
}
said() { has "$1" "$run/clusters/b/agent.log"; }

# a has merged this number of rounds, by its own log.
merged() { (($(cat "$run"/clusters/a/jobs/*/merges.log | wc -l) >= $1)); }
begin() { # FAULTS ROUNDS: starts a run; b loses its disk and is away until a has merged ROUNDS
    # c has no snapshot when it is first asked, so a is asked first, whichever cluster is nearer.
    export NEBULA_FAULT=worker.step:+25,snapshot.open@c:1,$1
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
    pid=$!
    nebula_pid=$(started_by "$pid")
    wait_rounds b 12
    kill -STOP "$nebula_pid" # so that it does not restart the agent at once
    stopped=("$nebula_pid")
    kill -KILL "$(agent_of b)" "$(worker_of b)"
    rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
    within 60 merged "$2" || fail "a did not reach round $2"
    kill -CONT "$nebula_pid"
    # The others train on when b is back: the run must not end before.
    stopped=("$(worker_of a)" "$(worker_of c)")
    kill -STOP "${stopped[@]}"
    before=$(rounds a)
}
go_on() {
    kill -CONT "${stopped[@]}"
    stopped=()
}

for late in "" ,snapshot.late@b:1; do
    run=$T/run${late:+-late}
    begin "snapshot.lie@a:*$late" 0
    within 60 said \
        'the state that a gave is not what the others have: it is dropped, and a is not asked' ||
        fail "b does not report that the state of a is false"
    [[ ! $late ]] || said "nobody but a could be asked" ||
        fail "b did not start from the state before it was known to be false"
    within 60 said "a snapshot is here" || fail "b is back without a snapshot"
    go_on
    wait_rounds b $((before + 10))
    ! said "the state that c gave" ||
        fail "b takes c for Byzantine: $(grep "that c gave" "$run/clusters/b/agent.log")"

    wait "$pid" || fail "the run failed"
    pid=
    digests_equal "$run"
    round_digests_equal "$run"
    ledgers_verify "$run" a b c
    [[ $(summary '[.clusters[].divergences] | add' "$run") == 0 ]] ||
        fail "a cluster recomputed its parameters: $(summary '[.clusters[] |
        "\(.name) \(.divergences)"] | join(", ")' "$run")"
    has "the state that a gave" "$run/metrics.jsonl" ||
        fail "the metrics of the run do not report it"
    echo "the false state of a was dropped${late:+ after b started from it}, that of c used"
done

# While b is away, the parameters at a are changed, and a believes that they are right. One cluster
# stands against one, so b accepts neither state.
digests_may_differ=1
run=$T/run-diverged
begin worker.flip.a:24 34
within 60 said "the states of a, c differ, and nobody can tell which is right" ||
    fail "b does not report that the states differ"
! said "a snapshot is here" || fail "b took one of two states that differ"
end_now "$pid"
wait "$pid" 2>/dev/null || true
pid=
echo "of two states that differ, neither is used"
