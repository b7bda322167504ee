# SPDX-License-Identifier: Apache-2.0
"""Labels of a teacher with another vocabulary: which positions get them, and what they become."""
import math

import nebula
from nebula.align import Aligned, Vocabulary

# Tokens of one text, "the cat sat", as the drawing of nebula/align.py has them.
students = Vocabulary([None, None, b"the", b" ca", b"t s", b"at", b" cat", b" sat", b" dog"], end=1)


class Own:
    """Greedy, longest piece first."""
    pieces = [b"the", b" c", b"at", b" s", b"sat", b" cat", b" dog", b" ca", b"t s", None, b"t",
              b" "]
    asked = []

    @classmethod
    def encode(cls, text):
        raw, ids = text.encode(), []
        while raw:
            id = max((i for i, p in enumerate(cls.pieces) if p and raw.startswith(p)
                      and p not in (b" cat", b" ca", b"t s")), key=lambda i: len(cls.pieces[i]))
            ids.append(id)
            raw = raw[len(cls.pieces[id]):]
        return ids


own = Vocabulary(list(Own.pieces), Own.encode, end=9)


def label(text, k, temperature):
    """For each target: itself, " dog", "sat" (which the student lacks)."""
    Own.asked.append((text, k, temperature))
    ids = [[t, 6, 4][:k] for s, prefix in text.sequences for t in s[prefix:]]
    return ids, [[math.log(0.5), math.log(0.25), math.log(0.125)][:k] for _ in ids]


aligned = Aligned(label, own, students, top=3)
# "the| ca|t s|at" with an end; then "the| sat" with " sat", which the teacher has in two tokens;
# then bytes that are no text for the teacher.
text = nebula.Text(4, 1, [([2, 3, 4, 5, 1], 1), ([2, 7, 6], 2), ([0, 0], 1)])
ids, logprobs = aligned(text, 2, 1.5)
asked = Own.asked[-1]
assert asked[1:] == (3, 1.5) and asked[0].step == 4
assert [s for s, _ in asked[0].sequences] == [[0, 1, 2, 3, 2, 9], [0, 3, 2, 1, 2]], asked
assert [p for _, p in asked[0].sequences] == [1, 3]
near = [math.log(0.5), math.log(0.25)]
# " ca" and "t s" end inside of the teacher's tokens: their own label, and a filler. "at" and the
# end get the teacher's.
assert [r[0] for r in ids] == [3, 4, 5, 1, 6, 0], ids
assert ids[2] == [5, 8] and ids[3] == [1, 8] and logprobs[2] == near and logprobs[3] == near
for row in (0, 1, 4, 5):
    assert logprobs[row][0] == 0 and logprobs[row][1] <= -30 and len(set(ids[row])) == 2
assert aligned.mapped == 2 and text.rows == 6
# After a special token another text begins. The span of "cat" is the same, but the token is not.
cat = Vocabulary([b"the", b" cat", None], end=2)
words = Vocabulary([b"the", b"cat"], lambda t: {"the": [0], "cat": [1]}[t])
pair = Aligned(label, words, cat, top=1)
ids, logprobs = pair(nebula.Text(0, 1, [([0, 2, 1, 2], 2)]), 1, 1.0)
assert Own.asked[-1][0].sequences == [([0, 1], 1)] and ids == [[1], [2]] and pair.mapped == 0
# Tokens of the same bytes, but other spans before: the sequence ends are what counts.
same = Aligned(label, own, Vocabulary([b"the", b" c", b"at", None], end=3), top=3)
ids, logprobs = same(nebula.Text(0, 1, [([0, 1, 2], 1)]), 2, 1.0)
assert same.mapped == 2 and [r[0] for r in ids] == [1, 2], (same.mapped, ids)
assert logprobs[0][1] <= -30  # neither " dog" nor "sat" is a token of this student


class Tokenizer:
    """What Vocabulary.of needs of a tokenizer of transformers."""
    all_special_ids, eos_token_id = [0], 0
    tokens = ["<eos>", "Ġthe", "Ã©", "a"]

    def __len__(self):
        return len(self.tokens)

    def convert_ids_to_tokens(self, ids):
        return [self.tokens[i] for i in ids]

    def encode(self, text, add_special_tokens):
        return [1]


assert Vocabulary.of(Tokenizer()).pieces == [None, b" the", "é".encode(), b"a"]
Tokenizer.tokens = ["<eos>", "▁the", "<0xC3>", "a▁"]
assert Vocabulary.of(Tokenizer()).pieces == [None, b" the", b"\xc3", b"a "]
print("labels are mapped by equal spans")
