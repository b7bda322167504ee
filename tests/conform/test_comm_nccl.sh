#!/usr/bin/env bash
# The suite of test_comm.c over NCCL: one rank a GPU of this machine, up to 4.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

need_mpi
[[ -e $BUILD/libnebula_nccl.so ]] || { echo "skipped: this build has no NCCL (set NCCL_HOME, then build again)"; exit 77; }
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
((gpus)) || { echo "skipped: no GPU on this machine"; exit 77; }
for n in 1 2 4; do
    ((n <= gpus)) || continue
    limit=120 ranks "$n" "$BUILD/tests/conform_comm" nccl >"$work/out" 2>&1 || {
        cat "$work/out"
        echo "conform_comm failed over NCCL with $n ranks"
        exit 1
    }
    for ((r = 0; r < n; r++)); do
        grep -q "^nccl: rank $r of $n$" "$work/out" || { cat "$work/out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks: $(grep -o '\[  PASSED  \] [0-9]* test' "$work/out" | sort | uniq -c | xargs)"
done
