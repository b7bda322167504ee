#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The state of the exchange is distributed over all ranks of a mesh. Updates, digests and parameters
# equal those of one rank, bit for bit. No rank holds much more than its shard. Every mesh continues
# from what another one saved, in parts or in one file.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
launcher=socket
program=$BUILD/mesh_shards

one() { timeout 600 "$program" 0 0 0 "$@"; }
on() { # DPxPPxTP ARGS...
    local dp pp tp
    IFS=x read -r dp pp tp <<<"$1"
    shift
    ranks $((dp * pp * tp)) "$program" "$dp" "$pp" "$tp" "$@"
}

for options in "codec=int4" "codec=topk:64/4096 fragments=1 tied=1" \
    "codec=fp32 fragments=3 robust=1" "codec=int8 trainable=lora"; do
    # shellcheck disable=SC2206
    o=($options)
    one "${o[@]}" >"$work/want" 2>"$work/err"
    (($(wc -l <"$work/want") >= 20)) ||
        { cat "$work/want" "$work/err"; echo "there are fewer than ten rounds"; exit 1; }
    (($(grep -Ev '^(exchange|parameters)' "$work/want" | sort | uniq -d | wc -l) == 0)) ||
        { cat "$work/want"; echo "two rounds are equal"; exit 1; }
    meshes=(3x1x1 2x2x2)
    [[ $options != codec=int4 ]] || meshes+=(2x1x1 1x2x1 1x1x2)
    for m in "${meshes[@]}"; do
        on "$m" "${o[@]}" >"$work/got" 2>"$work/err" || {
            cat "$work/err"
            echo "$m ($options): failed"
            exit 1
        }
        same "$work/want" "$work/got" \
            "$m ($options): an update, digest or parameter differs from one rank: $(diff \
                "$work/want" "$work/got" | head -4)"
    done
    on 2x1x2 single=1 "${o[@]}" >"$work/got" 2>"$work/err" || {
        cat "$work/err"
        echo "rank 0 as single owner ($options): failed"
        exit 1
    }
    same "$work/want" "$work/got" \
        "rank 0 as single owner ($options): an update, digest or parameter differs"
    [[ $(awk '/holds/ { print $2, ($4 > 0) }' "$work/err" | sort | tr '\n' \
        ' ') == "0 1 1 0 2 0 3 0 " ]] || {
        cat "$work/err"
        echo "a rank other than 0 holds a shard"
        exit 1
    }
    echo "$options: every mesh exchanges the same as one rank"
done

# The memory of each rank is about its share, by its own count and by the allocator's (which is 0
# under a sanitizer).
one width=512 fragments=1 rounds=1 >"$work/out" 2>"$work/alone"
share() { # MESH RANKS
    on "$1" width=512 fragments=1 rounds=1 >"$work/out" 2>"$work/err" || {
        cat "$work/err"
        exit 1
    }
    awk -v ranks="$2" -v mesh="$1" '
        !/holds/ { next }
        FILENAME ~ /alone/ { all = $4; whole = $6; taken = $9; next }
        { n++; sum += $4; bytes = $6
          if ($4 > all / ranks * 1.25) {
              print mesh ": rank " $2 " has " $4 " of " all " parameters"; bad = 1 }
          # Per parameter: four floats as on one rank, one float during encode and merge,
          # and the row counts of 16 updates.
          if ($6 > whole / ranks * 1.7) {
              print mesh ": rank " $2 " holds " $6 " bytes, one rank alone " whole; bad = 1 }
          if (taken > 0 && ($9 > $6 * 1.2 + 200000 || $9 < $6 * 0.9)) {
              print mesh ": rank " $2 " counts " $6 " bytes, allocated " $9; bad = 1 }
          if ($6 > most) most = $6 }
        END {
            if (n != ranks) { print mesh ": " n " ranks reported their memory"; bad = 1 }
            if (sum != all) { print mesh ": the ranks hold " sum " parameters, the model has " all;
            bad = 1 }
            if (!bad) printf "%s: a rank holds at most %d bytes, one rank alone %d (%.2f)\n", mesh,
            most, whole, most / whole
            exit bad }' "$work/alone" "$work/err"
}
share 2x1x1 2
share 2x2x2 8

