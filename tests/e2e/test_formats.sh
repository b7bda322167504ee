#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Files of gzip, xz, zstd, tar, nanoGPT, llm.c and Megatron give the tokens of the plain text, and
# hostile ones end the build. test_arrow.sh has the formats that need packages of PyPI.
. "$(dirname "$0")/formats.sh"
python3 "$SOURCE/tests/e2e/formats.py" "$D" plain
build "$T/want" "$D/plain.jsonl" format: jsonl, field: text || fail "$(cat "$T/build.log")"
json='format: jsonl, field: text'
same "$D/plain.txt" format: text
same "$D/text.txt.gz" format: text
same "$D/gz.dat" "$json"
same "$D/lines.xz" "$json"
[[ ! -e $D/lines.zst ]] || same "$D/lines.zst" "$json"
for kind in USTAR PAX GNU; do
    same "$D/$kind.tar" format: tar
    same "$D/$kind.tar" format: tar, field: caption
done
same "$D/shards" format: tar, member: txt
grep -q '1 files of other kinds are left out' "$T/build.log" || fail "$(cat "$T/build.log")"
bad 'no file in the archive ends in .text; set member; the first file is' "$D/USTAR.tar" \
    format: tar, member: text

# Files of a folder: the suffix of the packer does not decide the split.
build "$T/files" "$D/files" format: text || fail "$(cat "$T/build.log")"
want=$T/files same "$D/files-gz" format: text

# The standard input, a shell's pipe and a named pipe, each read twice.
feed() { # KEYS…: plain.jsonl comes on the standard input
    rm -rf "$T/got"
    build "$T/got" - "$@" || fail "-: $(cat "$T/build.log")"
    diff -r "$T/want/s" "$T/got/s" || fail "the standard input gives other tokens"
}
cat "$D/plain.jsonl" | feed "$json"
feed "$json" <"$D/gz.dat"
cat "$D/GNU.tar" | feed format: tar
mkfifo "$T/fifo"
cat "$D/plain.txt" >"$T/fifo" &
same "$T/fifo" format: text
grep -q 'waiting for the writer of the named pipe' "$T/build.log" || fail "$(cat "$T/build.log")"

# Ids as they are.
held=0 build "$T/ids" "$D/plain.jsonl" "$json" || fail "$(cat "$T/build.log")"
for row in 'nanogpt.bin nanogpt' 'llmc.bin nanogpt' 'megatron.idx megatron'; do
    held=0 want=$T/ids same "$D/${row% *}" "format: ${row#* }"
done
held=0 build "$T/edge" "$D/edge.jsonl" "$json" || fail "$(cat "$T/build.log")"
held=0 want=$T/edge same "$D/edge.bin" format: nanogpt
bad 'token 1234 is 300, but the vocabulary' "$D/outside.bin" format: nanogpt
bad 'this is a NumPy array, not a list of token ids' "$D/text.npy" format: nanogpt
bad 'is a file NAME.idx' "$D/megatron.bin" format: megatron
truncate -s -2 "$D/megatron.bin"
bad 'the index does not fit its .bin file' "$D/megatron.idx" format: megatron
echo 'sources: [{name: s, path: x.bin, format: nanogpt}]' >"$T/spec.yaml"
refuses 2 'name the vocabulary that they are of' data build "$T/spec.yaml" --out "$T/no"

# What is not text is refused under its name, with what to do.
bad 'set the format of the source to tar' "$D/PAX.tar" format: text
bad 'these may be token ids of 16 bits: set the format of the source to nanogpt' \
    "$D/gpt2.bin" format: text
bad 'this is a list of token ids of llm.c; set the format of the source to nanogpt' \
    "$D/llmc.bin" format: text
bad 'this is the index of a Megatron data set; set the format of the source to megatron' \
    "$D/megatron.idx" format: text
bad 'the gzip data ends too early' "$D/cut.gz" "$json"
bad 'more than 256 times as many' "$D/bomb.gz" format: nanogpt
bad 'a pipe, but its format needs a regular file' "$T/fifo" format: parquet, field: text
