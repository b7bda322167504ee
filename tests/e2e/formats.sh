# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by test_formats.sh and test_arrow.sh: builds corpora and compares their shards.
. "$(dirname "$0")/lib.sh"
D=$T/data

build() { # FOLDER PATH KEYS…: the keys of the source after its path
    local out=$1 path=$2
    shift 2
    printf 'tokenizer: %s/v\nholdout: {per_mille: %s}\nsources:\n  - {name: s, path: "%s", %s}\n' \
        "$D" "${held:-100}" "$path" "$*" >"$T/spec.yaml"
    "$nebula" data build "$T/spec.yaml" --out "$out" >"$T/build.log" 2>&1
}
# The corpus of PATH has the same tokens as that of plain.jsonl, shard by shard.
same() { # PATH KEYS…
    rm -rf "$T/got"
    build "$T/got" "$@" || fail "$*: $(cat "$T/build.log")"
    diff -r "${want:-$T/want}/s" "$T/got/s" || fail "$*: the tokens differ from those of the text"
}
bad() { # TEXT PATH KEYS…
    local text=$1
    shift
    rm -rf "$T/got"
    ! build "$T/got" "$@" || fail "$*: accepted"
    grep -qF -- "$text" "$T/build.log" || fail "$*: no '$text': $(cat "$T/build.log")"
    [[ ! -e $T/got ]] || fail "$*: left a corpus"
}
