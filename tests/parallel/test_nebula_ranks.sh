#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula ranks: what each rank is told, who gets the standard input, and that ranks end together: when one fails, when the launcher is
# told to end, or to kill them, and when it is killed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
nebula=$BUILD/nebula
mark=87654.$$ # of this test's sleeps
left() { pgrep -f "^sleep $mark" || true; }
gone() { # within 15 s
    local i
    for ((i = 0; i < 150; i++)); do
        [[ -z $(left) ]] && return
        sleep 0.1
    done
    echo "$1: left are $(left)"
    exit 1
}

# Variables of another launcher are not theirs.
export SLURM_LOCALID=5 SLURM_PROCID=5 OMPI_COMM_WORLD_LOCAL_RANK=6 MASTER_ADDR=192.0.2.1 RANK=9
# shellcheck disable=SC2016
timeout 60 "$nebula" ranks 3 sh -c 'x=; read -r x
    echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR, ${#NEBULA_RANKS_TOKEN}, ${SLURM_LOCALID-no} ${SLURM_PROCID-no} ${OMPI_COMM_WORLD_LOCAL_RANK-no}, ${NEBULA_RANKS_LISTENER:+listens,} reads \"$x\""
    echo "$NEBULA_RANKS_TOKEN $MASTER_PORT" >>"$0"' "$work/meet" <<<hello | sort >"$work/out"
diff "$work/out" - <<'WANT' || { echo "ranks are told something else"; exit 1; }
0 of 3, 0 of 3 at 127.0.0.1, 64, no no no, listens, reads "hello"
1 of 3, 1 of 3 at 127.0.0.1, 64, no no no,  reads ""
2 of 3, 2 of 3 at 127.0.0.1, 64, no no no,  reads ""
WANT
[[ $(sort -u "$work/meet" | wc -l) == 1 ]] || { echo "ranks would not meet: $(cat "$work/meet")"; exit 1; }
timeout 60 "$nebula" ranks 1 sh -c 'echo $NEBULA_RANKS_TOKEN' >"$work/other"
! grep -q "$(cat "$work/other")" "$work/meet" || { echo "the secret is the same again"; exit 1; }

# As torchrun starts them: with its variables, without a secret, of which they say what is missing, and with one.
rank() { env -u SLURM_LOCALID -u SLURM_PROCID -u OMPI_COMM_WORLD_LOCAL_RANK RANK="$1" LOCAL_RANK="$1" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT="$port" "${@:2}" timeout 60 "$mesh_train" 2 1 1 steps=2; }
port=$(. "$(dirname "$0")/../e2e/lib.sh" && ten_ports)
rc=0
rank 0 >"$work/one" 2>&1 || rc=$?
[[ $rc != 0 ]] && grep -q 'NEBULA_RANKS_TOKEN is not set' "$work/one" || { echo "exit status $rc without a secret: $(cat "$work/one")"; exit 1; }
token=NEBULA_RANKS_TOKEN=$(printf '7%.0s' {1..64})
rank 1 "$token" >"$work/one" 2>&1 &
rank 0 "$token" >"$work/out" 2>&1 || { echo "with a secret: $(cat "$work/out" "$work/one")"; exit 1; }
wait $! || { echo "rank 1 with a secret: $(cat "$work/one")"; exit 1; }
(($(grep -c '^[0-9]' "$work/out") >= 2)) || { echo "no steps: $(cat "$work/out")"; exit 1; }

rc=0
# shellcheck disable=SC2016
timeout 60 "$nebula" ranks 3 sh -c "[ \$RANK != 1 ] || exit 7; exec sleep $mark" 2>"$work/err" || rc=$?
[[ $rc == 7 ]] || { echo "exit status $rc, a rank had 7"; exit 1; }
grep -q 'rank 1 of 3 ended (exit status 7)' "$work/err" || { echo "no word of the rank that failed: $(cat "$work/err")"; exit 1; }
gone "after a failed rank"
rc=0
timeout 60 "$nebula" ranks 2 "$work/no-such-program" 2>/dev/null || rc=$?
[[ $rc == 127 ]] || { echo "exit status $rc without a program"; exit 1; }

two() { # program of the ranks, which become sleeps: $pid is their launcher
    local i
    "$nebula" ranks 2 "$@" &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        (($(left | wc -l) == 2)) && return
        sleep 0.1
    done
    echo "ranks do not start"
    exit 1
}
for signal in TERM KILL; do
    two sleep "$mark"
    kill -"$signal" "$pid"
    wait "$pid" 2>/dev/null && { echo "SIG$signal is a success"; exit 1; }
    gone "after SIG$signal"
done
# An agent that puts others in their place: the launcher ends after them, however they take it.
two sh -c "trap '' TERM; exec sleep $mark"
kill -STOP "$(left | head -n 1)"
kill -USR1 "$pid"
rc=0
wait "$pid" || rc=$?
[[ $rc == 137 && -z $(left) ]] || { echo "killed: exit status $rc, left are $(left)"; exit 1; }
echo "ranks are told who they are, and end together"
