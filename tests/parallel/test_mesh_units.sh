#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A trainer whose ranks hold pieces of tensors: updates, digests and checkpoints do not depend on
# the number of ranks or on who holds what. A run on 4 ranks goes on with 2, and then with 8.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
launcher=socket
program=$BUILD/mesh_units

on() { # RANKS ARGS...
    local n=$1
    shift
    if ((n == 1)); then
        timeout 600 "$program" 0 0 0 "$@" 2>"$work/err"
    else
        ranks "$n" "$program" "$n" 1 1 "$@" 2>"$work/err"
    fi || {
        cat "$work/err" >&2
        echo "$n ranks ($*): failed" >&2
        exit 1
    }
}

# Two ranks differ by at most one unit (2^20 elements), or 5 % of a share.
even() { # RANKS WHAT
    awk -v n="$1" -v what="$2" '
        /^rank / { k++; most = $4 > most ? $4 : most; least = k == 1 || $4 < least ? $4 : least
                   all = $6 + 0; sum += $4 }
        END { if (k != n || sum != all || most - least > 1048576) {
                  print what ": " k " ranks own " sum " of " all ", " least " to " most; exit 1 } }
    ' "$work/err" || exit 1
}

on 1 rounds=6 codec=int8 save="$work/one" >"$work/want"
(($(wc -l <"$work/want") >= 14)) || { cat "$work/want"; echo "there are too few rounds"; exit 1; }
for hold in rows columns last; do
    on 4 rounds=6 codec=int8 save="$work/$hold" hold="$hold" >"$work/got"
    cmp "$work/want" "$work/got" || {
        diff "$work/want" "$work/got" | head -4
        echo "4 ranks, $hold: differs from one rank"
        exit 1
    }
    even 4 "4 ranks, $hold"
    (($(find "$work" -name "$hold.*.part" | wc -l) == 3)) ||
        { ls "$work"; echo "$hold: not every rank wrote a part"; exit 1; }
done
mkdir "$work/parts"
on 4 rounds=6 codec=int8 save="$work/carried" hold=columns carry="$work/parts" wave=300000 \
    >"$work/got"
cmp "$work/want" "$work/got" || {
    diff "$work/want" "$work/got" | head -4
    echo "4 ranks, each with its own parts of updates: differs from one rank"
    exit 1
}
# What passed through rank 0 would leave no part of a rank.
for r in 1 2 3; do
    [[ $(find "$work/parts" -name "*-$r" -size +9c | wc -l) -ge 2 ]] ||
        { ls -l "$work/parts"; echo "rank $r carried no parts"; exit 1; }
done
on 1 rounds=6 codec=int8 wave=300000 save="$work/waves" >"$work/got"
cmp "$work/want" "$work/got" || { echo "one rank: waves change the digests"; exit 1; }
echo "updates and digests are those of one rank"

# One rank without an end in between; then 4, 2 and 8 ranks, each from the checkpoint before.
on 1 first=6 rounds=2 load="$work/one" save="$work/one-b" >"$work/want"
on 1 first=8 rounds=2 load="$work/one-b" >>"$work/want"
for hold in rows columns; do
    on 2 first=6 rounds=2 hold="$hold" load="$work/$hold" save="$work/$hold-b" >"$work/got"
    on 8 first=8 rounds=2 hold="$hold" load="$work/$hold-b" >>"$work/got"
    cmp "$work/want" "$work/got" || {
        diff "$work/want" "$work/got" | head -4
        echo "$hold: from 4 ranks to 2 and 8 it differs from one rank"
        exit 1
    }
done
echo "4 ranks, then 2, then 8: the same as one rank"