# One mesh saves and all load: the following rounds equal those of one rank.
one rounds=5 save="$work/one.ckpt" >/dev/null 2>&1
one first=5 rounds=6 load="$work/one.ckpt" >"$work/want" 2>/dev/null
size() { stat -c %s "$1"; }
goes_on() { # WHAT FILE MESH (or `one`)...
    local what=$1 file=$2 m
    shift 2
    for m in "$@"; do
        $([[ $m == one ]] && echo one || echo "on $m") first=5 rounds=6 load="$file" \
            >"$work/got" 2>"$work/err" || {
            cat "$work/err"
            echo "$what: $m cannot load it"
            exit 1
        }
        same "$work/want" "$work/got" "$what: $m continues with something else"
    done
}
goes_on "saved by one rank" "$work/one.ckpt" 3x1x1 1x2x2
for m in 2x1x1 2x1x2; do
    mkdir -p "$work/parts"
    on "$m" rounds=5 save="$work/parts/$m.ckpt" >/dev/null 2>"$work/err" || {
        cat "$work/err"
        exit 1
    }
    goes_on "saved by $m" "$work/parts/$m.ckpt" one 1x2x2
    # All ranks write about the same amount.
    for f in "$work/parts/$m.ckpt"*; do
        (($(size "$f") * ${m:0:1} * ${m:4:1} < $(size "$work/one.ckpt") * 3 / 2)) ||
            { ls -l "$work/parts"; echo "$m: $f is larger than a share"; exit 1; }
    done
    on "$m" rounds=5 save="$work/whole.ckpt" one=1 >/dev/null 2>"$work/err" || {
        cat "$work/err"
        exit 1
    }
    goes_on "saved by rank 0 of $m" "$work/whole.ckpt" 3x1x1
done
# Sealed: every rank seals its own part with the job's key. So rank 0 gathers no more than without a
# seal, and any mesh continues from the parts.
"$BUILD/nebula" seal init "$work/seal.key" --home "$work/home" >/dev/null
sealed=$work/sealed
mkdir "$sealed"
one rounds=5 save="$sealed/one.ckpt" seal="$work/seal.key" >/dev/null 2>&1 # one rank, one file
for m in 2x1x1 2x1x2; do
    on "$m" rounds=5 save="$sealed/$m.ckpt" seal="$work/seal.key" >/dev/null 2>"$work/err" || {
        cat "$work/err"
        exit 1
    }
    (($(find "$sealed" -name "$m.ckpt.*.part" | wc -l) == ${m:0:1} * ${m:4:1} - 1)) ||
        { ls "$sealed"; echo "$m: a rank wrote no part"; exit 1; }
    took=$(sed -n 's/^rank 0 has allocated \(-*[0-9]*\) bytes to save/\1/p' "$work/err")
    ((took * 8 < $(size "$work/one.ckpt"))) ||
        { echo "$m: rank 0 has allocated $took bytes to save $(size "$work/one.ckpt")"; exit 1; }
    for f in "$sealed/$m.ckpt"*; do
        [[ $(head -c 7 "$f") == nebseal ]] || { echo "$f is not sealed"; exit 1; }
        (($(size "$f") * ${m:0:1} * ${m:4:1} < $(size "$work/one.ckpt") * 3 / 2)) ||
            { ls -l "$sealed"; echo "$m: $f is larger than a share"; exit 1; }
    done
done
# Written by rank 0 alone.
on 2x1x1 rounds=5 save="$sealed/whole.ckpt" one=1 seal="$work/seal.key" >/dev/null 2>&1
for pair in "one 1x2x2" "2x1x1 3x1x1" "2x1x2 3x1x1" "2x1x2 1x2x2" "whole 1x2x2"; do
    read -r file m <<<"$pair"
    on "$m" first=5 rounds=6 load="$sealed/$file.ckpt" seal="$work/seal.key" >"$work/got" \
        2>"$work/err" || {
        cat "$work/err"
        echo "sealed by $file: $m cannot load it"
        exit 1
    }
    same "$work/want" "$work/got" "sealed by $file: $m continues with something else"
done
# A part of another generation or another rank, an unsealed part, or a cut part: one error that
# names it.
on 2x1x2 rounds=4 save="$sealed/before.ckpt" seal="$work/seal.key" >/dev/null 2>&1
on 2x1x2 rounds=5 save="$work/clear.ckpt" >/dev/null 2>&1
part() { echo "$1".*-"$2".part; }
cp "$(part "$sealed/2x1x2.ckpt" 1)" "$work/kept"
refused() { # WHAT FILE PATTERN
    cp "$2" "$(part "$sealed/2x1x2.ckpt" 1)"
    if on 2x1x1 rounds=1 load="$sealed/2x1x2.ckpt" seal="$work/seal.key" >"$work/got" \
        2>"$work/err"; then
        echo "$1: the part was accepted"
        exit 1
    fi
    [[ $(grep -c "$3" "$work/err") == 1 ]] && (($(grep -c 'ERROR\|error' "$work/err") <= 1)) || {
        cat "$work/err"
        echo "$1: there must be exactly one error"
        exit 1
    }
    cp "$work/kept" "$(part "$sealed/2x1x2.ckpt" 1)"
}
refused "part of another generation" "$(part "$sealed/before.ckpt" 1)" \
    'not part 1 of 3 of its checkpoint; it belongs to another checkpoint or rank'
