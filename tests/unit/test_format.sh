#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source has at most 100 columns and an SPDX line, and clang-format 14 leaves C and CUDA as
# they are. Debian 12 has that version; others format some places differently.
set -euo pipefail
export LC_ALL=C.UTF-8 # a column is a character, not a byte
cd "${SOURCE:-$(dirname "$0")/../..}"
fail=0
complain() { printf '%s:\n%s\n' "$1" "$2"; fail=1; }

tracked() { # a source archive has no git
    local in=(CMakeLists.txt agent intra inter compress security kernels tests configs)
    git ls-files -- "${in[@]}" 2>/dev/null || find "${in[@]}" -type f
}
sources=() formatted=()
while IFS= read -r file; do
    case ${file##*/} in
    *.[ch] | *.cu | *.cuh) formatted+=("$file") ;;
    *_golden.inc) continue ;; # data that a script writes
    *.cc | *.inc | *.sh | *.py | *.cmake | CMakeLists.txt) ;;
    *.*) continue ;;
    *) # a script without an ending
        IFS= read -rN2 start <"$file" || continue
        [[ $start == '#!' ]] || continue
        ;;
    esac
    sources+=("$file")
done < <(tracked)
((${#sources[@]} > 1000)) || complain "too few sources were found" "${#sources[@]}"

wide=$(grep -aHcP '^.{101,}' -- "${sources[@]}" | grep -v ':0$') || true
[[ -z $wide ]] || complain "lines of more than 100 columns, by file" "$wide"

bare=$(grep -aL '^\(//\|#\) SPDX-License-Identifier: Apache-2.0$' -- "${sources[@]}") || true
[[ -z $bare ]] || complain "no SPDX line" "$bare"

version=$(clang-format --version 2>/dev/null) || version=none
if [[ $version == *"version 14."* ]]; then
    printf '%s\0' "${formatted[@]}" | xargs -0 -P2 -n20 clang-format --dry-run --Werror || fail=1
elif ((!fail)); then
    echo "cannot run here: clang-format 14 is needed, and there is: $version"
    exit 77
fi
exit $fail
