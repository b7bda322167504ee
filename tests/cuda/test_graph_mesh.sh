#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Meshes of ranks on emulated devices with parts of a step as graphs (intra/model/graph.c). The
# digests are those of runs without graphs, for replicas and for pipeline stages. Replicas reduce
# gradients between the graphs of a pass. Tensor-parallel ranks report that they use no graphs.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

emulated
start=$SECONDS
launcher=socket # starts sooner, and its ranks sleep where those of MPI poll; test_mesh.sh has both

# with MESH OPTIONS: also prints what rank 0 logs about its graphs
with() {
    # shellcheck disable=SC2086
    for graphs in off on auto; do
        mesh "$1" eval=1 seq=3 graphs=$graphs $2 >"$work/$graphs" 2>"$work/$graphs.log" ||
            { cat "$work/$graphs.log"; exit 1; }
    done
    [[ -s $work/off ]] || { echo "$1 $2: nothing came"; exit 1; }
    same "$work/on" "$work/off" "$1 $2: graphs change what comes out"
    same "$work/auto" "$work/off" "$1 $2: choosing changes what comes out"
    ! grep -q cuda_graphs "$work/off.log" ||
        { echo "$1 $2: graphs: off says something of them"; exit 1; }
    grep -qE "$3" "$work/on.log" ||
        { echo "$1 $2: graphs: on does not say: $3"; cat "$work/on.log"; exit 1; }
    grep -qE "$4" "$work/auto.log" ||
        { echo "$1 $2: graphs: auto does not say: $4"; cat "$work/auto.log"; exit 1; }
}
chosen='a pass of [0-9]+ ops takes [0-9.]+ ms launched one by one, [0-9.]+ ms as a graph'
cut='cannot be aborted while a rank hangs'
with 2x1x1 "device=fp32 steps=3" '[0-9]+ ops of a pass are enqueued by [0-9]+ calls' "$chosen"
with 2x1x1 "device=bf16 steps=3 bias=1 tied=1 recompute=1 ignore=1" \
    '[0-9]+ ops of a pass are enqueued by [0-9]+ calls' "$chosen"
with 1x2x1 "device=fp32 steps=3 recompute=1 bias=1" '[0-9]+ ops of a pass are enqueued by 1 call' \
    "$chosen"
with 2x2x1 "device=fp32 steps=4 tied=1 nudge=1" '[0-9]+ ops of a pass are enqueued by 1 call' \
    "$chosen"
with 1x1x2 "device=fp32 steps=2" "$cut" "$cut"
echo "graphs change nothing, $((SECONDS - start)) s"
