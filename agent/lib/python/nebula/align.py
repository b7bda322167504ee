# SPDX-License-Identifier: Apache-2.0
"""Labels of a teacher whose tokenizer is not the student's (`distill.align: text`).

    label = Aligned(HuggingFace(model), Vocabulary.of(tokenizer), Vocabulary.of("tokenizer.vocab"))
    with nebula.teacher("tokenizer.model") as t:    # the student's vocabulary, whose ids it reads
        teach(t, label)

The student's ids become text, and the text the teacher's ids. A position of the student gets the
teacher's labels if one token of the teacher covers exactly the same bytes of the text:

    student   | the| ca|t s|at|           | the| and | at| get labels
    teacher   | the| c|at| s|at|

There each label is the student's token with the same bytes; labels without one count as the rest.
At all other positions the only label is the target itself, which is cross-entropy. The share of
positions with labels of the teacher is in the job's summary.json.
"""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable, Sequence

from .sides import Text

_FAR = -30.0  # the log-probability of labels that only fill a row
Labels = tuple[Any, Any]


@dataclasses.dataclass
class Vocabulary:
    """pieces: the bytes of each id, None for special tokens. encode: text -> ids, without special
    tokens; only the teacher's is used. end: id of the end of a sequence, or None."""
    pieces: list[bytes | None]
    encode: Callable[[str], Sequence[int]] | None = None
    end: int | None = None

    @classmethod
    def of(cls, source: Any) -> "Vocabulary":
        """From a corpus's tokenizer.vocab (a path), or a tokenizer of transformers."""
        if isinstance(source, (str, pathlib.Path)):
            return cls._of_file(pathlib.Path(source))
        special, texts = set(source.all_special_ids), source.convert_ids_to_tokens(
            list(range(len(source))))
        spaces = any(t.startswith("▁") for t in texts)
        return cls([None if i in special else _sentencepiece(t) if spaces else _byte_level(t)
                    for i, t in enumerate(texts)],
                   lambda text: source.encode(text, add_special_tokens=False),
                   source.eos_token_id)

    @classmethod
    def _of_file(cls, path: pathlib.Path) -> "Vocabulary":
        names = [line.rsplit("\t", 1)[0]
                 for line in path.read_text(encoding="utf-8").split("\n")[:-1] if "\t" in line]
        special = {"<unk>", "<s>", "</s>"}
        return cls([None if n in special else _sentencepiece(n) for n in names],
                   end=names.index("</s>") if "</s>" in names else None)


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes are themselves, the others follow from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in plain)
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_ALPHABET = _alphabet()


def _byte_level(piece: str) -> bytes:
    known = all(c in _ALPHABET for c in piece)
    return bytes(_ALPHABET[c] for c in piece) if known else piece.encode()


@dataclasses.dataclass
class _Sequence:
    """A sequence of the student in the teacher's ids. row_of: for each target of the student, the
    row of the teacher's labels, or None."""
    ids: list[int]
    prefix: int
    row_of: list[int | None]


