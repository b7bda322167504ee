#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member lost its disk, and the cluster that it asks first gives false parameters, with the digest of those: while it trains on with
# the true ones. The others say what they have, so the state is dropped, the run says who gave it, and the next one's is taken. Also where
# they say it after the worker had begun with it, because nobody said anything for so long.
. "$(dirname "$0")/lib.sh"
make_corpus
clean_up() { kill -CONT ${stopped:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }

make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e "s/steps: 60/steps: 1000/" "$T/job.yaml"
light "$T/job.yaml"
clusters "$T/job.yaml" a b c
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUNDS
    local i
    for ((i = 0; i < 900; i++)); do
        (($(rounds "$1") >= $2)) && return 0
        kill -0 "$pid" 2>/dev/null || fail "the run ended before round $2 of $1: $(tail -n 3 "$run.log")"
        sleep 0.1
    done
    fail "no round $2 of $1: $(tail -n 5 "$run.log")"
}
said() { has "$1" "$run/clusters/b/agent.log"; }

merged() { (($(cat "$run"/clusters/a/jobs/*/merges.log | wc -l) >= $1)); } # ROUNDS: by a, in its own log
begin() { # FAULTS ROUNDS: a run in which b loses its disk, and is away until a has merged so many
    # c has none the first time that it is asked: whoever is nearer, a's comes first
    export NEBULA_FAULT=worker.step:+8,snapshot.open@c:1,$1
    timeout 140 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
    pid=$!
    nebula_pid=$(started_by "$pid")
    wait_rounds b 12
    kill -STOP "$nebula_pid" # so that its agent is not started again at once
    stopped=$nebula_pid
    kill -KILL "$(agent_of b)" "$(worker_of b)"
    rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
    within 60 merged "$2" || fail "no round $2 of a"
    kill -CONT "$nebula_pid"
    stopped=
    before=$(rounds a)
}

for late in "" ,snapshot.late@b:1; do
    run=$T/run${late:+-late}
    begin "snapshot.lie@a:*$late" 0
    within 60 said "the state that a gave is not what the others have: it is dropped, and a is not asked again" ||
        fail "nobody says that the state of a is false: $(tail -n 5 "$run/clusters/b/agent.log")"
    [[ ! $late ]] || said "nobody but a could be asked" || fail "b did not begin before it was known"
    wait_rounds b $((before + 10))
    said "a snapshot is here" || fail "b is back without a snapshot"
    ! said "the state that c gave" || fail "c is taken for a byzantine: $(grep "that c gave" "$run/clusters/b/agent.log")"

    wait "$pid" || fail "run failed: $(tail -n 5 "$run.log")"
    pid=
    digests_equal "$run"
    round_digests_equal "$run"
    ledgers_verify "$run" a b c
    [[ $(summary '[.clusters[].divergences] | add' "$run") == 0 ]] ||
        fail "somebody computed its parameters again: $(summary '[.clusters[] | "\(.name) \(.divergences)"] | join(", ")' "$run")"
    has "the state that a gave" "$run/metrics.jsonl" || fail "who follows the job does not hear of it"
    echo "the false state of a was dropped${late:+ after b had begun with it}, that of c taken, digests equal"
done

# While b is away a's parameters change, which a itself takes for right: it is one against one, and b believes neither.
digests_may_differ=1
run=$T/run-diverged
begin worker.flip.a:40 50
within 60 said "the states of a, c differ, and nobody can tell which is right" || fail "b does not say it: $(tail -n 5 "$run/clusters/b/agent.log")"
! said "a snapshot is here" || fail "b has taken the state of one of two that differ"
end_now "$pid"
wait "$pid" 2>/dev/null || true
pid=
echo "of two that differ neither is believed"
