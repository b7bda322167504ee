# SPDX-License-Identifier: Apache-2.0
"""What `nebula quickstart` runs: text of Django's catalogues, a corpus, three runs, a table.

The C program starts this file with: PROGRAM OUT STEPS SEED [CACHE]. It imports nothing of the
package nebula, so it needs no libnebula.
"""
from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess
import sys
import time

LANGUAGES = ("fr", "es", "de")
WAN = "100mbit:80ms"
MESSAGES = 12  # of one file of text; the corpus holds out whole files, in all languages


def read_catalogue(file: pathlib.Path) -> dict[str, str]:
    """A compiled catalogue (.mo, "The Format of GNU MO Files" in gettext's manual), without the
    messages that have a context or several forms: their texts contain \\4 or \\0."""
    data = file.read_bytes()
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, *tables = struct.unpack_from(f"{order}3I", data, 8)

    def text(table: int, i: int) -> str:
        size, at = struct.unpack_from(f"{order}2I", data, table + 8 * i)
        return data[at:at + size].decode()

    pairs = {text(tables[0], i): text(tables[1], i) for i in range(count)}
    return {m: t for m, t in pairs.items() if m and "\4" not in m and "\0" not in m}


def catalogues(django: pathlib.Path) -> dict[str, list[tuple[str, ...]]]:
    """For each application of Django: its messages in English and in each of LANGUAGES."""
    found = {}
    for folder in sorted(django.rglob("locale/fr/LC_MESSAGES")):
        locale = folder.parents[1]
        name = "-".join(locale.relative_to(django).parts[:-1]) or "django"
        for file in sorted(folder.glob("*.mo")):
            texts = [read_catalogue(locale / language / "LC_MESSAGES" / file.name)
                     for language in LANGUAGES]
            common = sorted(set(texts[0]).intersection(*texts[1:]))
            found[f"{name}-{file.stem}"] = [(m, *(t[m] for t in texts)) for m in common]
    return found


