# SPDX-License-Identifier: Apache-2.0
"""A teacher or a student without PyTorch, for test_attach_sides.sh.
usage: side_client.py teacher TOKENIZER [bad | slow]      (with $NEBULA_AGENT)
       side_client.py student TOKENIZER TEXT FILE [STEP]  FILE keeps the next step; ends at STEP
       side_client.py server TOKENIZER    the teacher asks a server of this program, which first
                                          fails in every way, and once more in mid-run
       side_client.py changes TOKENIZER   the same, but the server changes its model in mid-run
       side_client.py aligned TOKENIZER   a teacher with a part of the student's tokens"""
import http.server
import json
import math
import os
import pathlib
import sys
import threading
import time

import nebula
from nebula.adapters import Server, teach as teach_with
from nebula.align import Aligned, Vocabulary


def refuses(what, status, call, *arguments):
    try:
        call(*arguments)
    except nebula.Error as e:
        if e.status != status:
            sys.exit(f"{what}: status {e.status}, not {status}: {e}")
        print(f"{what}: {e}", flush=True)
        return
    sys.exit(f"{what} was accepted")


def labels_of(text, k):
    """Most of the mass on the target, less on the next ids."""
    ids, logp = [], []
    for s, prefix in text.sequences:
        for target in s[prefix:]:
            ids.append([(target + i) % 400 for i in range(k)])
            logp.append([math.log(0.8 * 0.2 ** i) for i in range(k)])
    return ids, logp


def with_first(rows, value, at=0):
    return [[*rows[0][:at], value, *rows[0][at + 1:]], *rows[1:]]


def bad_labels(t, text):
    ids, logp = labels_of(text, t.k)
    late = nebula.Text(text.step + 1, text.student, text.sequences)
    other = nebula.Text(text.step, text.student + 1, text.sequences)
    for what, *arguments in [
            ("positive", text, ids, with_first(logp, 0.5)),
            ("nan", text, ids, with_first(logp, math.nan, 1)),
            ("unsorted", text, ids, with_first(logp, -0.1, 2)),
            ("outside", text, with_first(ids, 400), logp),
            ("negative", text, with_first(ids, -1), logp),
            ("twice", text, with_first(ids, ids[0][1]), logp),
            ("mass", text, ids, with_first(with_first(logp, -0.1), -0.1, 1)),
            ("rows", text, ids[1:], logp[1:]),
            ("wide", text, *labels_of(text, t.k_max + 1)),
            ("step", late, ids, logp),
            ("student", other, ids, logp)]:
        refuses(what, 1, t.put, *arguments)


def teach(tokenizer, how=""):
    with nebula.teacher(tokenizer) as t:
        for text in t:
            if how == "bad" and text.step % 5 == 0:
                bad_labels(t, text)
            if how == "slow":
                time.sleep(0.4)
            if t.writes(text.step):
                refuses("early", 2, t.put, text, *labels_of(text, t.k))
                refuses("one", 1, t.answer, text, [[3]])
                refuses("beyond", 1, t.answer, text, [[t.vocab] for _ in text.sequences])
                text = t.answer(text, [[ids[0], 3] * 200 for ids, _ in text.sequences])
            t.put(text, *labels_of(text, t.k))
            print(f"labels of {text.step}, {text.rows} rows", flush=True)
        print(f"state {t.state}", flush=True)


def learn(tokenizer, texts, file, end="1000000"):
    lines = [json.loads(line) for line in open(texts)]
    kept = pathlib.Path(file)
    begin = json.loads(kept.read_text()) if kept.exists() else 0

    sample = [3 + byte for byte in os.urandom(4)]

    def text(step):  # a sample differs in each process
        own = sample if s.writes(step) else []
        return [(ids + own, n) for ids, n in
                (lines[(step * 8 + i) % len(lines)] for i in range(8))]
    with nebula.student(lambda step: text(step), tokenizer, step=begin) as s:
        if begin == 0:
            refuses("no target", 1, s.ask, [([1, 2], 2)] * 8)
            refuses("few", 1, s.ask, [([1, 2], 1)])
            refuses("outside", 1, s.ask, [([1, s.vocab], 1)] * 8)
            refuses("long", 1, s.ask, [([1] * (s.seq_len + 2), 1)] * 8)
            refuses("many", 1, s.ask, [([1] * (s.seq_len + 1), 1)] * 80)
        for batch, labels in s:
            if s.step == 0:
                refuses("credit", 2, s.ask, text(s.ahead))
            rows = [sum(map(math.exp, labels.logprobs[i * labels.k:(i + 1) * labels.k]))
                    + labels.tails[i] for i in range(batch.rows)]
            if len(labels.ids) != batch.rows * labels.k or max(abs(r - 1) for r in rows) > 0.02:
                sys.exit(f"step {batch.step}: no labels: {rows[:3]}")
            s.learned(2.0 - s.step / 100, batch.rows)
            kept.with_suffix(".new").write_text(str(s.step))
            os.replace(kept.with_suffix(".new"), kept)
            s.saved()
            print(f"learned {batch.step}", flush=True)
            if s.step >= int(end):
                os._exit(9)
        print(f"state {s.state}", flush=True)
        if s.state == nebula.DONE:
            s.close(1.25)


