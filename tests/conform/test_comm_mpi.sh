#!/usr/bin/env bash
# The suite of test_comm.c over MPI with 1, 2 and 4 ranks on this machine.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

need_mpi
for n in 1 2 4; do
    ranks "$n" "$BUILD/tests/conform_comm" mpi >"$work/out" 2>&1 || {
        cat "$work/out"
        echo "conform_comm failed over MPI with $n ranks"
        exit 1
    }
    # Every rank has run the whole suite, and in a world of the right size.
    for ((r = 0; r < n; r++)); do
        grep -q "^mpi: rank $r of $n$" "$work/out" || { cat "$work/out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks: $(grep -o '\[  PASSED  \] [0-9]* test' "$work/out" | sort | uniq -c | xargs)"
done
