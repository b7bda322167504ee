#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training does not depend on the mesh beyond rounding: the same 20 steps on one rank and on every
# mesh of up to 8 ranks. A loss may differ by a factor of 1e-4 from that of one rank, the first by
# 1e-6, gradient norms by 1e-3.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_mpi
start=$SECONDS
limit=200 # a busy machine: every collective of a step may wait for its turn on a processor

# Training must learn: otherwise equal losses show little.
timeout 600 "$BUILD/mesh_train" 0 0 0 >"$work/one"
awk 'NR == 1 { first = $2 } END { if ($2 > 0.6 * first) {
    print "loss only went from " first " to " $2; exit 1 } }' "$work/one"
# A mesh of one rank equals one rank, bit for bit.
timeout 600 "$BUILD/mesh_train" 1 1 1 | cmp - "$work/one"

# Over TCP, where waiting ranks sleep. Over MPI they poll, and a step takes three times as long with
# several ranks on a processor, so fewer meshes make fewer steps. With two ranks, sums have only one
# order, so the bits are equal.
launcher=socket meshes "steps=20" 1x1x1 2x1x1 4x1x1 1x1x2 1x1x4 1x2x1 1x4x1 2x1x2 2x2x1 1x2x2 2x2x2
meshes "steps=6" 1x1x1 4x1x1 1x1x4 1x4x1 2x2x2
for mesh in "2 1 1" "1 1 2" "1 2 1"; do
    for launcher in mpi socket; do
        # shellcheck disable=SC2086
        ranks 2 "$BUILD/mesh_train" $mesh steps=6 >"$work/$launcher"
    done
    launcher=mpi
    same "$work/mpi" "$work/socket" "mesh $mesh: MPI and TCP give different bits"
done
# While one rank is busy elsewhere, the others sleep: in 3 s they use less than a third of one
# processor.
TIMEFORMAT='%U %S'
polls=1 # whether the ranks themselves sleep
cpu_s() { # PAUSE_MS
    {
        time ranks 2 "$BUILD/mesh_train" 2 1 1 group=1 steps=2 pause="$1" >"$work/out" 2>"$work/err"
    } 2>&1 | awk '{ print $1 + $2 }'
}
for launcher in mpi socket; do
    awk -v a="$(cpu_s 0)" -v b="$(cpu_s 3000)" 'BEGIN {
        if (b - a <= 1) exit 0
        print "ranks that wait for 3 s took " b - a " s of processor time"
        exit 1 }'
done
echo "all meshes agree, $((SECONDS - start)) s"
