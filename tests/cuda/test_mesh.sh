#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Meshes of ranks with one emulated device each (kernels, and NCCL under intra/ranks/comm_nccl.c):
# the same steps as one rank on its device, within the bounds of tests/parallel/test_mesh.sh; bf16
# within its own bounds. Graphs have a test of their own (test_graph_mesh.sh).
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

emulated
start=$SECONDS

meshes "device=fp32 steps=2 seq=5 graphs=off" 1x1x1 2x1x1 1x1x2 1x2x1
# Also over TCP, where waiting ranks sleep instead of polling. The communicator of the devices
# starts without MPI.
rm "$work/bin/libnebula_mpi.so"
launcher=socket
meshes "device=fp32 steps=2 seq=5 graphs=off" 2x1x1 4x1x1 2x1x2 2x2x1 1x2x2
meshes "device=fp32 steps=2 seq=5 graphs=off optim=muon" 2x1x2
loss_bound=3e-2 meshes "device=bf16 steps=2 seq=5 graphs=off" 2x1x1 1x1x2 1x2x1
loss_bound=3e-2 meshes "device=bf16 steps=2 seq=5 graphs=off optim=muon" 1x1x2
launcher=mpi
cp "$BUILD/libnebula_mpi.so" "$work/bin/"
# A device trains the same as processors.
timeout 600 "$BUILD/mesh_train" 0 0 0 eval=1 steps=3 seq=5 >"$work/one"
ranks 2 "$mesh_train" 2 1 1 eval=1 steps=3 seq=5 device=fp32 >"$work/out"
agrees "two devices beside a processor"
echo "all meshes agree, $((SECONDS - start)) s"
