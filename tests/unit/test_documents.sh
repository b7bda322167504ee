#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# agent/ARCHITECTURE.md, agent/DECISIONS.md and the folders' README.md name files, functions and headings that are there: a text that
# sends its reader to what was renamed is worse than none. A function with a file behind it, `f()` (`dir/file.c`), is looked for in that
# file; of a link [text](FILE#heading) file and heading.
set -euo pipefail
: "${SOURCE:?set SOURCE to the source folder}"
cd "$SOURCE"
bad=0
complain() { echo "$*" >&2; bad=1; }

check() { # FILE: complains of every name in it that is not there
    local doc=$1 text name file link
    text=$(tr '\n' ' ' <"$doc" | tr -s ' ')
    while read -r file; do
        compgen -G "$file" >/dev/null || compgen -G "$(dirname "$doc")/$file" >/dev/null || complain "$doc: there is no $file"
    done < <(grep -oE '`(agent|intra|inter|compress|security|kernels|tests|configs)/[A-Za-z0-9_./*-]+\.(c|h|cu|cc|sh|yaml|md)`' <<<"$text" | tr -d '`' | sort -u)
    while read -r name file; do
        grep -qE "\b$name\(" "$file" || complain "$doc: no $name() in $file"
    done < <(grep -oE '`[a-z_0-9]+\(([A-Z_ ]*)\)` \(`[A-Za-z0-9_./-]+\.(c|h|cu|cc)`' <<<"$text" | sed -E 's/^`([a-z_0-9]+)\([^)]*\)` \(`([^`]+)`$/\1 \2/' | sort -u)
    while read -r name; do
        grep -rqE "\b$name\(" --include='*.[ch]' --include='*.cu' --include='*.cc' agent intra inter compress security kernels tests ||
            complain "$doc: there is no function $name()"
    done < <(grep -oE '`[a-z][a-z_0-9]+\([A-Z_ ]*\)`' <<<"$text" | sed -E 's/^`([a-z_0-9]+)\(.*/\1/' | sort -u)
    while read -r link; do
        file=$(dirname "$doc")/${link%%#*} name=
        [[ $link == *#* ]] && name=${link#*#}
        [[ $link == \#* ]] && file=$doc
        if [[ ! -e $file ]]; then
            complain "$doc: there is no $link"
        elif [[ -n $name ]] && ! headings "$file" | grep -qxF -- "$name"; then
            complain "$doc: $file has no heading for #$name"
        fi
    done < <(grep -oE '\]\([^) ]+\)' <<<"$text" | sed -E 's/^\]\((.*)\)$/\1/' | grep -v '^https\?:' | sort -u)
}

headings() { # FILE: as links name them
    sed -nE 's/^#+ +//p' "$1" | tr -d '`' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^[:alnum:]_ -]//g; s/ /-/g'
}

# Every e2e test is in the table of tests/README.md, once, and what is there is a test.
by_subject() { # FILE: the names in its table
    sed -n '/^## e2e, by subject/,/^## [^e]/p' "$1" | sed '1,/^| ---/d' | sed -nE 's/^\|[^|]*\|(.*)\|$/\1/p' | sed -E 's/\([^()]*\)//g' | tr ',' '\n' |
        sed -E 's/^ +//; s/ +$//' | grep -xE '[a-z0-9_]+' | sort
}
check_table() { # FILE
    local line
    while read -r line; do
        complain "$1, by subject: ${line/#</is no test, or there twice:}"
    done < <(diff <(by_subject "$1") <(e2e_tests | sort) | sed -nE 's/^> (.*)/lacks \1/p; /^</p')
}
e2e_tests() { printf '%s\n' tests/e2e/test_*.sh | sed -E 's/.*test_(.*)\.sh/\1/'; }

# The check itself: it must see what is wrong.
T=$(mktemp)
trap 'rm -f "$T"' EXIT
# shellcheck disable=SC2016
echo 'see `nowhere_to_be_found()` and `agent/no_such_file.c`, or `neb_now()` (`agent/cli/main.c`), [there](nowhere.md) or [here](#none)' >"$T"
[[ $(check "$T" 2>&1 | wc -l) == 5 ]] || { echo "a text with five mistakes was not noticed" >&2; exit 1; }

printf '## e2e, by subject\n| subject | tests |\n| --- | --- |\n| all | resume (bit, for bit), no_such_test, %s |\n' "$(e2e_tests | grep -vx late | paste -sd,)" >"$T"
[[ $(check_table "$T" 2>&1 | wc -l) == 3 ]] || { echo "a table with three mistakes was not noticed" >&2; exit 1; }

check_table tests/README.md
for doc in agent/ARCHITECTURE.md agent/DECISIONS.md configs/COMPARE.md ./*/README.md tests/*/README.md README.md; do check "$doc"; done
exit $bad