class Aligned:
    """Labels with another vocabulary. label: makes the teacher's labels, as adapters.teach takes
    it. own, students: the two vocabularies. top: labels that the teacher makes at a position, of
    which the k most likely ones that the student also has remain; 0: twice k."""

    def __init__(self, label: Callable[[Text, int, float], Labels], own: Vocabulary,
                 students: Vocabulary, *, top: int = 0) -> None:
        if own.encode is None:
            raise ValueError("the teacher's vocabulary has no encode")
        self.label, self.own, self.students, self.top = label, own, students, top
        self.mapped = 0  # positions of the last text with labels of the teacher
        ids: dict[bytes, int] = {}
        for i, piece in enumerate(students.pieces):
            if piece:
                ids.setdefault(piece, i)
        self._id_of = [ids.get(piece) if piece else None for piece in own.pieces]
        if own.end is not None:
            self._id_of[own.end] = students.end

    @property
    def name(self) -> str:
        """Of the teacher's model, if `label` says it."""
        return getattr(self.label, "name", "")

    def _spans(self, vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[bytes, list[int]]:
        """The text of ids and the end of each id in it. A space that begins the text does not
        count: tokenizers differ in adding it."""
        text, ends = b"", []
        for id in ids:
            text += vocabulary.pieces[id] or b""
            ends.append(len(text))
        lead = 1 if text.startswith(b" ") else 0
        return text[lead:], [max(0, end - lead) for end in ends]

    def _tokens(self, ids: Sequence[int]) -> tuple[list[int], list[int], list[int]] | None:
        """The teacher's ids of a text, the ends of the student's tokens in it, and of its own."""
        text, ends = self._spans(self.students, ids)
        try:
            own = list(self.own.encode(text.decode()))  # type: ignore[misc]
        except UnicodeDecodeError:
            return None
        own_text, own_ends = self._spans(self.own, own)
        return (own, ends, own_ends) if own_text == text else None

    def _convert(self, ids: Sequence[int], prefix: int) -> _Sequence | None:
        """None: the text is not the same in the teacher's tokens. After a special token, as between
        a source and its translation, another text begins."""
        apart = self.students.pieces[ids[prefix - 1]] is None
        own: list[int] = []
        ends: list[int] = []
        own_ends: list[int] = []
        for part in (ids[:prefix], ids[prefix:]) if apart else (ids,):
            tokens = self._tokens(part)
            if tokens is None:
                return None
            at = ends[-1] if ends else 0
            own += tokens[0]
            ends += [at + end for end in tokens[1]]
            own_ends += [at + end for end in tokens[2]]
        begin = ends[prefix - 1]
        given = sum(end <= begin for end in own_ends)
        starts = dict(zip([0, *own_ends], own_ends))  # the span of a token by its begin
        row_at = {end: at - given for at, end in enumerate(own_ends)}
        row_of: list[int | None] = []
        for i in range(prefix, len(ids)):
            a, b = ends[i - 1], ends[i]
            same = a < b and starts.get(a) == b
            row_of.append(row_at[b] if same and row_at[b] >= 0 else None)
        if self.students.end is not None and ids[-1] == self.students.end and \
                self.own.end is not None:
            row_of[-1] = len(own) - given
            own.append(self.own.end)
        if not given or given >= len(own):
            return None
        return _Sequence(own, given, row_of)

    def _row(self, target: int, k: int, labels: tuple[Sequence[int], Sequence[float]] | None,
             ids: list[list[int]], logprobs: list[list[float]]) -> None:
        """Appends the row of a target, with labels of the teacher or None."""
        row: dict[int, float] = {}
        for id, logprob in zip(*labels) if labels else ():
            student = self._id_of[id] if id < len(self._id_of) else None  # padding of the model
            if student is not None and student not in row and len(row) < k:
                row[student] = logprob
        self.mapped += bool(row)
        row = row or {target: 0.0}
        far = min(_FAR, *row.values())
        for id in range(len(row) + k):
            if len(row) < k:
                row.setdefault(id, far)
        ids.append(list(row))
        logprobs.append(list(row.values()))

    def __call__(self, text: Text, k: int, temperature: float) -> Labels:
        self.mapped = 0
        made = [self._convert(*s) for s in text.sequences]
        asked = Text(text.step, text.student, [(s.ids, s.prefix) for s in made if s])
        own_ids: Any = []
        own_logprobs: Any = []
        if asked.sequences:
            own_ids, own_logprobs = self.label(asked, self.top or 2 * k, temperature)
            own_ids, own_logprobs = (v.tolist() if hasattr(v, "tolist") else v
                                     for v in (own_ids, own_logprobs))
        ids: list[list[int]] = []
        logprobs: list[list[float]] = []
        begin = 0
        for (sequence, prefix), s in zip(text.sequences, made):
            for i, target in enumerate(sequence[prefix:]):
                row = s.row_of[i] if s else None
                at = None if row is None else begin + row
                self._row(target, k, None if at is None else (own_ids[at], own_logprobs[at]), ids,
                          logprobs)
            begin += len(s.ids) - s.prefix if s else 0
        return ids, logprobs
