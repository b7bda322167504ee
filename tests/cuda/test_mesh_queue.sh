#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Collectives of tensor-parallel ranks are in the device's queue. The host waits as often as with
# one rank, and equally often in every step. It enqueues the ops of one rank, the collectives and
# their helpers, and nothing else. An absent rank blocks the others only up to the time limit, with
# one message, wherever they wait. (In all tests of meshes, a wait without a limit behind a
# collective ends the emulator.)
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

emulated
launcher=socket # starts sooner, and its ranks sleep where those of MPI poll; test_mesh.sh has both

# waits MESH OPTIONS...: waits of rank 0's host
waits() {
    local m=$1
    shift
    EMU_COUNT=1 mesh "$m" device=fp32 seq=2 graphs=off "$@" >/dev/null 2>"$work/err" ||
        { cat "$work/err" >&2; exit 1; }
    sed -n 's/.*emulated device of rank 0: the host has waited \([0-9]*\) times.*/\1/p' "$work/err"
}
for options in "" "bias=1 recompute=1" trainable=lora; do
    for late in 0 1; do
        [[ $late == 1 || ! $options ]] || continue # the count is the same, so one test is enough
        export EMU_LATE=$late
        # shellcheck disable=SC2086
        few=$(waits 1x1x2 steps=1 $options)
        # shellcheck disable=SC2086
        many=$(waits 1x1x2 steps=3 $options)
        # shellcheck disable=SC2086
        one=$(waits 1x1x1 steps=3 $options)
        ((few > 0 && many - few <= 2 * 10)) ||
            { echo "two ranks, $options: $few waits with one step, $many with three:" \
                "more than ten a step of eight micro-batches"
            exit 1; }
        ((many <= one + 6)) ||
            { echo "two ranks, $options: $many waits, one rank has $one"; exit 1; }
    done
    echo "$options: $many waits, one rank $one"
done

# Replicas of tensor-parallel ranks reduce some of a step's eight pieces of the gradients while
# backward still runs.
beside() {
    EMU_LATE=1 EMU_COUNT=1 mesh "$@" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
    sed -n 's/.*emulated NCCL of rank 0: \([0-9]*\) operations began beside kernels.*/\1/p' \
        "$work/err"
}
n=$(beside 2x1x2 device=fp32 seq=8 graphs=off steps=3)
((n >= 3)) || # none if they began after backward; the number depends on the processors
    { echo "two replicas of two ranks: in three steps $n reductions began while backward ran"
    exit 1; }
echo "$n reductions began while backward ran"
# In a mesh of replicas only, they reduce in a separate stream, without kernels. The host waits for
# the mark of each piece while backward still has kernels behind it. The same holds for each of a
# step's four micro-batches.
early() {
    EMU_LATE=1 EMU_COUNT=1 mesh 2x1x1 device=fp32 seq=8 graphs=off "$@" >/dev/null 2>"$work/err" ||
        { cat "$work/err" >&2; exit 1; }
    local waited='emulated device of rank 0: the host has waited .* times'
    sed -n "s/.*$waited, \([0-9]*\) with kernels behind.*/\1/p" "$work/err"
}
few=$(early steps=1)
many=$(early steps=3)
n=$((many - few - 2 * 4))
((few > 0 && n >= 2 * 5)) ||
    { echo "two replicas: in two steps $n of 16 pieces were there while backward ran"; exit 1; }
echo "$n of 16 pieces of two replicas were there while backward ran"

# A rank is absent in the first step, where others wait for it, or in a later one.
# They wait so long that a busy machine makes no rank late that is there; all cases at once.
absent() { # MESH STEP
    local out=$work/$1-$2 status=0
    limit=300 mesh "$1" device=fp32 seq=2 graphs=off steps=3 stay="$2" patience=10000 >"$out" \
        2>"$out.err" || status=$?
    ((status && status != 124 && status != 137)) ||
        { cat "$out.err"; echo "$1: a rank stayed away, and nobody minded: $status"; return 1; }
    operation='NCCL: (reduce-scatter|all-gather|all-reduce|reduce) on rank [0-9] of 2'
    grep -qE "$operation has not ended after 10000 ms" "$out.err" ||
        { cat "$out.err"; echo "$1: no reason"; return 1; }
    (($(wc -l <"$out") == $2)) ||
        { cat "$out"; echo "$1: steps that others had no part in"; return 1; }
}
cases=()
for stay in 0 1; do
    for mesh in 1x1x2 2x1x2; do absent $mesh $stay & cases+=($!); done
done
for one in "${cases[@]}"; do wait "$one"; done
echo "a rank that stays away is noticed in time"
