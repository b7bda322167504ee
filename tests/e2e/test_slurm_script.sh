#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# configs/slurm/agent.sbatch: an agent that ends because of the time limit or a preemption is
# requeued. It is not requeued if its job is cancelled or if it failed. If it may not be requeued
# (sbatch --no-requeue), the job does not look successful. Scripts replace the agent and Slurm's
# commands.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
mkdir "$T/bin"
cat >"$T/bin/nebula" <<SH
#!/bin/sh
[ ! -e "$T/fails" ] || exit 1
trap "exit 3" TERM
: >"$T/up"
for i in \$(seq 300); do sleep 0.1; done
SH
printf '#!/bin/sh\ncat "%s/state"\n' "$T" >"$T/bin/squeue"
printf '#!/bin/sh\necho "$@" >>"%s/scontrol"\n[ ! -e "%s/held" ]\n' "$T" "$T" >"$T/bin/scontrol"
chmod +x "$T"/bin/*
ended() { # STATE WANTED_STATUS WANTED_SCONTROL: sends SIGTERM to the script once its agent is up
    local rc=0 pid i
    rm -f "$T/up" "$T/scontrol"
    : >"$T/scontrol"
    printf '%s' "$1" >"$T/state"
    PATH=$T/bin:$PATH SLURM_JOB_ID=7 bash "${SOURCE:?}/configs/slurm/agent.sbatch" & pid=$!
    for ((i = 0; i < 400; i++)); do
        [[ -e $T/up || -e $T/fails ]] && break
        sleep 0.1
    done
    [[ -e $T/fails ]] || kill -TERM "$pid"
    wait "$pid" || rc=$?
    [[ $rc == "$2" && $(cat "$T/scontrol") == "$3" ]] || {
        echo "$1: exit status $rc, scontrol got '$(cat "$T/scontrol")'"
        exit 1
    }
}
ended RUNNING 0 'requeue 7'
for ((k = 0; k < 20; k++)); do # at every moment of the start
    : >"$T/up" >"$T/scontrol"
    PATH=$T/bin:$PATH SLURM_JOB_ID=7 bash "$SOURCE/configs/slurm/agent.sbatch" & pid=$!
    # Waits until the script has set its trap. Before its exec the child has the traps of this test.
    until { grep -qa agent.sbatch "/proc/$pid/cmdline" &&
        [[ $(awk '/^SigCgt/ { print $2 }' "/proc/$pid/status") =~ [4-7c-f]...$ ]]; } ||
        ! kill -0 "$pid"; do
        :
    done
    sleep "$(awk -v k="$k" 'BEGIN { print k / 2000 }')"
    kill -TERM "$pid"
    rc=0
    wait "$pid" || rc=$?
    [[ $rc == 0 && $(cat "$T/scontrol") == 'requeue 7' ]] || {
        echo "SIGTERM at the start: exit status $rc, scontrol got '$(cat "$T/scontrol")'"
        exit 1
    }
done
ended PREEMPTED 0 'requeue 7'
ended CANCELLED 3 ''
ended COMPLETING 3 ''
ended '' 3 '' # the job is already gone
: >"$T/held"
ended RUNNING 3 'requeue 7'
: >"$T/fails"
ended RUNNING 1 ''
echo "requeued when Slurm ends it, not when its user does"
