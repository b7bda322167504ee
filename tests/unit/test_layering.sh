#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The order of the house, read from the rows of CMakeLists.txt and checked over #include lines and
# over the symbols of the built objects. A layer uses itself and the layers that its row names; a
# room uses the rooms of its own layer that its row names. A row names only what stands above it.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"

declare -A may=()  # layer -> layers and single files of layers that it may use
declare -A uses=() # room -> rooms of its layer that it may use
fail=0
say() { echo "$*"; fail=1; }

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
                say "CMakeLists.txt: $folder uses $used, which does not stand above it"
        done
    else
        [[ $folder == "$top"/* ]] || say "CMakeLists.txt: $folder stands below the layer $top"
        uses[$folder]=" $folder "
        for used in $rest; do
            [[ -v uses[$top/$used] ]] ||
                say "CMakeLists.txt: $folder uses $top/$used, which does not stand above it"
            uses[$folder]+="$top/$used "
        done
    fi
done < <(rows)
((${#may[@]} >= 8 && ${#uses[@]} > 20)) ||
    say "CMakeLists.txt: only ${#may[@]} layers and ${#uses[@]} rooms were read"
may[tests]=" ${!may[*]} tests " # tests use everything, and nothing uses tests

layer_of() { # FILE
    local folder=${1%/*}
    while [[ ! -v may[$folder] && $folder == */* ]]; do folder=${folder%/*}; done
    echo "$folder"
}
room_of() { # FILE: its room; nothing for a file of a layer without rooms
    local layer=$2 rest=${1#"$2"/}
    case $layer in
    agent | inter | intra) [[ $rest != */* ]] || echo "$layer/${rest%%/*}" ;;
    esac
}

arrows() { # reads lines "WHERE FROM TO WHAT": FROM and TO are files
    local where from to what a b file
    while read -r where from to what; do
        a=$(layer_of "$from") b=$(layer_of "$to") file=${to%.*}
        [[ -v may[$a] ]] || { say "$from: folder '$a' is no layer of CMakeLists.txt"; continue; }
        [[ ${may[$a]} == *" $b "* || ${may[$a]} == *" $file "* ]] ||
            say "$where: $a must not use $b: $what"
        [[ $a == "$b" ]] || continue
        a=$(room_of "$from" "$a") b=$(room_of "$to" "$b")
        [[ -n $a && -n $b && $a != "$b" ]] || continue
        [[ -v uses[$a] ]] || { say "$from: room $a has no row in CMakeLists.txt"; continue; }
        [[ ${uses[$a]} == *" $b "* ]] || say "$where: room $a must not use $b: $what"
    done
}

# Of lines "WHERE FROM TO WHAT" one for each pair of folders. Files of kernels count one by one,
# since inter may use some of them.
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
}

# Which room refers to a symbol, and which defines it: a declaration in another header hides
# nothing. Generated sources are in no room, and an old build folder may hold objects whose sources
# are gone.
check_symbols() { # BUILD
    local objects=()
    mapfile -t objects < <(find "$1"/CMakeFiles \
        '(' -path '*/neb_*.dir/*.o' -o -path '*/nebula.dir/*.o' -o -path '*/wanlink.dir/*.o' ')')
    ((${#objects[@]} > 300)) || { say "only ${#objects[@]} objects in $1"; return; }
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
    *) say "unexpected top-level folder $folder" ;;
    esac
done
for file in agent/*.[ch] inter/*.[ch] intra/*.[ch]; do
    [[ ! -e $file ]] || say "$file is in no room"
done

# The check itself: it must see forbidden includes, and allow what inter may use of kernels.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
sees() { # FILE HEADER: whether the check refuses that FILE includes HEADER
    mkdir -p "$scratch/$(dirname "$1")"
    echo "#include \"$2\"" >"$scratch/$1"
    ! (fail=0; check_includes "$scratch"; exit $fail) >/dev/null || { rm "$scratch/$1"; return 1; }
    rm "$scratch/$1"
}
for bad in 'intra/model/x.c inter/record/types.h' 'inter/record/x.c inter/service/service.h' \
    'agent/job/x.c agent/cli/commands.h' 'agent/wan/x.c agent/job/config.h' \
    'inter/record/x.c kernels/kern.h' 'kernels/x.c compress/codec.h'; do
    # shellcheck disable=SC2086
    sees $bad || say "a forbidden include was not noticed: $bad"
done
! sees inter/record/x.c kernels/exact.h || say "inter may use kernels/exact.h"
exit $fail
