# SPDX-License-Identifier: Apache-2.0
"""Writes the same documents in many formats, with the libraries that people use.

usage: formats.py FOLDER plain|arrow

plain: Python's own modules, and `zstd` if it is there. arrow: pyarrow, datasets and webdataset;
what is missing is printed. Also FOLDER/v, a vocabulary whose tokens are bytes.
"""
import array
import gzip
import io
import json
import lzma
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile

out, what = pathlib.Path(sys.argv[1]), sys.argv[2]
out.mkdir(exist_ok=True)
EOS = 256
docs = [
    f"Line {i}: Straße, naïve café, 日本語 \"quoted\" \\ {'x' * (i * 37 % 200)}"
    f"\n\tsecond {i * i}"
    for i in range(600)
]
lines = "".join(json.dumps({"n": i, "text": d}) + "\n" for i, d in enumerate(docs)).encode()


def vocabulary():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in keep)}
    v = out / "v"
    v.mkdir(exist_ok=True)
    alone = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    json.dump(
        {
            "added_tokens": [{"id": EOS, "content": "<eos>", "special": True} | added],
            "pre_tokenizer": alone,
            "decoder": {"type": "ByteLevel"},
            "model": {
                "type": "BPE",
                "vocab": {chr(other.get(b, b)): b for b in range(256)},
                "merges": [],
            },
        },
        open(v / "tokenizer.json", "w"),
    )
    json.dump({"eos_token": "<eos>"}, open(v / "tokenizer_config.json", "w"))


