#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sides on meshes of emulated devices, with NCCL between them: a teacher on two tensor-parallel
# ranks and a student on two replicas, and the other way round, learn what processors learn.
. "$(dirname "$0")/../e2e/lib.sh"
. "$(dirname "$0")/../e2e/pairs.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
mkdir "$T/bin" # the program looks for its objects beside itself: no MPI there
cp "$BUILD/nebula" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$T/bin/libnebula_nccl.so"
nebula=$T/bin/nebula
# queues run when they are waited for; every process has one emulated device, of the same number
export EMU_LATE=1 EMU_NCCL_SHARED_DEVICE=1
make_pairs
small() { # NAME PLACE_TEACHER PLACE_STUDENT
    job "$T/$1.yaml" "[{name: alpha, role: teacher, $2}, {name: beta, role: student, $3}]" \
        "teacher: {learn: true, n_layers: 1, d_model: 32, n_heads: 2}"
    sed -i 's/seq_len: 96, batch: 6/seq_len: 48, batch: 2/; s/steps: 60/steps: 4/
            s/d_model: 48/d_model: 32/
            s/every_steps: 10/every_steps: 3/; s/n_heads: 4/n_heads: 2/
            s/windows: 20/windows: 2/' \
        "$T/$1.yaml"
    run "$T/$1.yaml" 2 "$T/$1"
}
losses() { summary '[.clusters[] | .loss_first, .loss_last, .eval_loss] | @tsv' "$T/$1"; }
near() { # BOUND A B
    figures_near "$1" "$(losses "$2")" "$(losses "$3")" ||
        fail "$3: $(losses "$3"), $2: $(losses "$2")"
}
cpu="device: cpu, threads: 1" cuda="device: cuda, precision: fp32, threads: 1" \
    bf16="device: cuda, threads: 1"
small plain "$cpu" "$cpu"
small mesh "$cuda, mesh: {tp: 2}" "$cuda, mesh: {dp: 2}"
near 0.002 plain mesh
small other "$cuda, mesh: {dp: 2}" "$bf16, mesh: {tp: 2}"
near 0.05 plain other
for name in alpha beta; do
    cat "$T/mesh/clusters/$name"/jobs/*/rank-0.log | has '2 ranks: dp' || fail "$name: no mesh"
done
[[ $(summary '.clusters[1].device' "$T/other") == "cuda (emulated, bf16)" ]] ||
    fail "device: $(summary '.clusters[1].device' "$T/other")"
