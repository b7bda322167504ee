# SPDX-License-Identifier: Apache-2.0
"""Teachers and students of mode distill in a Python program (`launcher: attach`).

    t = nebula.teacher(vocabulary="tokenizer.json")       s = nebula.student(text, step=0)
    for text in t:                                        for batch, labels in s:
        ids, logprobs = top_k(text, t.k)                      loss = nebula.distill_loss(...)
        t.put(text, ids, logprobs)                            s.learned(loss, tokens)

Either side may be the built-in one. A program that was killed opens its side again and goes on: no
label is made twice or lost. If the agent restarts, a teacher opens its side again by itself; a
student gets nebula.Error with status AGAIN, and has to close its side and open it again. Bad values
raise nebula.Error with status INVALID, and asking for more than `ahead` steps raises STATE; the
side stays as it was, and the call may be repeated.
nebula.adapters has teachers for Hugging Face models and for an OpenAI-compatible server.
"""
from __future__ import annotations

import array
import ctypes
import dataclasses
import hashlib
import json
import pathlib
import warnings
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from ctypes import c_void_p
from typing import Any, Callable, Iterator, Sequence

from . import _lib
from ._lib import AGAIN, DONE, STATE, TRAIN, Error, _Sized, check, lib

TEACHER, STUDENT = 1, 2
_IGNORE = -100


class _Options(_Sized):
    _fields_ = [("size", c_size_t), ("vocabulary", c_char_p), ("step", c_int64)]


class _Info(_Sized):
    _fields_ = [("size", c_size_t), ("role", c_int),
                *((k, c_int32) for k in ("vocab", "seq_len", "accumulate", "tokens", "k", "k_max",
                                         "ahead")),
                ("lambda_", c_float), ("temperature", c_float), ("step", c_int64),
                ("steps", c_int64)]


class _Text(_Sized):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("student", c_int32),
                ("sequences", c_int32), ("rows", c_int32), ("lengths", POINTER(c_int32)),
                ("prefixes", POINTER(c_int32)), ("ids", POINTER(c_int32)), ("k", c_int32),
                ("label_ids", POINTER(c_int32)), ("label_logprobs", POINTER(c_float)),
                ("label_tails", POINTER(c_float))]


_HANDLE = c_void_p
for _name, _arguments in {
        "open": [POINTER(_HANDLE), POINTER(_Options), POINTER(_HANDLE)],
        "info_get": [_HANDLE, POINTER(_Info)],
        "next": [_HANDLE, c_double, POINTER(_Text), POINTER(c_int)],
        "put": [_HANDLE, c_int64, c_int32, c_int64, c_int32, c_void_p, c_void_p],
        "writes": [_HANDLE, c_int64],
        "answer": [_HANDLE, c_int64, c_int32, c_void_p, c_void_p, POINTER(_Text)],
        "ask": [_HANDLE, c_int32, c_void_p, c_void_p, c_void_p],
        "learned": [_HANDLE, c_double, c_uint64, POINTER(c_int)],
        "saved": [_HANDLE],
        "model": [_HANDLE, c_char_p],
        "mapped": [_HANDLE, c_int64],
        "fail": [POINTER(_HANDLE), c_char_p],
        "close": [POINTER(_HANDLE), c_double]}.items():
    getattr(lib, f"nebula_side_{_name}").argtypes = _arguments


@dataclasses.dataclass
class Text:
    """The text of one step. Each sequence is (ids, prefix): the ids after the first `prefix` ones
    are targets, and the model predicts each at the position before it."""
    step: int
    student: int
    sequences: list[tuple[list[int], int]]

    @property
    def rows(self) -> int:
        """Targets, which is the number of rows of labels."""
        return sum(len(ids) - prefix for ids, prefix in self.sequences)


@dataclasses.dataclass
class Labels:
    """A teacher's labels, row by row: (rows, k) ids and log-probabilities, most likely first, and
    (rows) the probability of all other tokens. Buffers of int32 and float32; tensors() makes torch
    tensors of them."""
    k: int
    ids: array.array
    logprobs: array.array
    tails: array.array

    def tensors(self) -> tuple[Any, Any, Any]:
        """ids (int64), log-probabilities and tails as torch tensors over the same memory, but for
        the ids."""
        import torch
        ids = torch.frombuffer(self.ids, dtype=torch.int32).long().view(-1, self.k)
        return (ids, torch.frombuffer(self.logprobs, dtype=torch.float32).view(-1, self.k),
                torch.frombuffer(self.tails, dtype=torch.float32))