refused "part of another rank" "$(part "$sealed/2x1x2.ckpt" 2)" 'not part 1 of 3 of its checkpoint'
refused "unsealed part" "$(part "$work/clear.ckpt" 1)" 'not part 1 of 3 of its checkpoint'
head -c -100 "$work/kept" >"$work/cut"
refused "cut part" "$work/cut" 'was changed, cut or put in another order'
on 2x1x1 first=5 rounds=6 load="$sealed/2x1x2.ckpt" seal="$work/seal.key" >"$work/got" 2>/dev/null
same "$work/want" "$work/got" "with its own parts again: the rounds differ"
"$BUILD/nebula" seal open "$sealed/2x1x2.ckpt" "$work/opened.ckpt" --seal-key "$work/seal.key"
goes_on "sealed by 2x1x2 and opened" "$work/opened.ckpt" one
echo "sealed parts pass from mesh to mesh, foreign parts do not"
# The state of another cluster is adopted in mid-run, with its parameters.
one rounds=4 dump="$work/snapshot" >/dev/null 2>&1
one first=2 rounds=4 adopt="$work/snapshot" >"$work/adopted" 2>/dev/null
(($(grep -c '^adopted' "$work/adopted") == 2)) ||
    { cat "$work/adopted"; echo "nothing was adopted"; exit 1; }
for m in 2x1x1 1x2x2; do
    on "$m" first=2 rounds=4 adopt="$work/snapshot" >"$work/got" 2>"$work/err" || {
        cat "$work/err"
        echo "$m cannot adopt it"
        exit 1
    }
    same "$work/adopted" "$work/got" "$m continues with something else after adoption"
done
# Some ranks do not see the folder. The ranks that see it write their shards.
mkdir "$work/seen" "$work/elsewhere"
cd "$work/seen"
# shellcheck disable=SC2016
ranks 3 bash -c '[[ $RANK != 2 ]] || cd "$0"; exec "$@"' \
    "$work/elsewhere" "$program" 3 1 1 rounds=5 save=step.ckpt >/dev/null 2>"$work/err" ||
    { cat "$work/err"; exit 1; }
(($(find . -name '*.part' | wc -l) == 1)) && [[ -z $(ls "$work/elsewhere") ]] ||
    { ls -l . "$work/elsewhere"; echo "rank 2 wrote into a folder that nobody reads"; exit 1; }
goes_on "saved by two of three ranks" "$work/seen/step.ckpt" one 3x1x1
echo "checkpoints of the exchange pass from mesh to mesh"
# Frames and rows longer than a message of the MPI library, which splits them.
if [[ -e ${MPI_PIECES:-} ]] && command -v mpirun >/dev/null; then
    mpi_pieces
    cp "$program" "$work/bin/"
    # a busy machine is slow, as in test_mesh.sh
    program=$work/bin/mesh_shards launcher=mpi limit=200
    for options in "codec=int4" "codec=fp32 fragments=3 robust=1"; do
        # shellcheck disable=SC2206
        o=($options)
        one "${o[@]}" >"$work/want" 2>/dev/null
        for m in 2x1x1 1x2x2; do
            on "$m" "${o[@]}" >"$work/got" 2>"$work/err" || {
                cat "$work/err"
                echo "$m ($options), in pieces: failed"
                exit 1
            }
            same "$work/want" "$work/got" \
                "$m ($options): in pieces, an update, digest or parameter differs"
        done
    done
    on 1x2x2 first=5 rounds=6 load="$work/one.ckpt" >"$work/got" 2>"$work/err" || {
        cat "$work/err"
        echo "1x2x2, in pieces: cannot load"
        exit 1
    }
    one first=5 rounds=6 load="$work/one.ckpt" >"$work/want" 2>/dev/null
    same "$work/want" "$work/got" "1x2x2, in pieces: continues with something else"
    echo "an exchange in pieces equals that of one rank"
fi