def write(file: pathlib.Path, text: str) -> None:
    """Writes a file and its folder. Python's own error of a full disk names no file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.exit(f"nebula quickstart: cannot write {file}: {error.strerror}")


def write_text(django: pathlib.Path, folder: pathlib.Path) -> int:
    """Writes FOLDER/LANGUAGE/NAME.txt and returns the number of messages."""
    number = 0
    for name, messages in catalogues(django).items():
        number += len(messages)
        for first in range(0, len(messages), MESSAGES):
            part = messages[first:first + MESSAGES]
            for i, language in enumerate(("en", *LANGUAGES)):
                file = folder / language / f"{name}-{first:04}.txt"
                write(file, "\n".join(m[i] for m in part) + "\n")
    return number


def write_spec(text: pathlib.Path, file: pathlib.Path) -> None:
    """Writes the spec of a corpus with one source for each language of `text`."""
    sources = [{"name": language, "format": "text", "path": str(text / language)}
               for language in ("en", *LANGUAGES)]
    spec = {"name": "quickstart", "seed": 1,
            "vocabulary": {"size": 1024, "type": "unigram", "character_coverage": 0.9995,
                           "train_lines": 30000, "byte_fallback": True},
            "holdout": {"per_mille": 100}, "sources": sources}
    write(file, json.dumps(spec))  # JSON is YAML


def table(alone: dict, federated: dict, synchronous: dict) -> bool:
    """Prints the results. False: a cluster alone is as good as the two federated ones."""
    steps, one = alone["clusters"][0]["steps"], federated["clusters"][0]
    per_cluster = [c["wan_sent_bytes"] for c in federated["clusters"]]
    every_step = steps * federated["trainable_params"] * 4
    rows = [(f"cluster {c['name']} alone", c["eval_loss"], "0", "-") for c in alone["clusters"]]
    rows += [("federated (Nebula)", one["eval_loss"],
              f"{sum(per_cluster) / len(per_cluster) / 1e6:.1f} MB",
              f"{federated['reduction_vs_sync_fp32']:.0f}x"),
             ("synchronous fp32, every step", synchronous["clusters"][0]["eval_loss"],
              f"{every_step / 1e6:.1f} MB", "1x")]
    print(f"{steps} steps a cluster, {federated['params']} parameters; "
          "held-out loss over all four languages, nats a token\n")
    print(f"{'scheme':34}{'loss':>9}{'WAN/cluster':>14}{'fewer':>11}")
    for name, loss, sent, fewer in rows:
        print(f"{name:34}{loss:9.3f}{sent:>14}{fewer:>11}")
    best = min(c["eval_loss"] for c in alone["clusters"])
    digests = {c["params_digest"] for c in federated["clusters"]}
    print(f"\nfederated against the better one alone: {best - one['eval_loss']:.3f} nats lower")
    print(f"digests equal on both clusters: {str(len(digests) == 1).lower()}")
    return one["eval_loss"] < best


def main(program: str, out: str, steps: str, seed: str, cache: str | None = None) -> None:
    """Makes text and corpus, trains three times, prints the table. Exits with 1 if federated
    training is no better than a cluster alone."""
    began = time.monotonic()

    def stage(text: str) -> None:
        took = int(time.monotonic() - began)
        print(f"\n== {text}  [{took // 60}:{took % 60:02}]", flush=True)

    def nebula(*arguments: str | pathlib.Path) -> None:
        done = subprocess.run([program, *map(str, arguments)], check=False)
        if done.returncode:
            sys.exit(done.returncode if done.returncode > 0 else 1)

    results = pathlib.Path(out)
    if (results / "alone").exists():
        sys.exit(f"nebula quickstart: {out} holds a run already: "
                 "remove it, or choose another --out")
    try:
        import django
    except ImportError:
        sys.exit(f"nebula quickstart: {sys.executable} has no Django, which has the text: "
                 "pip install 'nebula-federation[quickstart]', "
                 "or the Debian package python3-django")
    stage("real text: Django's messages in English, French, Spanish and German")
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nebula"
    # Another version has other messages: the text of both together would be neither's.
    work = ((pathlib.Path(cache) if cache else home).resolve()
            / f"quickstart-django-{django.get_version()}")
    number = write_text(pathlib.Path(django.__file__).parent, work / "text")
    print(f"{number} messages in {work / 'text'}")
    write_spec(work / "text", work / "spec.yaml")
    nebula("data", "build", work / "spec.yaml", "--out", work / "corpus")

    share = pathlib.Path(program).parents[1] / "share/nebula"
    job = share / "quickstart.yaml"
    if not job.exists():  # in a build folder
        job = pathlib.Path(program).parents[1] / "configs/quickstart.yaml"
    common = (job, "--local", "2", "--seed", seed, "--steps", steps, "--set",
              f"data.corpus={work / 'corpus'}", "--set", "data.seq_len=64", "--set",
              "eval.windows=32")
    stage("each cluster alone (no exchange)")
    nebula("pretrain", *common, "--set", "sync.scheme=none", "--out", results / "alone")
    stage(f"the two clusters federated over {WAN}")
    nebula("pretrain", *common, "--wan", WAN, "--out", results / "federated")
    stage("synchronous fp32 exchange every step (the arithmetic of it, in one process)")
    nebula("pretrain", *common, "--set", "sync.scheme=synchronous", "--set", "sync.outer.lr=1",
           "--out", results / "synchronous")
    stage("result")
    summaries = [json.loads((results / name / "summary.json").read_text(encoding="utf-8"))
                 for name in ("alone", "federated", "synchronous")]
    better = table(*summaries)
    print(f"\nmodel: {results}/federated/checkpoint   "
          f"its metrics: {results}/federated/metrics.jsonl")
    if not better:
        sys.exit("federated did NOT beat both clusters alone")


if __name__ == "__main__":
    main(*sys.argv[1:])
