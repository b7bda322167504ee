#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_comm.c over NCCL with 1, 2 and 4 ranks. With fewer GPUs than ranks, the ranks share
# them. NCCL refuses two ranks of one host on a device, so each rank claims its own host
# (NCCL_HOSTID). If $EMULATED_NCCL is set, it replaces NCCL, and there is one GPU.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

need_mpi
suite=$BUILD/tests/conform_comm
if [[ -n ${EMULATED_NCCL:-} ]]; then
    gpus=1
    mkdir "$work/bin" # the program looks for its objects beside itself
    cp "$suite" "$BUILD/libnebula_mpi.so" "$work/bin/"
    cp "$EMULATED_NCCL" "$work/bin/libnebula_nccl.so"
    suite=$work/bin/conform_comm
    # The emulation refuses this too: two ranks without their own host names get an error, and
    # neither hangs.
    if limit=120 ranks 2 "$suite" nccl 0 >"$work/out" 2>&1; then
        echo "two ranks of one host have one device"; exit 1
    fi
    (($(grep -c "start failed on rank [01] of 2: .*Duplicate GPU" "$work/out") == 2)) ||
        { cat "$work/out"; echo "no reason"; exit 1; }
else
    [[ -e $BUILD/libnebula_nccl.so ]] ||
        { echo "skipped: this build has no NCCL (set NCCL_HOME, then build again)"; exit 77; }
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
    ((gpus)) || { echo "skipped: no GPU on this machine"; exit 77; }
fi
cat >"$work/rank" <<'EOF'
#!/bin/sh
# GPUS RANKS SUITE
r=$OMPI_COMM_WORLD_RANK
[ "$1" -ge "$2" ] || export NCCL_HOSTID="nebula-$r"
exec "$3" nccl $((r % $1))
EOF
chmod +x "$work/rank"
for n in 1 2 4; do
    limit=120 ranks "$n" "$work/rank" "$gpus" "$n" "$suite" >"$work/out" 2>&1 || {
        cat "$work/out"
        echo "conform_comm failed over NCCL with $n ranks on $gpus GPUs"
        exit 1
    }
    for ((r = 0; r < n; r++)); do
        grep -q "^nccl: rank $r of $n$" "$work/out" ||
            { cat "$work/out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks: $(grep -o '\[  PASSED  \] [0-9]* test' "$work/out" | sort | uniq -c | xargs)"
done
