#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every row of the threat model (security/README.md) names tests that exist. LABEL_NAME is
# tests/LABEL/test_NAME.c or .sh, followed by its cases (for sim_sim: options of the simulator).
# fuzz_NAME is a fuzz target with a corpus. The check must also refuse broken copies of the table.
set -euo pipefail
: "${SOURCE:?set SOURCE to the source folder}"
T=$(mktemp -d /tmp/nebula-threats-XXXXXX)
trap 'rm -rf "$T"' EXIT

check() { # README: prints errors
    local readme=$1 rows=0 cell ref name cases case file corpus
    while IFS= read -r cell; do
        rows=$((rows + 1))
        [[ $cell =~ [a-zA-Z] ]] || { echo "row $rows names no test"; continue; }
        while IFS= read -r ref; do
            [[ $ref =~ ^\`([a-z0-9_-]+)\`(\ ([a-z0-9_, ]+))?$ ]] ||
                { echo "row $rows: \"$ref\" is not a reference"; continue; }
            name=${BASH_REMATCH[1]} cases=${BASH_REMATCH[3]:-}
            case $name in
            fuzz_*)
                corpus=$SOURCE/tests/fuzz/corpus/${name#fuzz_}
                [[ -f $SOURCE/tests/fuzz/$name.c && -z $cases ]] &&
                    [[ -n $(ls -A "$corpus" 2>/dev/null) ]] ||
                    echo "row $rows: no fuzz target \"$name\" with a corpus"
                continue
                ;;
            *) file=$(compgen -G "$SOURCE/tests/${name%%_*}/test_${name#*_}.*" || true) ;;
            esac
            [[ -f $file ]] || { echo "row $rows: there is no test file for $name"; continue; }
            for case in ${cases//,/}; do
                if [[ $name == sim_sim ]]; then # cases are options of the simulator
                    grep -q "^\"\$sim\" --$case " "$file" ||
                        echo "row $rows: ${file#"$SOURCE"/} does not run --$case"
                    continue
                fi
                grep -q "^static void test_$case(" "$file" ||
                    echo "row $rows: ${file#"$SOURCE"/} has no test_$case"
            done
        done <<<"${cell//; /$'\n'}"
    done < <(awk '/^## / { in_table = /Threat model/ }
        in_table && /^[|] / && !/^[|] (attacker|---)/ {
            sub(/ [|]$/, "", $0)
            n = split($0, f, / [|] /)
            print f[n]
        }' "$readme")
    ((rows >= 30)) || echo "found $rows rows, expected 30 or more"
}

wrong=$(check "$SOURCE/security/README.md")
[[ -z $wrong ]] || { echo "$wrong"; exit 1; }
broken() { # SED: makes a false copy, which the check must refuse
    sed -E "$1" "$SOURCE/security/README.md" >"$T/README.md"
    cmp -s "$T/README.md" "$SOURCE/security/README.md" &&
        { echo "this changes nothing: $1"; exit 1; }
    [[ -n $(check "$T/README.md") ]] || { echo "the check accepts: $1"; exit 1; }
}
broken 's/(`security_enrol_strangers`) slow_loris/\1 slow_lorries/'
broken 's/(`unit_link_strangers` unknown_key), spoof/\1, spoofs/'
broken 's/`fuzz_token` \|/`fuzz_tokens` |/'
broken 's/`security_harden` not_dumpable/-/'
broken 's/(\| )`security_hostile[a-z_]*` replay/\1`hostile` replay/'
broken 's/`security_flood`/`security_floods`/'
broken 's/`sim_sim` byzantine/`sim_sim` lair/'
broken 's/\| `security_promote` \|/| by hand |/'
echo "every row of the threat model names tests that exist"
