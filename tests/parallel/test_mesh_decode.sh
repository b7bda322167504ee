#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Decoding gives the same tokens on one rank and on any mesh: greedy, draws, beams, with and without
# a cache, in windows.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
program=$BUILD/mesh_decode
launcher=socket # starts sooner than MPI

decodes() { # "OPTIONS" MESH...
    local options=$1 dp pp tp
    shift
    # shellcheck disable=SC2086
    "$program" 0 0 0 $options >"$work/one"
    (($(grep -c uncached "$work/one") == 14)) || { cat "$work/one"; exit 1; }
    for way in "greedy, to the end" beam; do # a cache changes nothing
        diff <(sed -n "s/^$way\( [0-9]\)/\1/p" "$work/one") \
            <(sed -n "s/^${way%%,*}, uncached\( [0-9]\)/\1/p" "$work/one") ||
            { echo "$way ($options): a cache gives other tokens"; exit 1; }
    done
    for mesh in "$@"; do
        IFS=x read -r dp pp tp <<<"$mesh"
        # shellcheck disable=SC2086
        ranks $((dp * pp * tp)) "$program" "$dp" "$pp" "$tp" $options >"$work/out"
        diff "$work/one" "$work/out" ||
            { echo "dp $dp, pp $pp, tp $tp ($options): other tokens than one rank"; exit 1; }
        echo "dp $dp, pp $pp, tp $tp $options: the tokens of one rank"
    done
}
decodes "" 1x1x1 1x1x2 2x1x1 1x2x1 2x2x2
decodes "prefix=1 tied=1 shared=1" 1x1x2 2x1x1 1x1x4
decodes "lora=1 prefix=1" 1x1x2
(($(grep -c ended "$work/one") > 3)) || { cat "$work/one"; echo "too few texts end"; exit 1; }
