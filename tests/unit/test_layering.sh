#!/usr/bin/env bash
# The layers are law (agent/ARCHITECTURE.md): every #include "folder/..." of every source is checked against the
# list of folders that its own folder may see. A new top-level folder fails too.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"

declare -A may=(
    [agent/base]="agent/base"
    [kernels]="agent/base kernels"
    [compress]="agent/base kernels compress"
    [security]="agent/base security"
    [intra]="agent/base kernels intra"
    [inter]="agent/base security compress inter"
    [agent]="agent/base kernels compress security intra inter agent"
    [tests]="agent/base kernels compress security intra inter agent tests"
)

folder_of() { # path -> layer
    case $1 in
    agent/base/*) echo agent/base ;;
    *) echo "${1%%/*}" ;;
    esac
}

fail=0
check_tree() { # root
    local file line header from to
    while IFS=: read -r file line header; do
        from=$(folder_of "$file")
        to=$(folder_of "$header")
        [[ -n ${may[$from]:-} ]] || { echo "$file: folder '$from' has no layer"; fail=1; continue; }
        [[ " ${may[$from]} " == *" $to "* ]] || { echo "$file:$line: $from must not include $header"; fail=1; }
    done < <(cd "$1" && grep -rnoE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"[^"]+"' \
        --include='*.c' --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' \
        agent kernels compress security intra inter tests 2>/dev/null |
        sed -E 's/^([^:]+):([0-9]+):.*"([^"]+)"$/\1:\2:\3/')
}

check_tree .
for d in */; do
    case $d in agent/ | intra/ | inter/ | compress/ | security/ | kernels/ | tests/ | configs/ | build*/ | out/) ;;
    *) echo "unexpected top-level folder $d"; fail=1 ;; esac
done

# The test itself must be able to fail: a forbidden include in a scratch tree has to be seen.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/intra"
echo '#include "inter/round.h"' >"$scratch/intra/bad.c"
if (fail=0; check_tree "$scratch"; exit $fail) >/dev/null; then
    echo "a forbidden include was not noticed"
    fail=1
fi
exit $fail
