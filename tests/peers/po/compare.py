#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the pairs of every *.po in folders: nebula data build against polib with gettext.c2py.

usage: compare.py NEBULA FOLDER...
"""
import collections
import concurrent.futures
import gettext
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import polib

NEBULA = os.path.abspath(sys.argv[1])
EOS, BOS = 256, 257


def vocabulary(folder):
    """Tokens are bytes: a corpus can be read back as text."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in keep} | {
        b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in keep)
    }
    added = [
        {
            "id": i,
            "content": c,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, c in ((EOS, "<eos>"), (BOS, "<bos>"))
    ]
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    json.dump(
        {
            "added_tokens": added,
            "pre_tokenizer": bytes_alone,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {c: b for b, c in letters.items()}, "merges": []},
        },
        open(folder / "tokenizer.json", "w"),
    )
    json.dump(
        {"eos_token": "<eos>", "bos_token": "<bos>"}, open(folder / "tokenizer_config.json", "w")
    )


def ours(path):
    """(pairs, None), or (None, error message of the program)."""
    with tempfile.TemporaryDirectory() as t:
        t = pathlib.Path(t)
        vocabulary(t)
        (t / "spec.yaml").write_text(
            "name: x\nthreads: 1\ntokenizer: %s\nholdout: {per_mille: 0}\nsources: [{name: t, "
            "format: po, path: %s}]\n"
            % (json.dumps(str(t / "tokenizer.json")), json.dumps(str(path)))
        )
        p = subprocess.run(
            [NEBULA, "data", "build", t / "spec.yaml", "--out", t / "c"],
            capture_output=True,
            text=True,
            errors="replace",
        )
        said = (p.stdout + p.stderr).strip().split("\n")[-1]
        if p.returncode:
            return ({}, None) if "holds no documents" in said else (None, said)
        pairs, now = {}, [bytearray()]
        for f in json.load(open(t / "c/corpus.json"))["sources"][0]["train"]:
            raw = (t / "c" / f["file"]).read_bytes()
            for (i,) in struct.iter_unpack("<H", raw[64:]):
                if i == EOS:
                    source, target = (x.decode() for x in now)
                    pairs[source] = target
                    now = [bytearray()]
                elif i == BOS:
                    now.append(bytearray())
                else:
                    now[-1].append(i)
        return pairs, None


def clean(a, b):
    """The pair after the cleaning of intra/data/po.h; None: it is dropped."""
    a, b = (re.sub("[\x00-\x20\x7f]+", " ", x).strip(" ") for x in (a, b))
    na, nb = len(a.encode()), len(b.encode())
    letters = (
        lambda s: sum(c.isascii() and c.isalpha() for c in s)
        + sum(len(c.encode()) for c in s if not c.isascii())
        >= 2
    )
    ok = (
        na
        and nb
        and max(na, nb) <= 1000
        and max(na, nb) <= 5 * min(na, nb) + 20
        and a != b
        and letters(a)
        and letters(b)
    )
    return (a, b) if ok else None


def plural_rule(po):
    """The form for 1, and the other forms by how often the numbers from 2 to 100 use them."""
    m = re.match(
        r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+)", po.metadata.get("Plural-Forms", "")
    )
    try:
        f = gettext.c2py(m[2])
        counts = collections.Counter(f(n) for n in range(2, 101))
        if max(counts) < int(m[1]) and f(1) < int(m[1]):
            return f(1), sorted(counts, key=lambda i: (-counts[i], i))
    except (TypeError, ValueError, ZeroDivisionError):
        pass
    return 0, None


def theirs(path):
    po = polib.pofile(str(path))
    one, many = plural_rule(po)
    pairs, plurals = {}, set()

    def add(a, b, plural):
        p = clean(a, b)
        if p and p[0] not in pairs:
            pairs[p[0]] = p[1]
            if plural:
                plurals.add(p[0])

    for e in po:
        if e.obsolete or "fuzzy" in e.flags or not e.msgid:
            continue
        if not e.msgid_plural:
            add(e.msgid, e.msgstr, False)
            continue
        forms = e.msgstr_plural
        add(e.msgid, forms.get(one, ""), True)
        order = many if many is not None else [1] if len(forms) > 1 else [0]
        add(e.msgid_plural, next((forms[i] for i in order if forms.get(i)), ""), True)
    return pairs, plurals


def compare(path):
    mine, said = ours(path)
    try:
        right, plurals = theirs(path)
    except Exception as e:  # polib may raise any exception
        return (
            path,
            None,
            "polib: %s" % str(e).replace("\n", " ")[:120],
            0,
            0,
            mine is not None,
            said,
        )
    if mine is None:
        return path, [], said, len(right), len(plurals), False, said
    wrong = [
        (a, mine.get(a), right.get(a))
        for a in sorted(mine.keys() | right.keys())
        if mine.get(a) != right.get(a)
    ]
    return path, wrong, None, len(right), len(plurals), True, None


def main():
    files = sorted(
        p for d in sys.argv[2:] for p in pathlib.Path(d).resolve().rglob("*.po") if p.is_file()
    )
    totals = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, wrong, said, n, plurals, read, ours_said in pool.map(compare, files):
            totals.update(files=1, pairs=n, plurals=plurals)
            if wrong is None:
                totals.update(polib_refuses=1)
                print("%s: %s; nebula: %s" % (path, said, "read it" if read else ours_said))
            elif said:
                totals.update(refused=1)
                print("%s: refused: %s" % (path, said))
            for a, b, c in wrong or []:
                totals.update(wrong=1)
                print("%s: %r: %r, polib %r" % (path, a, b, c))
    print(
        "%d files, %d pairs, %d of them of plural forms: %d differ, %d files refused; %d files "
        "that polib cannot read"
        % tuple(
            totals[k] for k in ("files", "pairs", "plurals", "wrong", "refused", "polib_refuses")
        )
    )
    sys.exit(bool(totals["wrong"] or totals["refused"] or not totals["files"]))


if __name__ == "__main__":
    main()
