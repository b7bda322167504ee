#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The law of rooms (agent/ARCHITECTURE.md), checked over #include lines and over the symbols of the built objects. A layer uses the
# layers that `may` gives it; a room uses the rooms of its own layer that its row in CMakeLists.txt names, which stand above it.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"

declare -A may=(
    [agent/base]="agent/base"
    [kernels]="agent/base kernels"
    [compress]="agent/base kernels compress"
    [security]="agent/base security"
    [intra]="agent/base kernels intra"
    [inter]="agent/base security compress inter" # and of kernels what `exact` names
    [agent]="agent/base kernels compress security intra inter agent"
    [tests]="agent/base kernels compress security intra inter agent tests"
)
exact='^kernels/(exact|pool|device|device_stage)[._]' # the arithmetic that every member makes to the same bits
declare -A uses=() # room -> the rooms that its row names
fail=0
say() { echo "$*"; fail=1; }

while read -r room rest; do
    for r in $rest; do
        [[ -v uses[$r] ]] || say "CMakeLists.txt: $room uses $r, which does not stand above it"
    done
    uses[$room]=$rest
done < <(sed -n 's/^nebula_room(\([^)]*\))$/\1/p' CMakeLists.txt)
((${#uses[@]} > 20)) || say "CMakeLists.txt: only ${#uses[@]} rows of rooms were read"

layer_of() { # path -> layer
    case $1 in
    agent/base/*) echo agent/base ;;
    *) echo "${1%%/*}" ;;
    esac
}
room_of() { # path -> room; "": its layer has none
    case $1 in
    agent/base/*) ;;
    agent/* | inter/* | intra/*) [[ ${1#*/} != */* ]] || echo "${1%%/*}/$(cut -d/ -f2 <<<"$1")" ;;
    esac
}

arrows() { # lines "WHERE FROM TO WHAT": files FROM and TO, sorted and unique by their folders
    local where from to what a b
    while read -r where from to what; do
        a=$(layer_of "$from") b=$(layer_of "$to")
        [[ -n ${may[$a]:-} ]] || { say "$from: folder '$a' has no layer"; continue; }
        [[ " ${may[$a]} " == *" $b "* ]] || [[ $a == inter && $to =~ $exact ]] || say "$where: $a must not use $b: $what"
        [[ $a == "$b" ]] || continue
        a=$(room_of "$from") b=$(room_of "$to")
        [[ -n $a && -n $b && $a != "$b" ]] || continue
        [[ -v uses[$a] ]] || { say "$from: room $a has no row in CMakeLists.txt"; continue; }
        [[ " ${uses[$a]} " == *" $b "* ]] || say "$where: room $a must not use $b: $what"
    done
}

check_includes() { # root
    arrows < <(cd "$1" && grep -rnoE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"[^"]+"' \
        --include='*.c' --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' \
        agent kernels compress security intra inter tests 2>/dev/null |
        sed -E 's/^([^:]+):([0-9]+):.*"([^"]+)"$/\1:\2 \1 \3 \3/' |
        awk '{ f = $2; sub(/\/[^\/]*$/, "", f); t = $3; if (t !~ /^kernels\//) sub(/\/[^\/]*$/, "", t); if (!seen[f " " t]++) print }')
}

# What an object of a room refers to, and where that is defined: a declaration in the wrong header hides no arrow.
check_symbols() { # build folder
    local lists=()
    mapfile -t lists < <(find "$1"/CMakeFiles -path '*/neb_*.dir/*.o' -o -path '*/nebula.dir/*.o')
    ((${#lists[@]} > 300)) || { say "only ${#lists[@]} objects in $1"; return; }
    # generated sources are in no room, and objects of sources that are gone may lie in an old build folder
    arrows < <(nm -A "${lists[@]}" 2>/dev/null | sed -E 's/^[^ ]*\.dir\/([^ ]*)\.o:/\1 /' |
        awk 'FNR == NR { is[$1]; next } $1 in is' <(find agent inter intra compress security kernels -name '*.c*') - | awk '
        NF == 4 && $3 ~ /^[TDBRVWC]$/ { at[$4] = $1 }
        NF == 3 && $2 == "U" { n++; user[n] = $1; what[n] = $3 }
        END {
            for (i = 1; i <= n; i++) if (what[i] in at) {
                f = user[i]; sub(/\/[^\/]*$/, "", f); t = at[what[i]]; sub(/\/[^\/]*$/, "", t)
                if (t == "kernels") t = at[what[i]]
                if (f != t && !seen[f " " t]++) print user[i], user[i], at[what[i]], what[i]
            }
        }')
}

check_includes .
[[ -z ${BUILD:-} ]] || check_symbols "$BUILD"
for d in */; do
    case $d in agent/ | intra/ | inter/ | compress/ | security/ | kernels/ | tests/ | configs/ | build*/ | out/) ;;
    *) say "unexpected top-level folder $d" ;; esac
done
for f in agent/*.[ch] inter/*.[ch] intra/*.[ch]; do
    [[ ! -e $f ]] || say "$f is in no room"
done

# The test itself must be able to fail: forbidden includes in a scratch tree have to be seen.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for bad in 'intra/model/x.c inter/record/types.h' 'inter/record/x.c inter/service/service.h' 'agent/job/x.c agent/cli/commands.h'; do
    read -r file header <<<"$bad"
    mkdir -p "$scratch/$(dirname "$file")"
    echo "#include \"$header\"" >"$scratch/$file"
    if (fail=0; check_includes "$scratch"; exit $fail) >/dev/null; then say "a forbidden include was not noticed: $bad"; fi
    rm "$scratch/$file"
done
exit $fail
