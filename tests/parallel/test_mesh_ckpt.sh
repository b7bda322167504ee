#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints do not depend on the mesh. Every mesh loads what another one saved and writes it again
# byte for byte. A run continues from it as one rank would. A file that cannot be used stops all
# ranks with the reason.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_mpi
limit=200 # a busy machine
launcher=socket # its waiting ranks sleep; those of MPI poll

for options in "clip=adagc bias=1 recompute=1" "tied=1 optim=muon" "trainable=lora"; do
    case $options in # each mesh is there, and each option on a mesh of all three kinds
    clip*) through=(1x1x1 3x1x1 1x1x4 1x4x1 2x2x2) ;;
    tied*) through=(1x4x1 2x2x2) ;;
    *) through=(1x1x4 2x2x2) ;;
    esac
    # shellcheck disable=SC2206
    o=($options)
    # Without a step: parameters, moments and counts pass through every mesh unchanged.
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=4 save="$work/one.ckpt" "${o[@]}" >/dev/null
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=4 load="$work/one.ckpt" "${o[@]}" >"$work/on"
    for m in "${through[@]}"; do
        rm -f "$work/again.ckpt"
        mesh "$m" steps=0 load="$work/one.ckpt" save="$work/again.ckpt" "${o[@]}" >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" \
            "$m ($options): loading and saving changed the checkpoint"
    done
    # A mesh saves what one rank would save, and another mesh continues: the losses are those of one
    # rank.
    mesh 2x1x2 steps=4 save="$work/mesh.ckpt" "${o[@]}" >/dev/null
    mesh 2x2x1 steps=4 load="$work/mesh.ckpt" "${o[@]}" >"$work/out"
    losses_agree "2x2x1 ($options)" 1e-5 "$work/on" "$work/out"
    # Written by tp 2 x pp 2 and read by dp 4 and by one rank: equal parameters, and equal losses
    # afterwards.
    mesh 1x2x2 steps=4 save="$work/cut.ckpt" "${o[@]}" >/dev/null
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=4 load="$work/cut.ckpt" "${o[@]}" >"$work/on"
    mesh 4x1x1 steps=0 load="$work/cut.ckpt" save="$work/again.ckpt" "${o[@]}" >/dev/null
    same "$work/cut.ckpt" "$work/again.ckpt" \
        "4x1x1 ($options): the parameters differ from those that tp 2 x pp 2 wrote"
    mesh 4x1x1 steps=4 load="$work/cut.ckpt" "${o[@]}" >"$work/out"
    first_bound=1e-6 losses_agree "4x1x1 ($options)" 1e-5 "$work/on" "$work/out"
    # The same mesh gives the same bits: 2 + 2 steps equal 4.
    mesh 2x2x2 steps=4 save="$work/a.ckpt" "${o[@]}" >/dev/null
    mesh 2x2x2 steps=2 save="$work/b.ckpt" "${o[@]}" >/dev/null
    mesh 2x2x2 steps=2 load="$work/b.ckpt" save="$work/c.ckpt" "${o[@]}" >/dev/null
    same "$work/a.ckpt" "$work/c.ckpt" "2x2x2 ($options): a resumed run ends with other bits"
    # A process group makes the same run.
    mesh 2x2x2 steps=4 group=1 save="$work/d.ckpt" "${o[@]}" >/dev/null
    same "$work/a.ckpt" "$work/d.ckpt" "2x2x2 ($options): a group ends with other bits"
    mesh 1x4x1 steps=0 group=1 load="$work/one.ckpt" save="$work/again.ckpt" "${o[@]}" >/dev/null
    same "$work/one.ckpt" "$work/again.ckpt" "1x4x1 ($options): a group changed the checkpoint"
    echo "$options: checkpoints pass from mesh to mesh"
done

# More replicas than micro-batches: micro-batches are split into rows, and the step is the same.
timeout 200 "$BUILD/mesh_train" 0 0 0 steps=3 >"$work/on"
mesh 16x1x1 steps=3 group=1 >"$work/out"
losses_agree "16 replicas" 1e-5 "$work/on" "$work/out"
echo "16 replicas make the step of 8 micro-batches"

# A missing file, another model, no room: every rank ends, and the reason is printed. Over mpirun,
# which ends ranks in its own way.
launcher=mpi
mesh 2x1x2 steps=0 load="$work/one.ckpt" save="$work/again.ckpt" trainable=lora >/dev/null
same "$work/one.ckpt" "$work/again.ckpt" \
    "2x1x2 over MPI: loading and saving changed the checkpoint"
stops() { # REASON MESH ARGS...
    local reason=$1
    shift
    if mesh "$@" >"$work/out" 2>&1; then
        echo "$*: the command succeeded, but must fail"
        exit 1
    fi
    grep -q "$reason" "$work/out" || {
        cat "$work/out"
        echo "$*: no message with '$reason'"
        exit 1
    }
}
stops "nothing.ckpt" 2x2x1 load="$work/nothing.ckpt"
stops "optim.name: adamw, the job.s is muon" 2x1x2 load="$work/one.ckpt" trainable=lora optim=muon
stops "model.tied" 1x2x2 load="$work/one.ckpt" tied=1
stops "missing/x.ckpt" 2x1x2 steps=1 save="$work/missing/x.ckpt"
stops "nothing.ckpt" 2x1x2 group=1 load="$work/nothing.ckpt"
stops "model.tied" 1x2x2 group=1 load="$work/one.ckpt" tied=1
stops "does not divide the sequences of a step" 3x1x1 group=1
stops "does not divide model.n_layers" 1x3x1
stops "does not divide model.n_layers" 1x3x1 group=1
stops "does not divide model.n_heads" 1x1x3
echo "unusable checkpoints and meshes stop all ranks"
