#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_comm.c over TCP with 1, 2, 4 and 7 ranks on this machine.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

launcher=socket
for n in 1 2 4 7; do
    ranks "$n" "$BUILD/tests/conform_comm" socket >"$work/out" 2>&1 || {
        cat "$work/out"
        echo "conform_comm failed over TCP with $n ranks"
        exit 1
    }
    # Every rank has run the full suite, in a world of the right size.
    for ((r = 0; r < n; r++)); do
        grep -q "^socket: rank $r of $n$" "$work/out" ||
            { cat "$work/out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks: $(grep -o '\[  PASSED  \] [0-9]* test' "$work/out" | sort | uniq -c | xargs)"
done
