#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layers and rooms use each other only as the rows of CMakeLists.txt allow: a layer uses the layers
# of its row, a room the rooms of its row within its layer, and a row names earlier rows only. The
# test checks the #include lines, and with BUILD the symbols of the built objects.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"

declare -A may=()  # layer -> the layers, and single files, that it may use
declare -A uses=() # room -> the rooms of its layer that it may use
fail=0
complain() { echo "$*"; fail=1; }

rows() { # prints "nebula_layer FOLDER WORDS" and "nebula_room FOLDER WORDS"
    sed 's/#.*//' CMakeLists.txt | tr '\n' ' ' | tr -s ' ' |
        grep -oE 'nebula_(layer|room)\([^)]*\)' | tr '()' '  '
}
top=
while read -r kind folder rest; do
    if [[ $kind == nebula_layer ]]; then
        top=$folder
        may[$folder]=" $folder $rest "
        for used in $rest; do
            [[ -v may[$used] || -v may[${used%/*}] ]] ||
                complain "CMakeLists.txt: $folder uses $used, which has no earlier row"
        done
    else
        [[ $folder == "$top"/* ]] ||
            complain "CMakeLists.txt: the room $folder has its row below the layer $top"
        uses[$folder]=" $folder "
        for used in $rest; do
            [[ -v uses[$top/$used] ]] ||
                complain "CMakeLists.txt: $folder uses $top/$used, which has no earlier row"
            uses[$folder]+="$top/$used "
        done
    fi
done < <(rows)
((${#may[@]} >= 8 && ${#uses[@]} > 20)) ||
    complain "CMakeLists.txt: only ${#may[@]} layers and ${#uses[@]} rooms were read"
may[tests]=" ${!may[*]} tests " # tests use everything, and nothing uses tests

layer_of() { # FILE
    local folder=${1%/*}
    while [[ ! -v may[$folder] && $folder == */* ]]; do folder=${folder%/*}; done
    echo "$folder"
}
room_of() { # FILE LAYER: its room, or nothing if the layer has no rooms
    local layer=$2 rest=${1#"$2"/}
    case $layer in
    agent | inter | intra) [[ $rest != */* ]] || echo "$layer/${rest%%/*}" ;;
    esac
}

arrows() { # reads lines "WHERE FROM TO WHAT": FROM and TO are files
    local where from to what a b file
    while read -r where from to what; do
        a=$(layer_of "$from") b=$(layer_of "$to") file=${to%.*}
        [[ -v may[$a] ]] || { complain "$from: CMakeLists.txt has no layer '$a'"; continue; }
        [[ ${may[$a]} == *" $b "* || ${may[$a]} == *" $file "* ]] ||
            complain "$where: $a must not use $b: $what"
        [[ $a == "$b" ]] || continue
        a=$(room_of "$from" "$a") b=$(room_of "$to" "$b")
        [[ -n $a && -n $b && $a != "$b" ]] || continue
        [[ -v uses[$a] ]] || { complain "$from: room $a has no row in CMakeLists.txt"; continue; }
        [[ ${uses[$a]} == *" $b "* ]] || complain "$where: room $a must not use $b: $what"
    done
}

# Keeps one line "WHERE FROM TO WHAT" for each pair of folders. For kernels it keeps a line for each
# file, because inter may use some of these files.
one_each() {
    awk '{ f = $2; sub(/\/[^\/]*$/, "", f)
           t = $3; if (t !~ /^kernels\/[^\/]*$/) sub(/\/[^\/]*$/, "", t)
           if (f != t && !seen[f " " t]++) print }'
}

check_includes() { # ROOT
    arrows < <(cd "$1" && grep -rnoE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"[^"]+"' \
        --include='*.c' --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' \
        agent kernels compress security intra inter tests 2>/dev/null |
        sed -E 's/^([^:]+):([0-9]+):.*"([^"]+)"$/\1:\2 \1 \3 \3/' | one_each)
    local where
    while IFS= read -r where; do # any model can be exchanged
        complain "$where: agent/exchange knows tensors, not models"
    done < <(cd "$1" && grep -rnE '#[[:space:]]*include "intra/' agent/exchange 2>/dev/null |
        grep -vE '"intra/(ckpt/[a-z_]+|ranks/comm|train/shards)\.h"')
}

# Compares the room that uses a symbol with the room that defines it, wherever the symbol is
# declared. Objects without a source in a room are skipped: generated ones, and those of removed
# sources.
check_symbols() { # BUILD
    local objects=()
    mapfile -t objects < <(find "$1"/CMakeFiles \
        '(' -path '*/neb_*.dir/*.o' -o -path '*/nebula.dir/*.o' -o -path '*/wanlink.dir/*.o' ')')
    ((${#objects[@]} > 300)) || { complain "only ${#objects[@]} objects in $1"; return; }
    arrows < <(nm -A "${objects[@]}" 2>/dev/null | sed -E 's/^[^ ]*\.dir\/([^ ]*)\.o:/\1 /' |
        awk 'FNR == NR { is[$1]; next } $1 in is' \
            <(find agent inter intra compress security kernels -name '*.c*') - |
        awk 'NF == 4 && $3 ~ /^[TDBRVWC]$/ { at[$4] = $1 }
             NF == 3 && $2 == "U" { user[++n] = $1; what[n] = $3 }
             END { for (i = 1; i <= n; i++) if (what[i] in at)
                       print user[i], user[i], at[what[i]], what[i] }' | one_each)
}

check_includes .
[[ -z ${BUILD:-} ]] || check_symbols "$BUILD"
for folder in */; do
    case ${folder%/} in
    agent | intra | inter | compress | security | kernels | tests | configs | build* | out) ;;
    *) complain "unexpected top-level folder $folder" ;;
    esac
done
for file in agent/*.[ch] inter/*.[ch] intra/*.[ch]; do
    [[ ! -e $file ]] || complain "$file is in no room"
done

# The check itself must find forbidden includes, and must allow inter the files of kernels in its
# row.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
sees() { # FILE HEADER: whether the check complains when FILE includes HEADER
    mkdir -p "$scratch/$(dirname "$1")"
    echo "#include \"$2\"" >"$scratch/$1"
    ! (fail=0; check_includes "$scratch"; exit $fail) >/dev/null || { rm "$scratch/$1"; return 1; }
    rm "$scratch/$1"
}
for bad in 'intra/model/x.c inter/record/types.h' 'inter/record/x.c inter/service/service.h' \
    'agent/job/x.c agent/cli/commands.h' 'agent/wan/x.c agent/job/config.h' \
    'inter/record/x.c kernels/cpu.h' 'kernels/x.c compress/codec.h' \
    'agent/exchange/x.c intra/model/model.h'; do
    # shellcheck disable=SC2086
    sees $bad || complain "the check missed a forbidden include: $bad"
done
! sees inter/record/x.c kernels/exact.h || complain "inter may use kernels/exact.h"
exit $fail
