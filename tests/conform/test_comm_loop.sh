#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test_comm.c over the send and receive of an attached loop, between 1, 2, 4 and 7 processes.
set -euo pipefail
for n in 1 2 4 7; do
    out=$("$BUILD/tests/conform_comm" loop "$n" 2>&1) || {
        echo "$out"
        echo "conform_comm failed over a loop's ranks with $n processes"
        exit 1
    }
    for ((r = 0; r < n; r++)); do
        grep -q "^loop: rank $r of $n$" <<<"$out" ||
            { echo "$out"; echo "rank $r of $n did not run"; exit 1; }
    done
    echo "$n ranks: $(grep -o '\[  PASSED  \] [0-9]* test' <<<"$out" | sort | uniq -c | xargs)"
done
