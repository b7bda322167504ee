# SPDX-License-Identifier: Apache-2.0
"""nebula import and export of a Llama folder with 1.1 billion random bf16 weights in several
shards, beside cp of the same bytes on the same disk, in turns. The input is dropped from the page
cache first, and the time ends when the output is on the disk (nebula calls fsync; sync -f follows
cp). cp copies the larger side: import makes fp32 of bf16, so it writes twice what it reads.
Limits: 2 times cp, and memory of 1.2 times the largest shard.
"""
import argparse
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("nebula")
parser.add_argument("--layers", type=int, default=22)
parser.add_argument("--rounds", type=int, default=2)
args = parser.parse_args()
VOCAB, WIDTH, HEADS, KV, FF, SHARD = 32000, 2048, 32, 4, 5632, 500_000_000


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(args.layers):
        p, kv = f"model.layers.{i}.", WIDTH // HEADS * KV
        yield p + "input_layernorm.weight", (WIDTH,)
        yield p + "post_attention_layernorm.weight", (WIDTH,)
        for name, rows in (("q", WIDTH), ("k", kv), ("v", kv), ("o", WIDTH)):
            yield p + f"self_attn.{name}_proj.weight", (rows, WIDTH)
        yield p + "mlp.gate_proj.weight", (FF, WIDTH)
        yield p + "mlp.up_proj.weight", (FF, WIDTH)
        yield p + "mlp.down_proj.weight", (WIDTH, FF)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def size_of(shape):
    n = 2
    for k in shape:
        n *= k
    return n


# Any low byte; high bytes from about 2^-7 to 2^-5, with both signs. So the values are finite and
# differ everywhere.
HIGH = bytes((0x3C | (b & 0x81)) for b in range(256))


def weights(n):
    while n:
        k = min(n, 1 << 24)
        block = bytearray(k)
        block[0::2], block[1::2] = os.urandom(k // 2), os.urandom(k // 2).translate(HIGH)
        yield block
        n -= k


def make(folder):
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": VOCAB,
                "hidden_size": WIDTH,
                "intermediate_size": FF,
                "num_hidden_layers": args.layers,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV,
                "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
                "bos_token_id": 1,
                "eos_token_id": 2,
            }
        )
    )
    shards, fill = [[]], 0
    for name, shape in shapes():
        if fill and fill + size_of(shape) > SHARD:
            shards.append([])
            fill = 0
        shards[-1].append((name, shape))
        fill += size_of(shape)
    where = {}
    for i, shard in enumerate(shards):
        header, at, file = {}, 0, f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        for name, shape in shard:
            header[name] = {
                "dtype": "BF16",
                "shape": shape,
                "data_offsets": [at, at + size_of(shape)],
            }
            at += size_of(shape)
            where[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for _, shape in shard:
                for block in weights(size_of(shape)):
                    f.write(block)
    total = sum(size_of(s) for _, s in shapes())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where})
    )


def tensors(folder):
    """Name: (type, shape, bytes as a view of the mapped file)."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as f:
            m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        n = int.from_bytes(m[:8], "little")
        for name, t in json.loads(m[8:8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                out[name] = (t["dtype"], t["shape"], memoryview(m)[8 + n + a:8 + n + b])
    return out


def forget(path):  # its pages, so that it is read from the disk
    for p in [path] if path.is_file() else path.rglob("*"):
        if p.is_file():
            fd = os.open(p, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def run(*command):
    """(seconds, peak of resident bytes)"""
    start = time.monotonic()
    pid = os.posix_spawnp(
        command[0],
        [str(c) for c in command],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(
            f"FAILED: {' '.join(map(str, command))}: status {os.waitstatus_to_exitcode(status)}"
        )
    return time.monotonic() - start, usage.ru_maxrss * 1024


def copy(source, to):
    start = time.monotonic()
    run("cp", "-r", source, to)
    run("sync", "-f", to)
    return time.monotonic() - start


def bytes_of(path):
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


with tempfile.TemporaryDirectory(prefix="nebula-big-") as folder:
    work = pathlib.Path(folder)
    need = 5.5 * sum(size_of(s) for _, s in shapes())
    if shutil.disk_usage(work).free < need:
        print(f"cannot run here: {work.parent} has less than {need / 1e9:.0f} GB free; set TMPDIR")
        sys.exit(77)
    make(work / "in")
    shard = max(p.stat().st_size for p in (work / "in").glob("*.safetensors"))
    params = sum(size_of(s) for _, s in shapes()) // 2
    print(
        f"{params / 1e6:.0f} M parameters, {bytes_of(work / 'in') / 1e9:.2f} GB in "
        f"{len(list((work / 'in').glob('*.safetensors')))} shards, "
        f"the largest {shard / 1e6:.0f} MB",
        flush=True,
    )
    results = {"import": [], "export": []}
    for k in range(args.rounds):
        for name in results:
            source, to = (
                (work / "in", work / "ckpt") if name == "import" else (work / "ckpt", work / "out")
            )
            shutil.rmtree(to, ignore_errors=True)
            forget(source)
            options = (
                ["--out", to]
                if name == "import"
                else [to, "--dtype", "bf16", "--shard-size", str(SHARD)]
            )
            seconds, rss = run(args.nebula, name, source, *options)
            larger = work / "ckpt"
            forget(larger)
            cp = copy(larger, work / "copy")
            shutil.rmtree(work / "copy")
            results[name].append((seconds, cp, rss))
            print(
                f"{name} {k + 1}: {seconds:6.2f} s, cp of {bytes_of(larger) / 1e9:.2f} GB "
                f"{cp:6.2f} s: {seconds / cp:.2f} times; "
                f"memory {rss / 1e6:.0f} MB: {rss / shard:.2f} times the largest shard",
                flush=True,
            )
    a, b = tensors(work / "in"), tensors(work / "out")
    differ = sum(a[n] != b.get(n) for n in a) + len(set(b) - set(a))
    bad = differ > 0
    for name, r in results.items():
        ratio, memory = statistics.median(x / c for x, c, _ in r), max(m for *_, m in r) / shard
        good = ratio <= 2 and memory < 1.2
        bad |= not good
        print(
            f"{name}: median {ratio:.2f} times cp (limit 2), memory {memory:.2f} times the largest "
            f"shard (limit 1.2)  {'ok' if good else 'MISSED'}"
        )
    print(f"{differ} of {len(a)} tensors differ after the way there and back")
    sys.exit(bad)
