#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All ranks of a mesh write a checkpoint, each its part. Together the parts hold what one rank would
# write, other meshes continue from them, and a damaged or missing part is named.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_mpi
limit=200 # a busy machine is slow
launcher=socket # its waiting ranks sleep; those of MPI poll

for options in "clip=adagc bias=1" "tied=1" "trainable=lora"; do
    # shellcheck disable=SC2206
    o=($options)
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=3 save="$work/one.ckpt" "${o[@]}" >/dev/null
    # One rank and another mesh read the parts.
    for m in 2x1x1 1x2x2 2x2x2; do
        rm -rf "$work/parts" && mkdir "$work/parts"
        mesh "$m" steps=0 load="$work/one.ckpt" save="$work/parts/p.ckpt" shards=1 "${o[@]}" \
            >/dev/null
        parts=("$work"/parts/p.ckpt.*.part)
        IFS=x read -r dp pp tp <<<"$m"
        ((${#parts[@]} == dp * pp * tp - 1)) && [[ -e ${parts[0]} ]] ||
            { ls -l "$work/parts"
            echo "$m: some rank other than 0 wrote no part"; exit 1; }
        timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" \
            save="$work/again.ckpt" "${o[@]}" >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" \
            "$m ($options): writing in parts changed the checkpoint"
        mesh 1x4x1 steps=0 group=1 load="$work/parts/p.ckpt" save="$work/again.ckpt" "${o[@]}" \
            >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" \
            "$m ($options): another mesh reads something else"
    done
    # A missing or damaged part is found and named.
    head -c 1000 "${parts[1]}" >"$work/parts/cut" && mv "$work/parts/cut" "${parts[1]}"
    if timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" "${o[@]}" \
        >"$work/out" 2>&1; then
        echo "a damaged part was read"
        exit 1
    fi
    grep -q "2.part: it has no trailer" "$work/out" &&
        grep -q "its part .*2.part (of rank 2) cannot be used" "$work/out" || {
        cat "$work/out"
        echo "no message about the damaged part"
        exit 1
    }
    rm "${parts[0]}"
    if timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" "${o[@]}" \
        >"$work/out" 2>&1; then
        echo "a checkpoint without a part was accepted"
        exit 1
    fi
    grep -q "1.part" "$work/out" || {
        cat "$work/out"
        echo "no message about the missing part"
        exit 1
    }
    echo "$options: all ranks write, and one checkpoint is read"
done
# Written during training: the file holds the state at the time of the copy, and the next file the
# state after it.
timeout 200 "$BUILD/mesh_train" 0 0 0 steps=3 save="$work/one.ckpt" >/dev/null
for m in 2x1x1 1x2x2; do
    rm -rf "$work/parts" && mkdir "$work/parts"
    mesh "$m" steps=0 load="$work/one.ckpt" save="$work/parts/p.ckpt" aside=1 >/dev/null
    IFS=x read -r dp pp tp <<<"$m"
    # shellcheck disable=SC2010 # the names are the worker's own
    (($(ls "$work/parts" | grep -c 'part$') == 2 * (dp * pp * tp - 1))) ||
        { ls -l "$work/parts"
        echo "$m: some rank other than 0 did not write two parts"; exit 1; }
    (($(ls "$work/parts" | wc -l) == 2 * dp * pp * tp)) ||
        { ls -l "$work/parts"; echo "$m: a file is left over"; exit 1; }
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" \
        save="$work/again.ckpt" >/dev/null
    same "$work/one.ckpt" "$work/again.ckpt" "$m: parts written during training hold something else"
    timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt.2" save="$work/$m.ckpt" \
        >/dev/null
    cmp -s "$work/one.ckpt" "$work/$m.ckpt" && {
        echo "$m: the second checkpoint equals the first"
        exit 1
    }
    same "$work/2x1x1.ckpt" "$work/$m.ckpt" "$m: the second checkpoint depends on the mesh"
    echo "$m: written while parameters change"
done
# If a rank cannot write its part, all ranks learn it at once, rank 0 too. From here on over MPI.
launcher=mpi limit=200 # a busy machine is slow, as in test_mesh.sh
if ranks 2 bash -c '[[ $OMPI_COMM_WORLD_RANK == 0 ]] || export NEBULA_FAULT=fs.fsync:1; exec "$@"' \
    - \
    "$BUILD/mesh_train" 2 1 1 steps=0 load="$work/one.ckpt" save="$work/bad.ckpt" aside=1 \
    >"$work/out" 2>&1; then echo "a failed write of a part was not reported"; exit 1; fi
grep -q 'part could not be written' "$work/out" || {
    cat "$work/out"
    echo "no message about the part that could not be written"
    exit 1
}
# A second save does not touch the parts of the first one, because their names have another token.
mesh 2x1x2 steps=1 save="$work/t.ckpt" shards=1 >/dev/null
before=$(ls "$work"/t.ckpt.*.part)
mesh 2x1x2 steps=1 save="$work/t.ckpt" shards=1 >/dev/null
for f in $before; do
    [[ -e $f ]] || {
        echo "$f: a second save replaced a part of the first"
        exit 1
    }
done
(($(ls "$work"/t.ckpt.*.part | wc -l) == 6)) ||
    { ls "$work"; echo "the two saves must have three parts each"; exit 1; }
# A follower that cannot send a tensor to the rank that writes it ends. So do the ranks that wait
# for it: soon, not after their timeout of ten minutes.
launcher=socket
for shards in 0 1; do
    start=$SECONDS
    # shellcheck disable=SC2016
    if ranks 4 bash -c '[[ $RANK != 3 ]] || export NEBULA_FAULT=whole.send:1; exec "$@"' - \
        "$BUILD/mesh_train" 1 2 2 group=1 steps=0 save="$work/left.ckpt" shards="$shards" \
        >"$work/out" 2>&1; then echo "a tensor that was not sent was not reported"; exit 1; fi
    grep -q 'out of memory sending a tensor' "$work/out" && ((SECONDS - start < 100)) ||
        { cat "$work/out"
        echo "shards=$shards: a rank still waited after $((SECONDS - start)) s"; exit 1; }
done
# If one rank cannot write, rank 0 names this rank and the reason.
# shellcheck disable=SC2016
if ranks 4 bash -c '[[ $RANK != 3 ]] || export NEBULA_FAULT=fs.write:1; exec "$@"' - \
    "$BUILD/mesh_train" 1 2 2 group=1 steps=0 save="$work/unwritten.ckpt" shards=1 \
    >"$work/out" 2>&1; then echo "a part that was not written was not reported"; exit 1; fi
grep -q 'rank 3: .*: No space left on device' "$work/out" || {
    cat "$work/out"
    echo "rank 0 does not report the failure of rank 3"
    exit 1
}
# Tensors longer than a message of the MPI library are sent in pieces.
mpi_pieces
cp "$BUILD/mesh_train" "$work/bin/"
mesh_train=$work/bin/mesh_train launcher=mpi
for m in 2x1x1 1x2x2; do
    for shards in 0 1; do
        mesh "$m" steps=0 load="$work/one.ckpt" save="$work/p.ckpt" shards=$shards >/dev/null
        timeout 200 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/p.ckpt" save="$work/again.ckpt" \
            >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" \
            "$m, shards=$shards: sending in pieces changed the checkpoint"
    done
done
timeout 200 "$BUILD/mesh_train" 0 0 0 steps=3 >"$work/one"
mesh 2x1x2 steps=3 >"$work/out"
agrees "steps of dp 2, tp 2 in pieces"
