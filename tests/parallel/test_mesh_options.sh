#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# As test_mesh.sh, with all options that change the messages between ranks: rows that do not divide,
# clipping by tensor, tied embeddings, biases, adapters, recomputation, ignored targets, parameters
# changed between two steps, process groups.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_mpi
start=$SECONDS
limit=200 # a busy machine: every collective of a step may wait for its turn on a processor

# Rows that ranks cannot share evenly: 30 and 18 over 4, and 2 over 4, where some ranks have none.
meshes "steps=5 seq=15 bias=1 recompute=1" 1x1x4 2x2x2
# The waiting ranks of TCP sleep, which costs a tenth of the processor time of MPI. test_mesh.sh
# tests both.
launcher=socket
meshes "steps=5 seq=15 bias=1 recompute=1" 2x2x2
meshes "steps=5 seq=9 tied=1" 1x1x4 1x2x4
meshes "steps=5 seq=1" 1x2x4
meshes "steps=6 clip=adagc bias=1" 4x1x1 1x1x4 1x4x1 2x2x2
meshes "steps=6 tied=1 clip=adagc" 1x1x4 1x4x1 2x2x2
meshes "steps=6 trainable=lora bias=1" 1x1x4 1x4x1 2x2x2
meshes "steps=6 trainable=bitfit bias=1" 1x4x1 2x2x2
meshes "steps=6 trainable=last" 1x4x1 2x2x2
meshes "steps=6 trainable=last tied=1" 2x2x2
meshes "steps=6 recompute=1 ignore=1" 1x4x1 2x2x2
meshes "steps=6 nudge=1 tied=1" 2x2x2 1x4x1
meshes "steps=6 optim=muon bias=1 clip=adagc" 1x1x1 3x1x1 1x1x4 1x4x1 2x2x2
meshes "steps=6 optim=muon tied=1 recompute=1 ignore=1" 4x1x1 1x1x2 2x2x2
meshes "steps=6 group=1 nudge=1 ignore=1" 1x1x1 2x1x1 1x1x2 1x2x1 2x2x2
echo "all meshes agree, $((SECONDS - start)) s"
