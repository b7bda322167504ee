#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_comm.c over MPI with 1, 2 and 4 ranks on this machine; again with an object that cuts
# messages and collectives after few bytes.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

need_mpi
suite() { # RANKS PROGRAM ARGS...
    local n=$1 r
    ranks "$@" >"$work/out" 2>&1 || {
        cat "$work/out"
        echo "conform_comm failed over MPI with $n ranks (${*:3})"
        exit 1
    }
    # Every rank has run the full suite, in a world of the right size.
    for ((r = 0; r < n; r++)); do
        grep -q "^mpi: rank $r of $n" "$work/out" ||
            { cat "$work/out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks (${*:3}): $(grep -o '\[  PASSED  \] [0-9]* test' "$work/out" | sort | uniq -c |
        xargs)"
}
for n in 1 2 4; do
    suite "$n" "$BUILD/tests/conform_comm" mpi
done
mpi_pieces
cp "$BUILD/tests/conform_comm" "$work/bin/"
for n in 2 3; do
    suite "$n" "$work/bin/conform_comm" mpi pieces
done
