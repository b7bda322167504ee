#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula ranks: the variables of each rank, which rank reads the standard input, and that ranks end
# together: when one fails, when the launcher gets SIGTERM or SIGUSR1, and when the launcher is
# killed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
nebula=$BUILD/nebula
mark=87654.$$ # marks the sleep processes of this test
left() { pgrep -f "^sleep $mark" || true; }
gone() { # WHEN: all of them end
    local i
    for ((i = 0; i < 600; i++)); do
        [[ -z $(left) ]] && return
        sleep 0.1
    done
    echo "$1 these remain: $(left)"
    exit 1
}

# The variables of another launcher must not reach the ranks.
export SLURM_LOCALID=5 SLURM_PROCID=5 OMPI_COMM_WORLD_LOCAL_RANK=6 MASTER_ADDR=192.0.2.1 RANK=9
# shellcheck disable=SC2016
timeout 600 "$nebula" ranks 3 sh -c 'x=; read -r x
    other="${SLURM_LOCALID-no} ${SLURM_PROCID-no} ${OMPI_COMM_WORLD_LOCAL_RANK-no}"
    own="$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR"
    listens=${NEBULA_RANKS_LISTENER:+listens,}
    echo "$own, ${#NEBULA_RANKS_TOKEN}, $other, $listens reads \"$x\""
    echo "$NEBULA_RANKS_TOKEN $MASTER_PORT" >>"$0"' "$work/meet" <<<hello | sort >"$work/out"
diff "$work/out" - <<'WANT' || { echo "the ranks have other variables"; exit 1; }
0 of 3, 0 of 3 at 127.0.0.1, 64, no no no, listens, reads "hello"
1 of 3, 1 of 3 at 127.0.0.1, 64, no no no,  reads ""
2 of 3, 2 of 3 at 127.0.0.1, 64, no no no,  reads ""
WANT
[[ $(sort -u "$work/meet" | wc -l) == 1 ]] || {
    echo "the ranks have different tokens or ports: $(cat "$work/meet")"
    exit 1
}
timeout 600 "$nebula" ranks 1 sh -c 'echo $NEBULA_RANKS_TOKEN' >"$work/other"
! grep -q "$(cat "$work/other")" "$work/meet" || { echo "a second run has the same token"; exit 1; }

# Starts ranks as torchrun does, with its variables. Without a token, the error names what is
# missing.
rank() { # RANK [VARIABLE=VALUE]
    env -u SLURM_LOCALID -u SLURM_PROCID -u OMPI_COMM_WORLD_LOCAL_RANK \
        RANK="$1" LOCAL_RANK="$1" WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "${@:2}" timeout 600 "$mesh_train" 2 1 1 steps=2
}
port=$(. "$(dirname "$0")/../e2e/lib.sh" && ten_ports)
rc=0
rank 0 >"$work/one" 2>&1 || rc=$?
[[ $rc != 0 ]] && grep -q 'NEBULA_RANKS_TOKEN is not set' "$work/one" || {
    echo "exit status $rc without a token: $(cat "$work/one")"
    exit 1
}
token=NEBULA_RANKS_TOKEN=$(printf '7%.0s' {1..64})
rank 1 "$token" >"$work/one" 2>&1 &
rank 0 "$token" >"$work/out" 2>&1 || {
    echo "rank 0 with a token: $(cat "$work/out" "$work/one")"
    exit 1
}
wait $! || { echo "rank 1 with a token: $(cat "$work/one")"; exit 1; }
(($(grep -c '^[0-9]' "$work/out") >= 2)) ||
    { echo "the ranks made no steps: $(cat "$work/out")"; exit 1; }

rc=0
# shellcheck disable=SC2016
timeout 600 "$nebula" ranks 3 sh \
    -c "[ \$RANK != 1 ] || exit 7; exec sleep $mark" 2>"$work/err" || rc=$?
[[ $rc == 7 ]] || { echo "exit status $rc, a rank had 7"; exit 1; }
grep -q 'rank 1 of 3 ended (exit status 7)' "$work/err" || {
    echo "the failed rank is not reported: $(cat "$work/err")"
    exit 1
}
gone "after a failed rank"
rc=0
timeout 600 "$nebula" ranks 2 "$work/no-such-program" 2>/dev/null || rc=$?
[[ $rc == 127 ]] || { echo "exit status $rc without a program"; exit 1; }

two() { # PROGRAM of the ranks, which end as a sleep; sets $pid, the launcher
    local i
    "$nebula" ranks 2 "$@" &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        (($(left | wc -l) == 2)) && return
        sleep 0.1
    done
    echo "the ranks do not start"
    exit 1
}
for signal in TERM KILL; do
    two sleep "$mark"
    kill -"$signal" "$pid"
    wait "$pid" 2>/dev/null && { echo "after SIG$signal the launcher succeeded"; exit 1; }
    gone "after SIG$signal"
done
# Ranks ignore SIGTERM, and one of them is stopped. On SIGUSR1 the launcher still ends, after it has
# killed them.
two sh -c "trap '' TERM; exec sleep $mark"
kill -STOP "$(left | head -n 1)"
kill -USR1 "$pid"
rc=0
wait "$pid" || rc=$?
[[ $rc == 137 && -z $(left) ]] || { echo "killed: exit status $rc, these remain: $(left)"; exit 1; }
echo "ranks get their variables and end together"
