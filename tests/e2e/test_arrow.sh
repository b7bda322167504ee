#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Files of pyarrow, datasets, webdataset and NumPy give the tokens of the plain text. They come from
# NEBULA_PYTHON, from python3, or from the environment that tests/peers/data/setup makes.
. "$(dirname "$0")/formats.sh"
for p in "${NEBULA_PYTHON:-}" python3 \
    "${XDG_CACHE_HOME:-$HOME/.cache}/nebula/peers-data/bin/python3"; do
    [[ ! $p ]] || ! "$p" -c 'import pyarrow' 2>/dev/null || break
    p=
done

# Without pyarrow the message says what to install.
mkdir -p "$T/bare" && python3 "$SOURCE/tests/e2e/formats.py" "$D" plain
printf '#!/bin/sh\nexec python3 -S "$@"\n' >"$T/bare/python" && chmod +x "$T/bare/python"
printf 'PAR1' >"$T/x.parquet"
NEBULA_PYTHON=$T/bare/python bad 'needs Apache Arrow for Python; pip install pyarrow' \
    "$T/x.parquet" format: parquet, field: text
NEBULA_PYTHON=/nowhere/python bad '/nowhere/python cannot be started' \
    "$T/x.parquet" format: parquet, field: text
[[ ${p:-} ]] || skip "no Python with pyarrow (tests/peers/data/setup makes one)"
export NEBULA_PYTHON=$p
"$p" -W ignore "$SOURCE/tests/e2e/formats.py" "$D" arrow 2>"$T/python.log" ||
    fail "$(tail "$T/python.log")"
build "$T/want" "$D/plain.jsonl" format: jsonl, field: text || fail "$(cat "$T/build.log")"

for column in text words bytes de.x translation.de; do
    same "$D/a.parquet" "format: parquet, field: $column"
done
same "$D/parts" format: parquet, field: text
for file in a.feather file.arrow stream.arrow; do
    same "$D/$file" format: arrow, field: text
done
[[ ! -e $D/hf ]] || {
    same "$D/hf" format: arrow, field: text
    same "$D/hf-dict/train" format: arrow, field: text
    same "$D/hf.parquet" format: parquet, field: text
    same "$D/hf.jsonl" format: jsonl, field: text
}
[[ ! -e $D/web.tar ]] || {
    same "$D/web.tar" format: tar
    same "$D/web.tar" format: tar, field: text
    same "$D/web.tar.gz" format: tar
}
[[ ! -e $D/numpy.bin ]] || {
    held=0 build "$T/ids" "$D/plain.jsonl" format: jsonl, field: text
    held=0 want=$T/ids same "$D/numpy.bin" format: nanogpt
}
[[ ! -e $D/mcore.idx ]] || held=0 want=$T/ids same "$D/mcore.idx" format: megatron

bad 'holes.parquet:6: no text in field "text"' "$D/holes.parquet" format: parquet, field: text
for column in text deep.de; do
    same "$D/holes.parquet" "format: parquet, field: $column, max_bad_share: 0.01"
done
bad 'no column "body"; its columns are n, text, de.x, translation' "$D/a.parquet" \
    format: parquet, field: body
bad 'column "n" is not text: its type is int64' "$D/a.parquet" format: parquet, field: n
bad 'cut.parquet: ' "$D/cut.parquet" format: parquet, field: text
bad 'damaged.parquet: ' "$D/damaged.parquet" format: parquet, field: text
bad 'more than 256 times as much text' "$D/bomb.parquet" format: parquet, field: text
bad 'set the format of the source to parquet' "$D/a.parquet" format: text
bad 'set the format of the source to arrow' "$D/file.arrow" format: text
bad 'file.arrow: ' "$D/file.arrow" format: parquet, field: text
