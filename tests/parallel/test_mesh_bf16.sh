#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Products in bf16 on meshes of processors, as in test_mesh.sh. A sum over ranks in another order
# may round an operand to the other side, and products with fewer than 16 rows on a rank are in
# fp32. So a loss may differ by 1 %.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

export NEBULA_BF16=plain # works on any machine
launcher=socket
limit=200
loss_bound=1e-2

"$mesh_train" 0 0 0 steps=30 products=bf16 >"$work/bf16"
"$mesh_train" 0 0 0 steps=30 >"$work/fp32"
! cmp -s "$work/bf16" "$work/fp32" || { echo "products=bf16 changes nothing"; exit 1; }
losses_agree "bf16 beside fp32" 0.01 "$work/fp32" "$work/bf16"
"$mesh_train" 1 1 1 steps=30 products=bf16 | cmp - "$work/bf16"
# Recomputed blocks give the same values.
"$mesh_train" 0 0 0 steps=30 products=bf16 recompute=1 | cmp - "$work/bf16"

meshes "products=bf16 steps=12" 2x1x1 1x1x2 1x2x1 2x2x2
meshes "products=bf16 steps=12 trainable=lora recompute=1" 1x2x1 2x1x2
# Rank 0 passes the skipped gradient to the others.
meshes "products=bf16 steps=8 group=1 nudge=1 ignore=1" 1x1x1 2x1x1 1x2x1 2x1x2
if NEBULA_BF16='' NEBULA_ISA=sse2 ranks 2 "$mesh_train" 2 1 1 products=bf16 group=1 steps=2 \
    >"$work/out" 2>"$work/err"; then
    echo "bf16 was accepted on a processor without it"
    exit 1
fi
grep -q 'precision bf16 on processors: .*set precision: fp32' "$work/err" || {
    cat "$work/err"
    exit 1
}
