# SPDX-License-Identifier: Apache-2.0
# A column of a Parquet or Arrow file as lines of JSON. convert.c runs this with pyarrow:
#   python3 -c rows.py parquet|arrow FILE COLUMN
import json
import sys

sys.path = [p for p in sys.path if p]  # not the working folder, which may hold another pyarrow

import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402


def batches(kind, path):
    """The schema, and a generator of record batches of a file."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        f = pq.ParquetFile(path, memory_map=True)
        top = COLUMN if COLUMN in f.schema_arrow.names else COLUMN.split(".")[0]
        return f.schema_arrow, (
            b
            for g in range(f.num_row_groups)
            for b in f.iter_batches(batch_size=4096, row_groups=[g], columns=[top])
        )
    source = pa.memory_map(path)
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:  # a stream, as the datasets package writes it
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        return reader.schema, iter(reader)
    return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))


def pick(batch):
    """The column as an array; a name with points leads into structs."""
    if COLUMN in batch.schema.names:
        return batch.column(COLUMN)
    first, *rest = COLUMN.split(".")
    array = batch.column(first)
    for name in rest:
        array = pc.struct_field(array, name)
    return array


def kind_of(schema):
    """The type of the column. None: there is no such column."""
    if COLUMN in schema.names:
        return schema.field(COLUMN).type
    first, *rest = COLUMN.split(".")
    at = schema.field(first).type if first in schema.names else None
    for name in rest:
        if at is None or not pa.types.is_struct(at) or at.get_field_index(name) < 0:
            return None
        at = at.field(name).type
    return at


def main():
    schema, parts = batches(sys.argv[1], sys.argv[2])
    kind = kind_of(schema)
    if kind is None:
        sys.exit(f"no column \"{COLUMN}\"; its columns are {', '.join(schema.names)}")
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(
        f(plain)
        for f in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
                  pa.types.is_large_binary, getattr(pa.types, "is_string_view", lambda t: False))
    ):
        sys.exit(f"column \"{COLUMN}\" is not text: its type is {kind}")
    out = sys.stdout.buffer
    for batch in parts:
        array = pick(batch)
        if pa.types.is_dictionary(kind):
            array = array.dictionary_decode()
        for value in array.cast(pa.large_binary()).to_pylist():
            try:
                text = None if value is None else value.decode()
            except UnicodeDecodeError:
                text = None
            out.write(json.dumps({COLUMN: text}, ensure_ascii=False).encode() + b"\n")
    out.flush()


COLUMN = sys.argv[3]
try:
    main()
except (pa.ArrowException, OSError, MemoryError) as e:
    sys.exit(" ".join(str(e).split()) or type(e).__name__)
