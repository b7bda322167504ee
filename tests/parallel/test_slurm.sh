#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launcher: slurm with a real Slurm on one node, started here as root with its own configuration,
# ports and folders. Ranks are steps of the allocation, each with a log. A killed rank ends the
# step, and the run continues from its checkpoint to the same bits. Without an allocation there is
# an error.
source "$(dirname "$0")/../e2e/lib.sh"
[[ -e $BUILD/libnebula_mpi.so ]] ||
    skip "this build has no MPI (run configs/install-deps, then build again)"

make_corpus
job() { # FILE LAUNCHER
    make_job "$1"
    sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' \
        -e "s/{name: alpha,/{name: alpha, mesh: {dp: 1, tp: 2}, launcher: $2,/" "$1"
}
job "$T/slurm.yaml" slurm
if env -u SLURM_JOB_ID timeout 600 "$nebula" pretrain "$T/slurm.yaml" --local 2 \
    --out "$T/none" >"$T/none.log" 2>&1; then
    fail "launcher: slurm was accepted without an allocation"
fi
grep -rq 'not in a Slurm allocation' "$T/none.log" "$T/none" ||
    fail "the reason is missing: $(cat "$T/none.log")"
echo "without an allocation it is refused"

for p in slurmctld slurmd salloc srun; do
    command -v $p >/dev/null ||
        skip "the remaining part: there is no $p on this machine (configs/install-deps --peers)"
done
((EUID == 0)) || skip "the remaining part: slurmd needs root"
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader \
    OMPI_MCA_mpi_yield_when_idle=1

# ---- a Slurm of our own ----
host=$(hostname -s)
port=$(ten_ports)
mkdir -p "$T/slurm/spool" "$T/slurm/state"
export SLURM_CONF=$T/slurm/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=nebulatest
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/none
CryptoType=crypto/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SlurmctldPidFile=$T/slurm/ctld.pid
SlurmdPidFile=$T/slurm/d.pid
SlurmdSpoolDir=$T/slurm/spool
StateSaveLocation=$T/slurm/state
SlurmctldLogFile=$T/slurm/slurmctld.log
SlurmdLogFile=$T/slurm/slurmd.log
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=10:00 State=UP OverSubscribe=FORCE:4
CONF
sed -i '/^CryptoType/d' "$SLURM_CONF"
slurmctld -D -c -f "$SLURM_CONF" >"$T/slurm/ctld.out.log" 2>&1 & ctld=$!
slurmd -D -f "$SLURM_CONF" >"$T/slurm/d.out.log" 2>&1 & slurmd=$!
clean_up() {
    # shellcheck disable=SC2086 # several process ids
    kill ${agents:-} "$slurmd" "$ctld" 2>/dev/null || true
    wait "$slurmd" "$ctld" 2>/dev/null || true
}
for ((i = 0; i < 150; i++)); do
    [[ $(timeout 5 sinfo -h -o %T 2>/dev/null) == idle ]] && break
    kill -0 "$ctld" 2>/dev/null ||
        skip "slurmctld does not run here: $(tail -n 3 "$T/slurm/slurmctld.log")"
    kill -0 "$slurmd" 2>/dev/null ||
        skip "slurmd does not run here: $(tail -n 3 "$T/slurm/slurmd.log")"
    sleep 0.2
done
timeout 20 salloc -Q -n 2 srun --mpi=none true ||
    skip "this Slurm does not start steps: $(tail -n 3 "$T/slurm/slurmd.log")"

run() { # NAME FILE
    timeout 600 salloc -Q -n 2 "$nebula" pretrain "$T/$2.yaml" --local 2 --out "$T/$1" --steps 120 \
        --set sync.interval=20 \
        --set log_every=5 >"$T/$1.log" 2>&1
}
run whole slurm ||
    fail "the run with Slurm failed: $(tail -n 5 "$T/whole.log"; cat \
        "$T"/whole/clusters/alpha/jobs/*/*.log)"
