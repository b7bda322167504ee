#!/usr/bin/env bash
# Checkpoints that all ranks of a mesh write, each its part: they hold what one rank would have written, other meshes go on from
# them, and a part that is damaged or missing is named.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_mpi
limit=30

for options in "clip=adagc bias=1" "tied=1" "trainable=lora"; do
    # shellcheck disable=SC2206
    o=($options)
    timeout 30 "$BUILD/mesh_train" 0 0 0 steps=3 save="$work/one.ckpt" "${o[@]}" >/dev/null
    # One rank reads what one rank wrote, and so does another mesh.
    for m in 2x1x1 1x2x2 2x2x2; do
        rm -rf "$work/parts" && mkdir "$work/parts"
        mesh "$m" steps=0 load="$work/one.ckpt" save="$work/parts/p.ckpt" shards=1 "${o[@]}" >/dev/null
        parts=("$work"/parts/p.ckpt.*.part)
        IFS=x read -r dp pp tp <<<"$m"
        ((${#parts[@]} == dp * pp * tp - 1)) && [[ -e ${parts[0]} ]] || { ls -l "$work/parts"; echo "$m: not every rank but the owner has written a part"; exit 1; }
        timeout 30 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" save="$work/again.ckpt" "${o[@]}" >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" "$m ($options): writing in parts has changed the checkpoint"
        mesh 1x4x1 steps=0 team=1 load="$work/parts/p.ckpt" save="$work/again.ckpt" "${o[@]}" >/dev/null
        same "$work/one.ckpt" "$work/again.ckpt" "$m ($options): another mesh has read something else"
    done
    # A part that is missing or damaged is found, and named.
    head -c 1000 "${parts[1]}" >"$work/parts/cut" && mv "$work/parts/cut" "${parts[1]}"
    if timeout 30 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" "${o[@]}" >"$work/out" 2>&1; then echo "a damaged part was read"; exit 1; fi
    grep -q "2.part: no trailer" "$work/out" || { cat "$work/out"; echo "no message about the damaged part"; exit 1; }
    rm "${parts[0]}"
    if timeout 30 "$BUILD/mesh_train" 0 0 0 steps=0 load="$work/parts/p.ckpt" "${o[@]}" >"$work/out" 2>&1; then echo "a missing part was not missed"; exit 1; fi
    grep -q "1.part" "$work/out" || { cat "$work/out"; echo "no message about the missing part"; exit 1; }
    echo "$options: all ranks write, and one checkpoint is read"
done
# A second time: the first one's parts are not touched, since their names have another token.
mesh 2x1x2 steps=1 save="$work/t.ckpt" shards=1 >/dev/null
before=$(ls "$work"/t.ckpt.*.part)
mesh 2x1x2 steps=1 save="$work/t.ckpt" shards=1 >/dev/null
for f in $before; do [[ -e $f ]] || { echo "$f: a second save has replaced a part of the first"; exit 1; }; done
(($(ls "$work"/t.ckpt.*.part | wc -l) == 6)) || { ls "$work"; echo "not three parts of each save"; exit 1; }
