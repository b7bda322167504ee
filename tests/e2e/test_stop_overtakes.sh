#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# There are three agents. Gamma is away when alpha submits a job and beta stops it. Gamma gets the
# stop from beta first, and later the job from alpha's outbox. The job must not run at gamma. A
# resume continues it at all three.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
clusters "$T/job.yaml" alpha beta gamma
sed -i 's/steps: 60/steps: 1000000/' "$T/job.yaml"
light "$T/job.yaml"
pace 20
port=$(ten_ports)
declare -A pid at=([alpha]=0 [beta]=1 [gamma]=2) id
clean_up() {
    [[ ! ${run:-} ]] || end_now "$run"
    for p in "${pid[@]}"; do kill -INT "$p" 2>/dev/null || true; done
    wait
}
agent() {
    "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$((port + at[$1]))" 2>>"$T/$1.log" &
    pid[$1]=$!
}
end() { kill -INT "${pid[$1]}"; wait "${pid[$1]}" || true; unset "pid[$1]"; }
state() { "$nebula" jobs --home "$T/$1" --json 2>/dev/null | jq -r '.[0].state'; }
is() { [[ $(state "$1") == "$2" ]]; }

for s in alpha beta gamma; do
    id[$s]=$("$nebula" id --home "$T/$s" --name "$s" 2>/dev/null) || fail "nebula id failed"
done
for s in alpha beta gamma; do
    for o in alpha beta gamma; do
        [[ $o == "$s" ]] || "$nebula" peer add "${id[$o]}" "127.0.0.1:$((port + at[$o]))" \
            --home "$T/$s" >/dev/null || fail "peer add failed"
    done
done
agent alpha
agent beta
within 20 link_up alpha beta || fail "alpha has no link to beta"
"$nebula" pretrain "$T/job.yaml" --home "$T/alpha" --out "$T/run" >"$T/run.log" 2>&1 &
run=$!
within 30 is beta running || fail "the job does not run at beta"
job=$("$nebula" jobs --home "$T/beta" --json | jq -r '.[0].id')
"$nebula" stop "$job" --home "$T/beta" >/dev/null || fail "nebula stop failed"
within 60 is alpha stopped && within 60 is beta stopped ||
    fail "the job is not stopped: $(state alpha) at alpha, $(state beta) at beta"
end_now "$run"
run=
end alpha
agent gamma
within 20 link_up gamma beta || fail "gamma has no link to beta"
stop_arrived() {
    "$nebula" ledger show "$T/beta" --json | jq -e '.outbox.gamma == null' >/dev/null
}
within 20 stop_arrived || fail "beta still keeps the stop for gamma"
end beta
agent alpha
within 20 link_up gamma alpha || fail "gamma has no link to alpha"
within 30 is gamma stopped || fail "gamma does not stop a job whose stop came first: $(state gamma)"
agent beta
within 20 link_up gamma beta || fail "gamma has no link to beta after beta's restart"
"$nebula" resume "$job" --home "$T/alpha" >/dev/null || fail "nebula resume failed"
for s in alpha beta gamma; do
    within 30 is "$s" running || fail "the job is not resumed at $s: $(state "$s")"
done
echo "a stop that overtakes its job stops it"