def vocabulary_digest(path: str) -> str:
    """What the sides of a job compare: the SHA-256 of a vocabulary's file, and of a tokenizer.json
    also its ids of begin and end. A folder is searched for tokenizer.model, tokenizer.json."""
    file = pathlib.Path(path)
    if file.is_dir():
        file = next((file / n for n in ("tokenizer.model", "tokenizer.json")
                     if (file / n).exists()), file / "tokenizer.model")
    data = file.read_bytes()
    if file.suffix != ".json":
        return hashlib.sha256(data).hexdigest()
    spec, beside = json.loads(data), file.with_name("tokenizer_config.json")
    config = json.loads(beside.read_bytes()) if beside.exists() else {}
    ids = dict(spec["model"]["vocab"]) | {t["content"]: t["id"] for t in spec["added_tokens"]}

    def token(key: str) -> int:
        name = config.get(key)
        return ids.get(name["content"] if isinstance(name, dict) else name, -1)
    return hashlib.sha256(data + b"%d %d" % (token("bos_token"), token("eos_token"))).hexdigest()


def _ints(values: Any) -> array.array:
    return array.array("i", values)


def _flat(values: Any, kind: str) -> Any:
    """A contiguous buffer of int32 ("i") or float32 ("f") with all elements of a tensor, an array
    or nested lists."""
    if hasattr(values, "detach"):
        import torch
        values = values.detach().to("cpu", torch.int32 if kind == "i" else torch.float32)
        values = values.contiguous().numpy()
    if hasattr(values, "__array_interface__"):
        import numpy
        return numpy.ascontiguousarray(values, "int32" if kind == "i" else "float32")
    rows = [v for row in values for v in row]
    return array.array(kind, rows)


def _address(buffer: Any) -> int:
    if hasattr(buffer, "ctypes"):
        return buffer.ctypes.data
    return buffer.buffer_info()[0]


class Side:
    """What teachers and students share. The job's numbers are attributes."""

    role = 0
    _handle: Any = None

    def __init__(self, vocabulary: str | None = None, *, agent: str | None = None,
                 job: str | None = None, timeout: float = 60, step: int = 0) -> None:
        digest = vocabulary
        hexadecimal = set("0123456789abcdef")
        if vocabulary and not (len(vocabulary) == 64 and set(vocabulary) <= hexadecimal):
            digest = vocabulary_digest(vocabulary)
        self._how = (digest and digest.encode(), agent and agent.encode(), job and job.encode(),
                     timeout)
        self.state = TRAIN
        self._open(step)

    def _open(self, step: int) -> None:
        digest, agent, job, timeout = self._how
        attached, self._handle, info = _HANDLE(), _HANDLE(), _Info()
        check(lib.nebula_attach(ctypes.byref(_lib.Options(
            api=_lib.API, agent=agent, job=job, timeout_s=timeout)), ctypes.byref(attached)))
        check(lib.nebula_side_open(
            ctypes.byref(attached), ctypes.byref(_Options(vocabulary=digest, step=step)),
            ctypes.byref(self._handle)))
        check(lib.nebula_side_info_get(self._handle, ctypes.byref(info)))
        if info.role != self.role:
            self.close()
            raise Error(STATE, f"this cluster is a {'teacher' if info.role == 1 else 'student'}")
        self.vocab, self.seq_len, self.accumulate = info.vocab, info.seq_len, info.accumulate
        self.tokens, self.k, self.k_max, self.ahead = (info.tokens, info.k, info.k_max, info.ahead)
        self.lambda_, self.temperature, self.steps = info.lambda_, info.temperature, info.steps

    def _next(self, timeout: float) -> _Text | None:
        out, state = _Text(), c_int()
        check(lib.nebula_side_next(self._handle, timeout, ctypes.byref(out), ctypes.byref(state)))
        self.state = state.value
        return out if self.state == TRAIN else None

    def writes(self, step: int) -> bool:
        """True if this side writes the targets of a step itself (distill.source): a teacher calls
        `answer` before `put`; a student's `text` gives samples of its own model, the same ones if
        it is asked for a step again after a restart."""
        return bool(lib.nebula_side_writes(self._handle, step))

    def close(self, eval_loss: float = float("nan")) -> None:
        """Reports to the agent if the job is done or stopped; otherwise another program goes on."""
        handle, self._handle = self._handle, None
        if handle:
            check(lib.nebula_side_close(ctypes.byref(handle), eval_loss))

    def fail(self, why: str) -> None:
        """Ends the job at all clusters with this error, and closes the side: for what no other
        program would mend."""
        handle, self._handle = self._handle, None
        check(lib.nebula_side_fail(ctypes.byref(handle), why.encode()))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _text_of(t: _Text) -> Text:
    at, sequences = 0, []
    for i in range(t.sequences):
        n = t.lengths[i]
        sequences.append((t.ids[at:at + n], t.prefixes[i]))
        at += n
    return Text(t.step, t.student, sequences)


