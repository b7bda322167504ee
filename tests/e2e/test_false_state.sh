#!/usr/bin/env bash
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

for late in "" ,snapshot.late@b:1; do
    run=$T/run${late:+-late}
    # c has none the first time that it is asked: whoever is nearer, a's comes first
    export NEBULA_FAULT=worker.step:+8,snapshot.lie@a:*,snapshot.open@c:1$late
    timeout 140 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$run" >"$run.log" 2>&1 &
    pid=$!
    nebula_pid=$(started_by "$pid")

    wait_rounds b 12
    kill -STOP "$nebula_pid" # so that its agent is not started again at once
    stopped=$nebula_pid
    kill -KILL "$(agent_of b)" "$(worker_of b)"
    rm -rf "$run/clusters/b/"{ledger.db,ledger.db-wal,ledger.db-shm,blobs,jobs}
    kill -CONT "$nebula_pid"
    stopped=
    before=$(rounds a)
    within 60 said "the state that a gave is not what the others have: it is dropped, and a is not asked again" ||
        fail "nobody says that the state of a is false: $(tail -n 5 "$run/clusters/b/agent.log")"
    [[ ! $late ]] || said "nobody but a could be asked" || fail "b did not begin before it was known"
    wait_rounds b $((before + 10))
    said "a snapshot is here" || fail "b is back without a snapshot"
    ! said "the state that c gave" || fail "c is taken for a liar: $(grep "that c gave" "$run/clusters/b/agent.log")"

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
