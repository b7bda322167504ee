# SPDX-License-Identifier: Apache-2.0
"""Speed from text to tokens: nebula data build beside Hugging Face tokenizers.

usage: rates.py NEBULA DIR TEXT. DIR: a folder with a byte-level tokenizer.json and a
tokenizer_config.json that names an eos_token. TEXT: a folder of files, each a document. nebula's
times are of complete builds (two readings, digests, shards), with DIR and with a SentencePiece
vocabulary that is trained here; those of tokenizers are of encode_batch alone, on text in memory.
With one thread and with two, in seconds of the clock and of the processor (less affected by load).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

nebula, folder, text = sys.argv[1:]
THEIRS = """
import pathlib, sys, time, tokenizers
t = tokenizers.Tokenizer.from_file(sys.argv[1])
docs = [d for d in (p.read_text(errors="replace") for p in \
sorted(pathlib.Path(sys.argv[2]).rglob("*")) if p.is_file()) if d]
start, cpu = time.monotonic(), time.process_time()
for at in range(0, len(docs), 1000):
    t.encode_batch_fast(docs[at:at + 1000], add_special_tokens=False)
print(time.monotonic() - start, time.process_time() - cpu)
"""


def build(spec, out, work):
    (work / "spec.yaml").write_text(spec + f"sources: [{{name: x, format: text, path: {text}}}]\n")
    start, before = time.monotonic(), os.times()
    subprocess.run(
        [nebula, "data", "build", str(work / "spec.yaml"), "--out", str(work / out)],
        check=True,
        capture_output=True,
    )
    after = os.times()
    return time.monotonic() - start, after[2] + after[3] - before[2] - before[3]


def rates(seconds):
    return f"{mb / seconds[0]:.1f} ({mb / seconds[1]:.1f})"


with tempfile.TemporaryDirectory() as d:
    work = pathlib.Path(d)
    mb = sum(p.stat().st_size for p in pathlib.Path(text).rglob("*") if p.is_file()) / 1e6
    build("vocabulary: {size: 8192, train_lines: 20000}\n", "sp", work)
    print(
        f"{mb:.1f} MB, byte-level vocabulary of "
        f"""{len(
            json.loads((pathlib.Path(folder) / 'tokenizer.json').read_text())['model']['vocab']
        )}; """
        "MB/s (a second of processor time)"
    )
    for threads in (1, 2):
        ours = build(f"threads: {threads}\ntokenizer: {folder}\n", f"bpe-{threads}", work)
        pieces = build(f"threads: {threads}\ntokenizer: {work}/sp\n", f"sp-{threads}", work)
        env = os.environ | {
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        }
        p = subprocess.run(
            [sys.executable, "-c", THEIRS, f"{folder}/tokenizer.json", text],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        theirs = [float(x) for x in p.stdout.split()]
        print(
            f"{threads} thread{'s' * (threads > 1)}: nebula data build {rates(ours)}, with a "
            f"SentencePiece vocabulary of 8192 {rates(pieces)}; "
            f"tokenizers {rates(theirs)}"
        )