def teach_aligned(tokenizer):
    """Its tokens are bytes and half of the student's tokens; the longest that fits comes first."""
    students = Vocabulary.of(pathlib.Path(tokenizer).with_suffix(".vocab"))
    pieces = sorted({p for i, p in enumerate(students.pieces) if p and (i % 2 or len(p) == 1)}
                    | {bytes([b]) for b in range(256)}, key=len, reverse=True)

    def encode(text):
        raw, ids = text.encode(), []
        while raw:
            ids.append(next(i for i, p in enumerate(pieces) if raw.startswith(p)))
            raw = raw[len(pieces[ids[-1]]):]
        return ids

    def label(text, k, temperature):
        ids = [[(t + i) % len(pieces) for i in range(k)]
               for s, prefix in text.sequences for t in s[prefix:]]
        return ids, [[math.log(0.8 * 0.2 ** i) for i in range(k)] for _ in ids]
    with nebula.teacher(tokenizer) as t:
        aligned, rows, mapped = Aligned(label, Vocabulary(pieces, encode), students), 0, 0

        def count(text, *rest):
            nonlocal rows, mapped
            labels = aligned(text, *rest)
            rows, mapped = rows + text.rows, mapped + aligned.mapped
            count.mapped = aligned.mapped
            return labels
        refuses("too many", 1, t.mapped, 1)
        teach_with(t, count)
        print(f"share {mapped / rows}", flush=True)
        print(f"state {t.state}", flush=True)


class Answers(http.server.BaseHTTPRequestHandler):
    """Completions with prompt_logprobs, as vLLM answers. how: the next answers, then good ones."""
    how = []
    asked = 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        Answers.asked += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how = Answers.how.pop(0) if Answers.how else "good"
        if how == "slow":
            time.sleep(5)
        if how in ("500", "400"):
            self.send_error(int(how), "out of order")
            return
        k, choices = body["prompt_logprobs"], []
        for i, prompt in enumerate(body["prompt"]):
            rows = [None]
            for id in prompt[1:]:
                row = {str((id + j) % 400): {"logprob": math.log(0.8 * 0.2 ** j), "rank": j + 1}
                       for j in range(k)}
                rows.append(row | {"399": {"logprob": -30.0, "rank": 77}})  # the prompt's own token
            choices.append({"index": i, "text": "", "prompt_logprobs": rows})
        if how == "short":
            choices[0]["prompt_logprobs"].pop()
        if how == "fewer":
            choices.pop()
        data = json.dumps({"model": "other" if how == "model" else body["model"],
                           "choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def server_of(**options):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Server(f"http://127.0.0.1:{server.server_port}/v1", "small", most=20, sequences=2,
                  wait_s=0.01, timeout_s=2, **options)


def serve(tokenizer):
    ask, down = server_of(tries=3), Server("http://127.0.0.1:9", "small", tries=0, wait_s=0.01)
    text = nebula.Text(0, 1, [([5, 6, 7, 8], 2), ([9, 10, 11], 1)])
    refuses("unreachable", nebula.IO, down, text, 3, 1.0)
    ids, logprobs = ask(text, 3, 1.0)
    if [row[0] for row in ids] != [7, 8, 10, 11] or any(len(row) != 3 for row in logprobs):
        sys.exit(f"labels: {ids}")
    for what, status, how in [
            ("cap", 1, []), ("temperature", 1, []), ("truncated", 1, ["short"]),
            ("missing", 1, ["fewer"]), ("denied", 1, ["400"]), ("changed", 1, ["model"]),
            ("down", nebula.IO, ["500"] * 3), ("late", nebula.IO, ["slow"] * 3)]:
        Answers.how = list(how)
        refuses(what, status, ask, text, 21 if what == "cap" else 3,
                2.0 if what == "temperature" else 1.0)
        if Answers.how:
            sys.exit(f"{what}: {len(Answers.how)} answers were not asked for")
    ask.name = ""
    before, Answers.how = Answers.asked, ["500", "slow"]  # both pass
    ask(text, 3, 1.0)
    if Answers.asked != before + 3:
        sys.exit(f"{Answers.asked - before} tries")
    def fails_at(at):
        def label(text, *rest):
            Answers.how = ["500"] * 3 if text.step == at else []
            return ask(text, *rest)
        return label
    with nebula.teacher(tokenizer) as t:
        refuses("in mid-run", nebula.IO, teach_with, t, fails_at(7))
    with nebula.teacher(tokenizer) as t:  # as the next program would go on
        teach_with(t, ask)
        print(f"state {t.state}", flush=True)


def change(tokenizer):
    ask = server_of()
    with nebula.teacher(tokenizer) as t:
        Answers.how = ["good"] * 40 + ["model"]
        refuses("changes", 1, teach_with, t, ask)


print(f"pid {os.getpid()}", flush=True)
{"teacher": teach, "student": learn, "server": serve,
 "changes": change,
 "aligned": teach_aligned}[sys.argv[1]](*sys.argv[2:])