class Teacher(Side):
    """Iterates over the texts to label. An unlabelled text comes again."""

    role = TEACHER

    def get(self, timeout: float = 0) -> Text | None:
        """The next text; None: the job is over. timeout: seconds, 0: for ever."""
        while True:
            try:
                text = self._next(timeout)
                return _text_of(text) if text else None
            except Error as e:
                if e.status != AGAIN:
                    raise
            self._again(0)

    def _again(self, step: int) -> None:
        """Opens the side again, because the agent was restarted."""
        handle, self._handle = self._handle, None
        lib.nebula_side_close(ctypes.byref(handle), float("nan"))
        self._open(step)

    def __iter__(self) -> Iterator[Text]:
        while (text := self.get()) is not None:
            yield text

    def model(self, name: str) -> None:
        """Names the model that makes the labels, such as its name and a digest. The job ends with
        both names if they differ from those of its first labels, also in a later program."""
        check(lib.nebula_side_model(self._handle, name.encode()))

    def mapped(self, rows: int) -> None:
        """After put, with distill.align: text: how many of its rows could be mapped."""
        check(lib.nebula_side_mapped(self._handle, rows))

    def answer(self, text: Text, answers: Sequence[Sequence[int]]) -> Text:
        """The text with these targets instead of the student's, one answer to each prompt (the
        first `prefix` ids), with the id of the end if it has ended. Longer ones than there is room
        for are cut. Label the text that this returns."""
        out = _Text()
        lengths, flat = _ints(len(a) for a in answers), _ints(id for a in answers for id in a)
        check(lib.nebula_side_answer(self._handle, text.step, len(lengths), _address(lengths),
                                     _address(flat), ctypes.byref(out)))
        return _text_of(out)

    def put(self, text: Text, ids: Any, logprobs: Any) -> None:
        """The labels of a text: (rows, k) token ids and natural log-probabilities at
        self.temperature, most likely first. The rest of a row's mass is that of all other
        tokens."""
        ids, logprobs = _flat(ids, "i"), _flat(logprobs, "f")
        n = ids.size if hasattr(ids, "size") else len(ids)
        m = logprobs.size if hasattr(logprobs, "size") else len(logprobs)
        rows = text.rows
        k = n // rows if rows else 0
        if n != m or n != k * rows:
            raise Error(_lib.INVALID, f"put: {n} ids and {m} log-probabilities for {rows} rows")
        check(lib.nebula_side_put(self._handle, text.step, text.student, rows, k, _address(ids),
                                  _address(logprobs)))


