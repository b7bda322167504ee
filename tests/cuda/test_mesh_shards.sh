#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Like parallel/test_mesh_shards.sh with one emulated device per rank: The exchange's state is on
# the devices or on their hosts. Updates, digests and parameters equal those of one rank without a
# device, bit for bit. Checkpoints move between all of these. If one rank's device is too small, the
# state stays on the host, or the run fails if it must be on the device.
set -euo pipefail
source "$(dirname "$0")/../parallel/lib.sh"

emulated
rm "$work/bin/libnebula_mpi.so"
launcher=socket
program=$work/bin/mesh_shards

one() { timeout 600 "$BUILD/mesh_shards" 0 0 0 "$@"; }
on() { # WHERE DPxPPxTP ARGS...: where the exchange is
    local where=$1 dp pp tp
    IFS=x read -r dp pp tp <<<"$2"
    shift 2
    ranks $((dp * pp * tp)) "$program" "$dp" "$pp" "$tp" device="${precision:-fp32}" \
        outer="$where" "$@" >"$work/got" 2>"$work/err" &&
        grep -q "^the exchange is on the ${is:-$where}\$" "$work/err"
}
agree() { # WHERE MESH WHAT ARGS...
    local where=$1 mesh=$2 what=$3
    shift 3
    on "$where" "$mesh" "$@" || { cat "$work/err"; echo "$mesh, $where, $what: failed"; exit 1; }
    same "$work/want" "$work/got" \
        "$mesh, $where, $what: another update, digest or parameter than one rank's: $(diff \
        "$work/want" "$work/got" | head -4)"
}

for options in "codec=int4" "codec=topk:64/4096 fragments=1 tied=1" \
    "codec=fp32 fragments=3 robust=1" "codec=int8 trainable=lora"; do
    # shellcheck disable=SC2206
    o=($options rounds=6)
    one "${o[@]}" >"$work/want" 2>"$work/err"
    (($(wc -l <"$work/want") >= 12)) ||
        { cat "$work/want" "$work/err"; echo "not six rounds"; exit 1; }
    meshes=(3x1x1 2x1x2)
    [[ $options != codec=int4 ]] || meshes+=(2x1x1 1x2x1 1x1x2)
    for m in "${meshes[@]}"; do agree device "$m" "$options" "${o[@]}"; done
    agree host 1x2x2 "$options" "${o[@]}"
    precision=bf16 agree device 2x1x1 "$options, trained in bf16" "${o[@]}"
    echo "$options: devices exchange what a host would"
done

# Saved by one mesh, loaded by all.
one rounds=5 save="$work/one.ckpt" >/dev/null 2>&1
one first=5 rounds=6 load="$work/one.ckpt" >"$work/want" 2>/dev/null
on device 2x1x1 rounds=5 save="$work/dp.ckpt" || { cat "$work/err"; exit 1; }
on device 1x2x2 rounds=5 save="$work/cut.ckpt" || { cat "$work/err"; exit 1; }
for file in one dp cut; do
    one first=5 rounds=6 load="$work/$file.ckpt" >"$work/got" 2>"$work/err" ||
        { cat "$work/err"; echo "one rank cannot load $file.ckpt"; exit 1; }
    same "$work/want" "$work/got" "one rank goes on from $file.ckpt with something else"
    agree device 3x1x1 "from $file.ckpt" first=5 rounds=6 load="$work/$file.ckpt"
    agree device 1x1x2 "from $file.ckpt" first=5 rounds=6 load="$work/$file.ckpt"
    agree host 2x1x1 "from $file.ckpt" first=5 rounds=6 load="$work/$file.ckpt"
done
# Each takes over the checkpoint of another in the middle of a run.
one rounds=4 dump="$work/snapshot" >/dev/null 2>&1
one first=2 rounds=4 adopt="$work/snapshot" >"$work/want" 2>/dev/null
for m in 2x1x1 1x1x2; do
    agree device "$m" "what others had" first=2 rounds=4 adopt="$work/snapshot"
done
echo "checkpoints and snapshots pass between devices and hosts"

# Training takes about 60 MB of a device here, the exchange 21 more.
options=(rounds=1 width=256)
one "${options[@]}" >"$work/want" 2>/dev/null
is=device agree auto 2x1x1 "devices with room" "${options[@]}"
export EMU_MEMORY=1:66000000
is=host agree auto 2x1x1 "a device without room" "${options[@]}"
grep -q 'does not fit on the device of every rank' "$work/err" ||
    { cat "$work/err"; echo "nobody says where the state is"; exit 1; }
if on device 2x1x1 "${options[@]}"; then
    echo "there was room on a device of $EMU_MEMORY"; exit 1
fi
grep -q 'rank 1: .*memory' "$work/err" || { cat "$work/err"; echo "no reason"; exit 1; }
# this is enough for the state, and for little else: with `auto`, the choice leaves room for what
# training takes later
export EMU_MEMORY=1:200000000
is=host agree auto 2x1x1 "a device that would be full" "${options[@]}"
agree device 2x1x1 "a device that may be full" "${options[@]}"
echo "without room on one device the state of all stays on the host"
