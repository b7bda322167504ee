#!/usr/bin/env bash
# Every row of the threat model (security/README.md) names tests that exist: a file of the legend, and in it the case, or a fuzz target
# with a corpus. The check is run on broken copies too, which it must refuse.
set -euo pipefail
: "${SOURCE:?set SOURCE to the source folder}"
T=$(mktemp -d /tmp/nebula-threats-XXXXXX)
trap 'rm -rf "$T"' EXIT

check() { # README: prints what is wrong
    local readme=$1 letter path rows=0 cell ref name files
    declare -A legend=()
    while read -r letter path; do legend[$letter]=$path; done < <(tr '\n' ' ' <"$readme" |
        grep -oE '`[A-Z]{1,2}` tests/[A-Za-z0-9_/.*-]+' | sed -E 's/`([A-Z]+)` (.*[^.])\.?$/\1 \2/')
    while IFS= read -r cell; do
        rows=$((rows + 1))
        [[ $cell =~ [a-zA-Z] ]] || { echo "row $rows names no test"; continue; }
        while IFS= read -r ref; do
            [[ $ref =~ ^\`([A-Z]{1,2})\`(\ ([a-z0-9_]+))?$ ]] || { echo "row $rows: \"$ref\" is no reference"; continue; }
            letter=${BASH_REMATCH[1]} name=${BASH_REMATCH[3]:-}
            if [[ $letter == F ]]; then
                [[ -f $SOURCE/tests/fuzz/fuzz_$name.c && -n $(ls -A "$SOURCE/tests/fuzz/corpus/$name" 2>/dev/null) ]] ||
                    echo "row $rows: no fuzz target \"$name\" with a corpus"
                continue
            fi
            files=$(compgen -G "$SOURCE/${legend[$letter]:-none}" || true)
            # shellcheck disable=SC2086 # a pattern may be several files
            if [[ -z $files ]]; then
                echo "row $rows: $letter stands for no file (${legend[$letter]:-not in the legend})"
            elif [[ -n $name ]] && ! grep -q "^static void test_$name(" $files; then
                echo "row $rows: ${legend[$letter]} has no test_$name"
            fi
        done <<<"${cell//, /$'\n'}"
    done < <(awk -F' [|] ' '/^## /{ in_table = /Threat model/ } in_table && /^[|] / && !/^[|] (attacker|---)/ { sub(/ [|]$/, "", $0); n = split($0, f, / [|] /); print f[n] }' "$readme")
    ((rows >= 30)) || echo "only $rows rows were found"
}

wrong=$(check "$SOURCE/security/README.md")
[[ -z $wrong ]] || { echo "$wrong"; exit 1; }
broken() { # SED: a copy that is no longer true
    sed -E "$1" "$SOURCE/security/README.md" >"$T/README.md"
    cmp -s "$T/README.md" "$SOURCE/security/README.md" && { echo "nothing was broken by $1"; exit 1; }
    [[ -n $(check "$T/README.md") ]] || { echo "not noticed: $1"; exit 1; }
}
broken 's/`E` slow_loris/`E` slow_lorries/'
broken 's/`F` token \|/`F` tokens |/'
broken 's/`A` not_dumpable/-/'
broken 's/`M` replay/`Z` replay/'
broken 's#tests/security/test_flood.c#tests/security/test_floods.c#'
broken 's/\| `P` \|/| by hand |/'
echo "every row of the threat model names tests that exist"
