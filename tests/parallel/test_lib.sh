#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The functions that compare losses (lib.sh, ../e2e/lib.sh) must catch every error: a number out of
# bounds, a value that is not a number (to some versions of awk it equals everything), and a line
# that is missing, added or repeated.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

good='0 4.5 1.25 0
1 4.25 1.5 1
2 4.125 1.75 0
eval 4.0625'
fine() { # WHAT FUNCTION...
    "${@:2}" >"$work/said" || { cat "$work/said"; echo "$1 fails"; exit 1; }
}
wrong() { # WHAT FUNCTION...: must fail with a message
    if "${@:2}" >"$work/said"; then echo "$1 succeeds: $(cat "$work/said")"; exit 1; fi
    [[ -s $work/said ]] || { echo "$1: there is no message"; exit 1; }
}
out() { sed "$1" <<<"$good" >"$work/out"; }

echo "$good" >"$work/one"
for change in '' '2s/4.25/4.2504/' '1s/4.5/4.500004/' '3s/1.75/1.751/' '1s/ 0$/ 1/' \
    's/4.0625/4.0626/'; do
    out "$change"
    fine "$change" agrees "$change"
done
for change in '2s/4.25/4.2506/' '1s/4.5/4.50001/' '2s/1.5/1.502/' '3s/ 0$/ 2/' 's/4.0625/4.063/' \
    '2s/4.25/-4.25/' '2s/4.25/0/' \
    '2s/4.25/nan/' '2s/4.25/-nan/' '1s/4.5/nan/' '2s/1.5/-nan/' \
    '2s/4.25 1.5/nan -nan/' '2s/ 1$/ nan/' 's/4.0625/nan/' '2s/4.25/inf/' 's/4.0625/-inf/' \
    2d 1d '$d' 3p '3p;2d' '2s/^1/7/' 's/.*//' 's/ .*//' '1,$d'; do
    out "$change"
    wrong "$change" agrees "$change"
done
for change in '2s/4.25/4.2506/' '2s/4.25/-4.25/' '2s/4.25/nan/' '2s/4.25/-nan/' '1s/4.5/nan/' \
    's/4.0625/inf/' 2d '$d' 3p '3p;2d' '2s/^1/7/' 's/.*//' 's/ .*//' '1,$d'; do
    out "$change"
    wrong "$change" losses_agree "$change" 1e-4 "$work/one" "$work/out"
done
# The file of one rank may be wrong too.
for change in '2s/4.25/nan/' '2s/1.5/-nan/' 's/4.0625/nan/' '1,$d'; do
    out "$change"
    cp "$work/out" "$work/one"
    wrong "one rank, $change" agrees "$change"
    [[ $change == *1.5* ]] ||
        wrong "one rank, $change" losses_agree "$change" 1e-4 "$work/one" "$work/out"
done
echo "$good" >"$work/one"
out '1s/4.5/4.5002/'
fine "a bound for all" losses_agree "a bound for all" 1e-4 "$work/one" "$work/out"
first_bound=1e-6 wrong "the first" losses_agree "the first" 1e-4 "$work/one" "$work/out"

# The comparisons of whole runs (e2e): equal and missing, near and far.
BUILD=$BUILD digests_may_differ=1 bash -c 'source "$0"
    near() { figures_near 0.02 "$(printf %b "$1")" "$(printf %b "$2")"; }
    near "4.1\t4.2" "4.11\t4.19" || fail "near values differ"
    for pair in "4.1\t4.2 4.13\t4.2" "4.1\t4.2 4.1\t4.1" "4.1\tnan 4.1\tnan" \
        "4.1\tnan 4.1\t4.2" "4.1\t4.2 4.1\t" "\t \t" "4.1\t4.2 4.1" "null null"; do
        read -r a b <<<"$pair"
        ! near "$a" "${b:-}" || fail "$pair is near"
    done
    equal() {
        mkdir -p "$T/run"
        echo "{\"clusters\": [$1]}" >"$T/run/summary.json"
        (digests_equal "$T/run") 2>/dev/null
    }
    a="{\"params_digest\": \"a1\"}" b="{\"params_digest\": \"b2\"}" none="{\"params_digest\": null}"
    equal "$a, $a" || fail "equal digests differ"
    empty=${none/null/\"\"}
    for one in "$a, $b" "$a, $none" "$none, $none" "{}, {}" "$empty, $empty" ""; do
        ! equal "$one" || fail "equal digests: $one"
    done' "$(dirname "$0")/../e2e/lib.sh"
echo "the comparisons of losses catch every error"
