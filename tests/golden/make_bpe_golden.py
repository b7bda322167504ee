#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes bpe/*.json and bpe_golden.inc: small byte-level BPE vocabularies of several kinds, and the
results of Hugging Face tokenizers for texts with them.

The vocabularies are trained here, on sentences of this file, with the normalizer, the expressions
and the flags of GPT-2, Llama 3, Qwen2 and SmolLM2. Builds and tests do not need this script:

    $(tests/peers/hf/setup) tests/golden/make_bpe_golden.py
"""
import json
import pathlib

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRAINING = [
    "The licenses for most software are designed to take away your freedom to share and change it. "
    "By contrast, this License is intended "
    "to guarantee your freedom to share and change free software, and it's you who'll decide what "
    "you've got. I'm sure they're right; don't "
    "you think we'd know? In 1999, 2024 and 31415926 there were 100 or 1000 of them.\n\n    if (x "
    "== 0) {\n        return x + 1;\n    }\n",
    "Die Lizenzen der meisten Programme dürfen nicht geändert werden; über größere Änderungen "
    "müssen alle entscheiden. "
    "La liberté d’exécuter le programme, pour tous les usages, où l’on veut, à l’été. El niño "
    "comió piñas mañana.",
    "Свобода запускать программу в любых целях. Свобода изучения работы программы. Η ελευθερία να "
    "τρέχετε το πρόγραμμα.",
    "自由软件是指用户可以自由运行、复制、分发、学习、修改和改进软件。自由軟體。プログラムを実行する自由。프로그램을 실행할 자유입니다.",
    "حرية تشغيل البرنامج لأي غرض. חופש להריץ את התוכנה. प्रोग्राम चलाने की स्वतंत्रता। โปรแกรมเสรี "
    "คือเสรีภาพ",
]
TEXTS = [
    "",
    " ",
    "a",
    "The file system",
    " the  file   system ",
    "don't DON'T we'LL they'Re it'ſ 's 'S 'x ''s",
    "if (x == 0) {\n\treturn x + 1;\n}\n",
    "line\r\nline\r\n\r\nline\n \n  \n",
    "\n\n\n",
    " \n \n x",
    "\t\t x\t",
    " " * 40 + "x" + " " * 7,
    "0 12 123 1234 12345 3.14159 1,000,000 x1y22z333",
    "١٢٣ ४५६ Ⅷ ½ ² ㊿ 𝟘𝟙",
    "größere Änderungen, où l’été, niño",
    "gro\u0308\u00dfere A\u0308nderungen, ou\u0300 l\u2019e\u0301te\u0301",
    "q\u0307\u0323 q\u0323\u0307 \u1e0b\u0323 \u212b \u2126 \u0374 \u0958 \ufb1d "
    "\u1100\u1161\u11a8 \uac00\u11a8 e\u0301\u0301",
    "a" + "\u0301\u0323" * 20 + "b",
    "Свобода программы",
    "ελευθερία προγράμματος",
    "自由软件、自由軟體。プログラムを実行",
    "프로그램을 실행할",
    "حرية البرنامج",
    "חופש להריץ",
    "प्रोग्राम चलाने की",
    "โปรแกรมเสรี",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ x🙂y",
    "𝔘𐍈\U0010ffff\U000e0001",
    "\x01\x02\x7f\x1b[31m\x08 \x85 \x0b\x0c",
    "a\u00a0b\u2003c\u3000d\u2028e\u180ef\u200bg\ufeffh",
    "ﬁ ① Ａ ſs",
    "<|endoftext|> <|im_start|>user",
    "ab" * 300,
    "freedom" * 40,
    "a" * 500,
    "https://example.org/a/b?c=d&e=%20f#g",
    "e.g. x_y-z+1=$2 [3] {4} <5> \"6\" '7' `8` ~9~ @a #b",
    "ı İ ß ẞ ǆ",
    "!\u180e!",
    "\ufffd \uffff",
]
BROKEN = [
    b"a\xff\xfeb",
    b"\xe2\x82",
    b"\xed\xa0\x80x",
    b"\xf0\x9f\x98",
    b"\xc0\xaf \xf8\x88\x80\x80\x80",
    b"ok\xe2\x82\xac\x80",
]


def kinds():
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    after = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    yield "gpt2", None, gpt2, {}
    yield "gpt2_space", None, pre_tokenizers.ByteLevel(add_prefix_space=True), {}
    yield "llama3", None, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), after]
    ), {"ignore_merges": True}
    yield "qwen2", normalizers.NFC(), pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), after]
    ), {}
    yield "smollm2", None, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), gpt2]
    ), {}


def make(normalizer, split, more):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer, t.decoder = split, decoders.ByteLevel()
    t.train_from_iterator(
        TRAINING * 2,
        trainers.BpeTrainer(
            vocab_size=256 + 200,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    o = json.loads(t.to_str())
    o["model"].update(more)
    for pair in (
        ("!", "\u00e1"),
        ("\u0130", "!"),
    ):  # of "!", U+180E (e1 a0 8e), "!": three pieces if that were a space
        o["model"]["vocab"]["".join(pair)] = len(o["model"]["vocab"])
        o["model"]["merges"].append(list(pair))
    if more:  # merges do not make these words, but they are found as wholes
        for word in ("ĠThe", "software", "Ġprogramm"):
            o["model"]["vocab"].setdefault(word, len(o["model"]["vocab"]))
    if normalizer:
        o["model"]["merges"] = [
            " ".join(pair) for pair in o["model"]["merges"]
        ]  # as older files write it
    n = len(o["model"]["vocab"])
    o["added_tokens"].append(o["added_tokens"][0] | {"id": n + 1, "content": "<|im_start|>"})
    return o


def reference(o):
    """The text of an added token may also occur as plain text."""
    return Tokenizer.from_str(json.dumps(o | {"added_tokens": []}))


def added(o, flags):
    """The same vocabulary with added tokens: (content, flags)."""
    o = json.loads(json.dumps(o))
    o["added_tokens"] = o["added_tokens"][:1]
    more = 0
    for content, *on in flags:
        own = o["model"]["vocab"].get(content)
        o["added_tokens"].append(
            {
                "id": own if own is not None else len(o["model"]["vocab"]) + more,
                "content": content,
                "single_word": "single_word" in on,
                "lstrip": "lstrip" in on,
                "rstrip": "rstrip" in on,
                "normalized": "normalized" in on,
                "special": "special" in on,
            }
        )
        more += own is None
    return o


ADDED = [
    ("<think>", "normalized"),
    ("</think>",),
    ("<|im_end|>x", "special"),
    ("<|im_end|>",),
    ("\u00fc",),
    ("one", "single_word"),
    ("  ",),
    ("    ",),
    ("[m]", "lstrip"),
    ("[r]", "rstrip"),
    ("[b]", "lstrip", "rstrip", "single_word"),
    ("\u0438\u0306\u0442", "normalized"),
    ("o\u0308",),
    ("\u0323",),
    ("\uac00", "normalized"),
]
ADDED_TEXTS = [
    "<think>so</think> answer",
    "<think><think></think>",
    "a <|im_end|>x <|im_end|>y <|im_end|>",
    "<|endoftext|>",
    "f\u00fcr gru\u0308n",
    "one, one-one oneone one_ _one one",
    "one\u0301 \u0301one \u24d0one \u2167one \u0663one \u200done \u00bdone",
    "a  b   c    d     e        f",
    "a [m] b[m]\t \u3000[m]\u2028[m]\u180e[m]",
    "[r] a[r]\t\u3000b[r]  [m]  [r]     ",
    "x[b]y x [b] y [b][b]  [b]",
    "\u0439\u0442 \u0438\u0306\u0442 \u0418\u0306\u0442 \u0439\u0323\u0442",
    "o\u0308 \u00f6 o\u0323\u0308 o\u0308\u0323",
    "a\u0323 a\u0323\u0301 q\u0323",
    "\uac00 \u1100\u1161 \u1100\u1161\u11a8 \uac00\u11a7 \u1100\u1161\u11a7 \uac1c\u11a7x "
    "\u11a7\u0301 \uac00\u0301\u11a8",
    "",
    " <think>",
    "plain text",
]


def c(data):
    return (
        '"'
        + "".join(f"\\{b:03o}" if b < 32 or b > 126 or chr(b) in '"\\?' else chr(b) for b in data)
        + '"'
    )


def write(out, name, o, t, texts):
    (HERE / "bpe" / f"{name}.json").write_text(
        json.dumps(o, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    for text in texts:
        ids = t.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        back = t.decode(ids, skip_special_tokens=False).encode()
        numbers = ", ".join(map(str, ids)) or "0"
        out.append(
            f'{{"{name}", {c(text)}, {len(text)}, (const int32_t[]){{{numbers}}}, {len(ids)},\n '
            f'{c(back)}}},'
        )


def main():
    out = [
        f"// Written by make_bpe_golden.py with tokenizers {tokenizers.__version__}: texts, their "
        "ids, and what these say again."
    ]
    for name, *how in kinds():
        o = make(*how)
        (HERE / "bpe").mkdir(exist_ok=True)
        t = reference(o)
        write(out, name, o, t, [t.encode() for t in TEXTS] + BROKEN)
        for ids in (
            [0, 5, 100, 226, 200],
            [n for n in range(100, 356, 3)],
        ):  # bytes in any order, which no text has
            back = t.decode(ids, skip_special_tokens=False).encode()
            out.append(
                f'{{"{name}", NULL, 0, (const int32_t[]){{{", ".join(map(str, ids))}}}, '
                f'{len(ids)},\n {c(back)}}},'
            )
        if name in ("gpt2_space", "qwen2"):
            more = added(o, ADDED)
            t = Tokenizer.from_str(json.dumps(more))
            t.encode_special_tokens = True  # special ones stay text
            write(out, name + "_added", more, t, [t.encode() for t in ADDED_TEXTS])
    (HERE / "bpe_golden.inc").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