class Student(Side):
    """Iterates over (text, labels). text: step -> sequences, a list of (ids, prefix); it is called
    for each step in order, up to `ahead` steps before the labels are here. Of several teachers the
    labels are the mixture, by weight. With distill.source: teacher the text is the teacher's."""

    role = STUDENT

    def __init__(self, text: Callable[[int], Sequence[tuple[Sequence[int], int]]],
                 vocabulary: str | None = None, *, step: int = 0, **options: Any) -> None:
        self.text, self.step = text, step
        self._asked = 0
        self._loss = float("nan")
        super().__init__(vocabulary, step=step, **options)

    def ask(self, sequences: Sequence[tuple[Sequence[int], int]]) -> None:
        """Asks for the labels of the next step."""
        ids = [id for s, _ in sequences for id in s]
        lengths, prefixes, flat = (_ints(len(s) for s, _ in sequences),
                                   _ints(p for _, p in sequences), _ints(ids))
        check(lib.nebula_side_ask(self._handle, len(lengths), _address(lengths),
                                  _address(prefixes), _address(flat)))
        self._asked += 1

    def __iter__(self) -> Iterator[tuple[Text, Labels]]:
        while self.state == TRAIN and self.step < self.steps:
            while self._asked < self.ahead and self.step + self._asked < self.steps:
                self.ask(self.text(self.step + self._asked))
            t = self._next(0)
            if t is None:
                break
            step, n = self.step, t.rows * t.k
            if not n:
                warnings.warn(f"labels of step {step} belong to other samples than those that "
                              "this process has drawn: the step is left out")
                self.learned(self._loss, 0)
                continue
            yield _text_of(t), Labels(
                t.k, _ints(t.label_ids[:n]), array.array("f", t.label_logprobs[:n]),
                array.array("f", t.label_tails[:t.rows]))
            if self.step == step:
                raise Error(STATE, "call learned() for each step")

    def weight_of_kl(self, step: int) -> float:
        """lambda_ of distill_loss: the job's, or 1 for samples of the student itself."""
        return 1.0 if self.writes(step) else self.lambda_

    def learned(self, loss: float, tokens: int) -> None:
        """The step is over: the teacher gets credit for one more."""
        state = c_int()
        check(lib.nebula_side_learned(self._handle, float(loss), tokens, ctypes.byref(state)))
        self._asked -= 1
        self._loss = float(loss)
        self.step += 1
        self.state = state.value

    def saved(self) -> None:
        """A checkpoint after the last learned step is on disk: older labels may be forgotten."""
        check(lib.nebula_side_saved(self._handle))


def teacher(vocabulary: str | None = None, **options: Any) -> Teacher:
    """Opens the teacher of this cluster. vocabulary: a tokenizer's file or folder, or its digest.
    Options: agent, job, timeout (as nebula.attach)."""
    return Teacher(vocabulary, **options)


def student(text: Callable[[int], Sequence[tuple[Sequence[int], int]]],
            vocabulary: str | None = None, **options: Any) -> Student:
    """Opens the student of this cluster, at `step` (of its checkpoint)."""
    return Student(text, vocabulary, **options)


def pad(text: Text, pad_id: int = 0) -> tuple[Any, Any, Any]:
    """A text as torch tensors (sequences, longest - 1): input ids, targets (-100: none), and a mask
    of real inputs. Rows of labels belong to the targets in row-major order."""
    import torch
    T = max(len(ids) for ids, _ in text.sequences) - 1
    n = len(text.sequences)
    x = torch.full((n, T), pad_id, dtype=torch.long)
    y = torch.full((n, T), _IGNORE, dtype=torch.long)
    mask = torch.zeros((n, T), dtype=torch.long)
    for i, (ids, prefix) in enumerate(text.sequences):
        row = torch.tensor(ids, dtype=torch.long)
        x[i, :len(ids) - 1] = row[:-1]
        mask[i, :len(ids) - 1] = 1
        y[i, prefix - 1:len(ids) - 1] = row[prefix:]
    return x, y, mask


def distill_loss(logits: Any, targets: Any, ids: Any, logprobs: Any, tails: Any, *,
                 lambda_: float, temperature: float) -> Any:
    """The built-in student's loss: the mean over rows of (1 - λ) CE + λ T² KL(teacher || student),
    where all tokens that a row does not name count as one. logits: (rows, vocabulary) at the
    positions with a target; targets: (rows); labels as Labels.tensors gives them."""
    import torch
    logits = logits.float()
    ids, logprobs, tails = (v.to(logits.device) for v in (ids, logprobs, tails))
    ce = torch.nn.functional.cross_entropy(logits, targets.to(logits.device), reduction="none")
    logq = torch.log_softmax(logits / temperature, -1)
    named = logq.gather(-1, ids)
    rest = logq.scatter(-1, ids, float("-inf")).logsumexp(-1).clamp_min(-27.631021)  # log 1e-12
    p = logprobs.exp()
    kl = (p * (logprobs - named)).sum(-1)
    kl = kl + torch.where(tails > 0, tails * (tails.clamp_min(1e-38).log() - rest), 0.0)
    return ((1 - lambda_) * ce + lambda_ * temperature ** 2 * kl).mean()
