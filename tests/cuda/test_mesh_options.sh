#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Like test_mesh.sh, with the options that change the messages between ranks: rows that do not
# divide, clipping by tensor, tied embeddings, adapters, recomputation, ignored targets, parameters
# changed between two steps, and groups. Also checkpoints that move from meshes on devices to other
# meshes and to processors.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

emulated
start=$SECONDS
launcher=socket # starts sooner, and its ranks sleep where those of MPI poll; test_mesh.sh has both

meshes "device=fp32 steps=2 seq=3 graphs=off bias=1 recompute=1" 1x1x4 1x2x2
meshes "device=fp32 steps=2 seq=5 graphs=off tied=1 clip=adagc" 2x2x1 1x2x2
meshes "device=fp32 steps=2 seq=1 graphs=off" 1x2x4
meshes "device=fp32 steps=2 seq=4 graphs=off trainable=lora bias=1 recompute=1" 2x1x2 1x2x1
meshes "device=fp32 steps=2 seq=4 graphs=off trainable=last tied=1" 1x4x1
meshes "device=fp32 steps=2 seq=4 graphs=off ignore=1 nudge=1 group=1" 2x1x1 1x2x2
for options in "" "trainable=lora"; do
    # shellcheck disable=SC2206
    o=(device=fp32 seq=4 graphs=off $options)
    ranks 2 "$mesh_train" 2 1 1 steps=2 save="$work/mesh.ckpt" shards=1 "${o[@]}" >/dev/null
    timeout 600 "$mesh_train" 0 0 0 steps=2 load="$work/mesh.ckpt" "${o[@]}" >"$work/one"
    ranks 4 "$mesh_train" 1 2 2 steps=0 load="$work/mesh.ckpt" save="$work/again.ckpt" "${o[@]}" \
        >/dev/null
    ranks 2 "$mesh_train" 2 1 1 steps=2 load="$work/again.ckpt" "${o[@]}" >"$work/out"
    agrees "from a mesh's checkpoint $options"
    # shellcheck disable=SC2086
    ranks 2 "$BUILD/mesh_train" 2 1 1 steps=2 seq=4 load="$work/mesh.ckpt" $options >"$work/out"
    agrees "on processors $options"
done
echo "all meshes agree, $((SECONDS - start)) s"
