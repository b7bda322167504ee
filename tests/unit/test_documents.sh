#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Documents name only files, functions and headings that exist, and every test says what it shows.
# In `f()` (`dir/file.c`) the file must have the function, in [text](FILE#heading) both must exist.
set -euo pipefail
: "${SOURCE:?set SOURCE to the source folder}"
cd "$SOURCE"
bad=0
complain() { echo "$*" >&2; bad=1; }

folders='agent|intra|inter|compress|security|kernels|tests|configs'
any_file='`('$folders')/[A-Za-z0-9_./*-]+\.(c|h|cu|cc|sh|yaml|md)`'
call_and_file='`[a-z_0-9]+\(([A-Z_ ]*)\)` \(`[A-Za-z0-9_./-]+\.(c|h|cu|cc)`'
any_call='`[a-z][a-z_0-9]+\([A-Z_ ]*\)`'

exists() { compgen -G "$1" >/dev/null; }
sources_have() { # NAME: whether a source has NAME(
    local IFS='|'
    # shellcheck disable=SC2086
    grep -rqE "\b$1\(" --include='*.[ch]' --include='*.cu' --include='*.cc' ${folders%|configs}
}
headings() { # FILE: its headings, as links spell them
    sed -nE 's/^#+ +//p' "$1" | tr -d '`' | tr '[:upper:]' '[:lower:]' |
        sed -E 's/[^[:alnum:]_ -]//g; s/ /-/g'
}

check() { # FILE: complains about each name that does not exist
    local doc=$1 text name file link
    text=$(tr '\n' ' ' <"$doc" | tr -s ' ')
    while read -r file; do
        exists "$file" || exists "$(dirname "$doc")/$file" || complain "$doc: $file does not exist"
    done < <(grep -oE "$any_file" <<<"$text" | tr -d '`' | sort -u)
    while read -r name file; do
        grep -qE "\b$name\(" "$file" || complain "$doc: $file has no $name()"
    done < <(grep -oE "$call_and_file" <<<"$text" |
        sed -E 's/^`([a-z_0-9]+)\([^)]*\)` \(`([^`]+)`$/\1 \2/' | sort -u)
    while read -r name; do
        sources_have "$name" || complain "$doc: no source has a function $name()"
    done < <(grep -oE "$any_call" <<<"$text" | sed -E 's/^`([a-z_0-9]+)\(.*/\1/' | sort -u)
    while read -r link; do
        file=$(dirname "$doc")/${link%%#*} name=
        [[ $link == *#* ]] && name=${link#*#}
        [[ $link == \#* ]] && file=$doc
        if [[ ! -e $file ]]; then
            complain "$doc: $link does not exist"
        elif [[ -n $name ]] && ! headings "$file" | grep -qxF -- "$name"; then
            complain "$doc: $file has no heading for #$name"
        fi
    done < <(grep -oE '\]\([^) ]+\)' <<<"$text" | sed -E 's/^\]\((.*)\)$/\1/' |
        grep -v '^https\?:' | sort -u)
}

# The head of each test says what it shows, so `head -n 3` of all tests gives a list of them.
check_tests() { # FILE...
    local file
    for file; do
        head -n 4 "$file" | grep -E '^(# |// ?|/\* ?)[^ ]' | grep -qv 'SPDX-License-Identifier' ||
            complain "$file: its head has no comment that says what it shows"
    done
}

# The checks themselves must find planted mistakes.
T=$(mktemp)
trap 'rm -f "$T"' EXIT
# shellcheck disable=SC2016
echo 'see `nowhere_to_be_found()` and `agent/no_such_file.c`, or `neb_now()`' \
    '(`agent/cli/main.c`), [there](nowhere.md) or [here](#none)' >"$T"
[[ $(check "$T" 2>&1 | wc -l) == 5 ]] || { echo "the check missed a mistake" >&2; exit 1; }
printf '#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\nset -e\n' >"$T"
[[ $(check_tests "$T" 2>&1) ]] || { echo "the check missed a bare test" >&2; exit 1; }

check_tests tests/*/test_*.{c,sh}
while read -r doc; do check "$doc"; done < <(
    find . -name '*.md' -not -path './build*' -not -path './out/*' -not -path './.*' | sort
)
exit $bad