def add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def megatron(name, ids):
    """As Megatron's IndexedDatasetBuilder writes it: a document of two sequences each."""
    lengths, firsts = [], [0]
    with open(out / f"{name}.bin", "wb") as f:
        for d in ids:
            array.array("H", d).tofile(f)
            lengths += [len(d) // 2, len(d) - len(d) // 2]
            firsts.append(len(lengths))
    at = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    n, d = len(lengths), len(firsts)
    with open(out / f"{name}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, d))
        f.write(struct.pack(f"<{n}i", *lengths) + struct.pack(f"<{n + d}q", *at, *firsts))


def plain():
    half = lines.index(b"\n", len(lines) // 2) + 1
    (out / "plain.jsonl").write_bytes(lines)
    (out / "plain.txt").write_text("\n\n".join(docs))
    # several parts, as parallel packers write them, and a name that tells nothing
    (out / "gz.dat").write_bytes(gzip.compress(lines[:half]) + gzip.compress(lines[half:]))
    (out / "lines.xz").write_bytes(lzma.compress(lines[:half]) + lzma.compress(lines[half:]))
    (out / "text.txt.gz").write_bytes(gzip.compress("\n\n".join(docs).encode()))
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", "-f", "-o", out / "lines.zst"], input=lines, check=True)
    for d in ("files", "files-gz"):
        (out / d).mkdir(exist_ok=True)
    for i, d in enumerate(docs[:50]):
        (out / "files" / f"{i:04}.txt").write_text(d)
        (out / "files-gz" / f"{i:04}.txt.gz").write_bytes(gzip.compress(d.encode()))
    for kind in ("USTAR", "PAX", "GNU"):
        with tarfile.open(out / f"{kind}.tar", "w", format=getattr(tarfile, f"{kind}_FORMAT")) as t:
            for i, d in enumerate(docs):
                long = "../é" + "x" * 200 if kind != "USTAR" else "x" * 60
                add(t, f"{long}/{i:06}.cls", b"7")
                add(t, f"{long}/{i:06}.txt", d.encode())
                add(t, f"{long}/{i:06}.json", json.dumps({"caption": d}, indent=1).encode())
                link = tarfile.TarInfo(f"{i:06}l.txt")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                t.addfile(link)
    (out / "shards").mkdir(exist_ok=True)
    for s in range(2):
        with tarfile.open(out / "shards" / f"{s}.tar.gz", "w:gz") as t:
            for i, d in list(enumerate(docs))[s * 300 : s * 300 + 300]:
                add(t, f"{i:06}.txt", d.encode())
    (out / "shards" / "README.md").write_text("not an archive")
    ids = [list(d.encode()) for d in docs]
    flat = array.array("H", [t for d in ids for t in (*d, EOS)])
    (out / "nanogpt.bin").write_bytes(flat.tobytes())
    head = struct.pack("<256i", 20240520, 1, len(flat), *[0] * 253)
    (out / "llmc.bin").write_bytes(head + flat.tobytes())
    words = array.array("H", [i * i * 31 % 50257 for i in range(5000)]) # as GPT-2 spreads them
    (out / "gpt2.bin").write_bytes(words.tobytes())
    edge = ["a" * (1 << 20), *docs[:9]]  # as long as a piece of a document
    (out / "edge.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in edge))
    edge = array.array("H", [t for d in edge for t in (*d.encode(), EOS)])
    (out / "edge.bin").write_bytes(edge.tobytes())
    flat[1234] = 300
    (out / "outside.bin").write_bytes(flat.tobytes())
    megatron("megatron", ids)
    (out / "cut.gz").write_bytes(gzip.compress(lines)[:-20])
    (out / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 28)))
    (out / "text.npy").write_bytes(b"\x93NUMPY\x01\0" + bytes(200))


def arrow():
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet as pq

    table = pa.table({"n": range(len(docs)), "text": docs, "de.x": docs})
    deep = pa.array([{"de": d, "fr": "non"} for d in docs])
    table = table.append_column("translation", deep)
    table = table.append_column("words", pa.array(docs).dictionary_encode())
    table = table.append_column("bytes", pa.array([d.encode() for d in docs], pa.large_binary()))
    pq.write_table(table, out / "a.parquet", row_group_size=100, compression="zstd")
    (out / "parts").mkdir(exist_ok=True)
    pq.write_table(table.slice(0, 250), out / "parts" / "0.parquet")
    pq.write_table(table.slice(250), out / "parts" / "1.parquet", compression="gzip")
    (out / "parts" / "README.md").write_text("---\nlicense: mit\n")
    pa.feather.write_feather(table, out / "a.feather")
    with pa.ipc.new_file(out / "file.arrow", table.schema) as w:
        w.write_table(table, max_chunksize=64)
    with pa.ipc.new_stream(out / "stream.arrow", table.schema) as w:
        w.write_table(table, max_chunksize=64)
    holes = pa.table({"text": [*docs[:5], None, *docs[5:]]})
    deep = pa.array([{"de": d} if d else None for d in holes["text"].to_pylist()])
    holes = holes.append_column("deep", deep)
    pq.write_table(holes, out / "holes.parquet")
    pq.write_table(pa.table({"text": ["a" * 4000] * 300_000}), out / "bomb.parquet")
    whole = (out / "a.parquet").read_bytes()
    (out / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    text = pq.ParquetFile(out / "a.parquet").metadata.row_group(0).column(1)
    at = text.dictionary_page_offset + text.total_compressed_size // 3
    damaged[at : at + 60] = bytes(60)
    (out / "damaged.parquet").write_bytes(damaged)
    try:
        import datasets

        datasets.disable_progress_bars()
        ds = datasets.Dataset.from_dict({"text": docs})
        ds.save_to_disk(out / "hf", num_shards=3)
        datasets.DatasetDict({"train": ds}).save_to_disk(out / "hf-dict")
        ds.to_parquet(out / "hf.parquet")
        ds.to_json(out / "hf.jsonl", force_ascii=False)
    except ImportError:
        print("missing: datasets")
    try:
        import webdataset

        with webdataset.TarWriter(str(out / "web.tar")) as w:
            for i, d in enumerate(docs):
                w.write({"__key__": f"{i:06}", "txt": d, "json": {"text": d}, "cls": i})
        with webdataset.TarWriter(str(out / "web.tar.gz"), compress=True) as w:
            for i, d in enumerate(docs):
                w.write({"__key__": f"{i:06}", "txt": d})
    except ImportError:
        print("missing: webdataset")
    try:
        import numpy as np

        flat = np.array([t for d in docs for t in (*d.encode(), EOS)], dtype=np.uint16)
        m = np.memmap(out / "numpy.bin", dtype=np.uint16, mode="w+", shape=flat.shape)
        m[:] = flat
        m.flush()
    except ImportError:
        print("missing: numpy")
    try:
        import torch
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        b = IndexedDatasetBuilder(str(out / "mcore.bin"), dtype=np.uint16)
        for d in docs:
            ids = torch.tensor(list(d.encode()))
            b.add_document(ids, [len(ids) // 2, len(ids) - len(ids) // 2])
        b.finalize(str(out / "mcore.idx"))
    except ImportError:
        print("missing: torch or megatron-core")


vocabulary()
(out / "plain.jsonl").write_bytes(lines)
plain() if what == "plain" else arrow()
