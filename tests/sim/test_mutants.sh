#!/usr/bin/env bash
# Does the simulator notice? Each planted bug of mutants.txt must end in a violation.
set -euo pipefail
cd "$SOURCE"
T=$(mktemp -d "${TMPDIR:-/tmp}/nebula-mutants-XXXXXX")
trap 'rm -rf "$T"' EXIT
cc=${CC:-cc}
flags=(-std=gnu11 -D_GNU_SOURCE -O1 -w -I"$T/src" -I"$SOURCE")
files=(tests/sim/nebula-sim*.c inter/node*.c inter/types.c inter/transfer.c agent/schedule.c agent/base/*.c)

build() { # the objects whose sources are in $T/src are made anew
    local f o objects=()
    for f in "${files[@]}"; do
        o=$T/obj/${f//\//_}.o
        if [[ -e $T/src/$f ]]; then
            o=$T/mutant/${f//\//_}.o
            "$cc" "${flags[@]}" -c "$T/src/$f" -o "$o"
        elif [[ -n ${header:-} && $f == inter/node*.c ]]; then
            o=$T/mutant/${f//\//_}.o
            "$cc" "${flags[@]}" -c "$f" -o "$o"
        elif [[ ! -e $o ]]; then
            "$cc" "${flags[@]}" -c "$f" -o "$o"
        fi
        objects+=("$o")
    done
    "$cc" "${objects[@]}" -o "$1" -lcrypto -lm -lpthread
}

mkdir -p "$T/obj" "$T/mutant" "$T/src"
build "$T/whole"
"$T/whole" --seeds 200 >/dev/null

planted=0
while IFS='|' read -r name file change what; do
    [[ $name == \#* || -z $name ]] && continue
    [[ -z ${ONLY:-} || $name =~ $ONLY ]] || continue # ONLY=name: a part, for whoever adds one
    # A substitution may hold "|" itself: the last field is what it breaks, the first two are plain.
    line=$(grep -m1 "^$name|" tests/sim/mutants.txt)
    what=${line##*|}
    change=${line#"$name|$file|"}
    change=${change%"|$what"}
    rm -rf "$T/src" "$T/mutant"
    mkdir -p "$T/src/$(dirname "$file")" "$T/mutant"
    perl -0pe "$change" "$file" >"$T/src/$file"
    if cmp -s "$file" "$T/src/$file"; then
        echo "FAILED: $name: its substitution no longer matches $file" >&2
        exit 1
    fi
    header=
    [[ $file == *.h ]] && header=1
    build "$T/sim"
    caught=
    start=$(date +%s%N)
    for run in "--exhaustive single --members 3 --rounds 3" "--seed 1 --seeds 3000" "--seed 3001 --seeds 20000"; do
        # shellcheck disable=SC2086
        if ! timeout 150 "$T/sim" $run >/dev/null 2>"$T/err"; then
            caught=$(grep -m1 '^violation' "$T/err" || echo "violation: crash")
            break
        fi
    done
    [[ -n $caught ]] || { echo "FAILED: $name ($what) was not noticed" >&2; exit 1; }
    printf '%-24s %5.1f s  %s\n' "$name" "$(((($(date +%s%N) - start)) / 100000000))e-1" "${caught#violation: }"
    planted=$((planted + 1))
done <tests/sim/mutants.txt
echo "$planted planted bugs, all noticed"