digests_equal "$T/whole"
for rank in 0 1; do
    [[ -e $(echo "$T"/whole/clusters/alpha/jobs/*/rank-$rank.log) ]] ||
        fail "rank $rank has no log: $(ls "$T"/whole/clusters/alpha/jobs/*)"
done
grep -q "2 ranks: dp 1, pp 1, tp 2" "$T"/whole/clusters/alpha/jobs/*/rank-0.log ||
    fail "the worker has other ranks: $(cat "$T"/whole/clusters/alpha/jobs/*/rank-0.log)"
echo "ranks are steps of the allocation"

NEBULA_FAULT=worker.step:+40 run kill slurm & pid=$!
wait_step "$T/kill" 40 "$pid" alpha && within 20 saved "$T/kill" alpha ||
    fail "alpha has no checkpoint after step 40"
victim=$(pgrep -f "nebula worker $T/kill/clusters/alpha/.* --rank" | sort -n | tail -n 1)
[[ -n $victim ]] || fail "there is no rank of alpha"
kill -KILL "$victim"
wait "$pid" ||
    fail "the run with a killed rank failed: $(tail -n 5 "$T/kill.log"; cat \
        "$T"/kill/clusters/alpha/jobs/*/*.log)"
grep -q '"fault"' "$T/kill/metrics.jsonl" || fail "the killed rank was not reported"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' \
    "$T/kill") == "$(summary '.clusters[0].params_digest' "$T/whole")" ]] ||
    fail "the parameters differ after kill -9 of a rank"
went_on "$T/kill" alpha rank-0.log
echo "a killed rank ends the step, and the run continues to the same bits"

# An agent on the head node, outside of any allocation: with --workers, srun requests one.
a=$("$nebula" id --home "$T/a" --name alpha 2>/dev/null) &&
    b=$("$nebula" id --home "$T/b" --name beta 2>/dev/null) || fail "nebula id failed"
"$nebula" peer add "$b" - --home "$T/a" >/dev/null &&
    "$nebula" peer add "$a" "127.0.0.1:$((port + 2))" --home "$T/b" >/dev/null ||
    fail "peer add failed"
env -u SLURM_JOB_ID timeout 600 "$nebula" agent --home "$T/a" --listen "127.0.0.1:$((port + 2))" \
    --workers lo 2>>"$T/a.log" &
agents=$!
timeout 600 "$nebula" agent --home "$T/b" 2>>"$T/b.log" & agents+=" $!"
answers() { "$nebula" status --home "$T/a" >/dev/null 2>&1; }
within 20 answers || fail "the agent does not answer"
timeout 600 "$nebula" pretrain "$T/slurm.yaml" --home "$T/a" --out "$T/head" --steps 120 \
    --set sync.interval=20 --set log_every=5 >"$T/head.log" 2>&1 &
pid=$!
wait "$pid" ||
    fail "the run of agents outside of Slurm failed: $(tail -n 5 "$T/head.log"; cat \
        "$T"/a/jobs/*/*.log "$T/a.log")"
digests_equal "$T/head"
[[ $(summary '.clusters[0].params_digest' \
    "$T/head") == "$(summary '.clusters[0].params_digest' "$T/whole")" ]] ||
    fail "the parameters differ in an allocation of its own"
sed 's/tp: 2/tp: 1/' "$T/slurm.yaml" >"$T/single.yaml" # a single rank runs in an allocation too
timeout 600 "$nebula" pretrain "$T/single.yaml" --home "$T/a" --out "$T/single" \
    --steps 40 >"$T/single.log" 2>&1 || fail "the run of one rank failed"
digests_equal "$T/single"
(($(ls "$T"/a/jobs/*/rank-0.log | wc -l) == 2)) ||
    fail "a single rank was started beside the agent: $(ls "$T"/a/jobs/*)"
# shellcheck disable=SC2086 # two process ids
kill -INT $agents
echo "an agent outside of Slurm has its ranks in an allocation of their own"
