# SPDX-License-Identifier: Apache-2.0
"""Small random models made by transformers, through nebula and back. usage: compare.py NEBULA

Each model: save_pretrained -> nebula import -> logits and greedy tokens against transformers ->\
 nebula export ->
from_pretrained -> logits again. One line a case; exit status 1 when one differs.
"""

import array
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata
import warnings

import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config

LIMIT = 1e-4  # of a logit, fp32
nebula = sys.argv[1]
failures = 0


def run(*args, ok=True):
    p = subprocess.run([nebula, *map(str, args)], capture_output=True, text=True, timeout=300)
    if ok and p.returncode:
        sys.exit(f"nebula {' '.join(map(str, args))}: {p.stderr}")
    return p


small = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 2.5}
CASES = {
    "llama": LlamaConfig(**small, num_key_value_heads=4, rope_theta=10000.0),
    "llama-gqa-tied-bf16": LlamaConfig(
        **small, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-5
    ),
    "llama-head-dim": LlamaConfig(**small, num_key_value_heads=1, head_dim=24, rope_theta=500000.0),
    "llama-3.1": LlamaConfig(
        **small, num_key_value_heads=2, rope_parameters=LLAMA3 | {"rope_theta": 10000.0}
    ),
    "llama-linear": LlamaConfig(
        **small, num_key_value_heads=2, rope_parameters=LINEAR | {"rope_theta": 10000.0}
    ),
    "qwen2-llama3": Qwen2Config(
        **small,
        num_key_value_heads=2,
        rope_parameters=LLAMA3 | {"rope_theta": 1000000.0, "factor": 32.0},
    ),
    "llama-3-of-9-heads": LlamaConfig(
        **small
        | {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "vocab_size": 301,
            "intermediate_size": 113,
        },
        num_key_value_heads=3,
    ),
    "mistral": MistralConfig(
        **small, num_key_value_heads=2, sliding_window=None, rope_theta=1000000.0
    ),
    "mistral-window": MistralConfig(**small, num_key_value_heads=2, sliding_window=40),
    "qwen2-tied-f16": Qwen2Config(
        **small, num_key_value_heads=2, tie_word_embeddings=True, rope_theta=1000000.0
    ),
    "qwen2-shards": Qwen2Config(**small, num_key_value_heads=4),
    "smollm-135m-shape": LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
}


def parameters(model, seed):
    "Values larger than transformers' initial ones, also biases and gains, so that mistakes show."
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            base, std = (1.0, 0.2) if name.endswith("norm.weight") else (0.0, 0.08)
            p.copy_(base + std * torch.randn(p.shape, generator=g))


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def logits_here(checkpoint, ids, *options):
    text = run("eval", checkpoint, "--logits", "--ids", " ".join(map(str, ids)), *options).stdout
    return torch.tensor([[float(x) for x in line.split()] for line in text.splitlines()])


def report(case, what, difference, good=None):
    global failures
    good = difference <= LIMIT if good is None else good
    failures += not good
    print(f"{case:22s} {what:56s} {difference:10.3g}  {'ok' if good else 'DIFFERS'}", flush=True)


def check(case, config, work):
    torch.manual_seed(7)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(
        case.rsplit("-", 1)[-1], torch.float32
    )
    model = (
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .float()
        .eval()
    )
    parameters(model, sum(case.encode()))
    model = model.to(dtype)
    hf, ckpt = work / "hf", work / "ckpt"
    model.save_pretrained(hf, max_shard_size="100KB" if case.endswith("shards") else "5GB")
    # The same values, computed in fp32 on both sides (.float() would keep a rounded rotary table).
    model = transformers.AutoModelForCausalLM.from_pretrained(
        hf, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    run("import", hf, "--out", ckpt)
    ids = [int(x) for x in torch.randint(3, config.vocab_size, (24,))]
    theirs = logits_of(model, ids)
    what = (
        f"import, {str(dtype)[6:]}, |logits| to {float(theirs.abs().max()):.1f}: "
        "max |logit - theirs|"
    )
    report(case, what, float((theirs - logits_here(ckpt, ids)).abs().max()))

    with torch.no_grad():
        greedy = model.generate(
            torch.tensor([ids]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0].tolist()
    here = run(
        "generate", ckpt, "--ids", " ".join(map(str, ids)), "--tokens", 12, "--temperature", 0
    ).stdout.split()
    report(case, "12 greedy tokens that differ", sum(a != int(b) for a, b in zip(greedy, here)),
           greedy == [int(x) for x in here])

    for name, options in (
        ("export", ["--shard-size", "300K"]),
        ("export, config.json of our own", None),
    ):
        out = work / f"out-{name[:8]}-{options is None}"
        if options is None:  # only the checkpoint file, without the folder that it came from
            alone = work / "alone.ckpt"
            alone.write_bytes((ckpt / "model.ckpt").read_bytes())
            run("export", alone, out)
        else:
            run("export", ckpt, out, *options)
        back, odd = transformers.AutoModelForCausalLM.from_pretrained(
            out, attn_implementation="eager", output_loading_info=True
        )
        back = back.float().eval()
        equal = not any(odd.values()) and all(
            torch.equal(a, back.state_dict()[k]) for k, a in model.state_dict().items()
        )
        report(
            case,
            f"{name}: max |logit - theirs|",
            float((theirs - logits_of(back, ids)).abs().max()),
        )
        report(case, f"{name}: tensors equal", float(not equal), equal)


# Other valid contents of config.json, as edits of a Llama's, or of a Qwen2's where stated.
def older(c, **more):  # as transformers 4 wrote it
    rope = c.pop("rope_parameters")
    c.update(torch_dtype=c.pop("dtype"), rope_theta=rope["rope_theta"], rope_scaling=None, **more)


PLAIN = {"rope_type": "default"}
LAYOUTS = {
    "as transformers 4 wrote it": older,
    "the same, type default": lambda c: older(c) or c.update(rope_scaling={"type": "default"}),
    "no rotary positions at all": lambda c: c.pop("rope_parameters"),
    "rope_theta beside rope_parameters": lambda c: c.update(rope_theta=5.0),
    "rope_scaling with a theta, rope_parameters": lambda c: c.update(
        rope_scaling=PLAIN | {"rope_theta": 7e4}
    ),
    "rope_scaling without, rope_parameters": lambda c: c.update(rope_scaling=PLAIN),
    "the same, rope_theta": lambda c: c.update(rope_scaling=PLAIN, rope_theta=7e4),
    "rope_scaling {}, rope_parameters, rope_theta": lambda c: c.update(
        rope_scaling={}, rope_theta=7e4
    ),
    "a factor that rope_type default ignores": lambda c: c["rope_parameters"].update(factor=8.0),
    "llama3, as transformers 4 wrote it": lambda c: older(c) or c.update(rope_scaling=LLAMA3),
    "linear, with the key type": lambda c: older(c)
    or c.update(rope_scaling={"type": "linear", "factor": 2.5}),
    "llama3 in rope_parameters, linear in rope_scaling": lambda c: c.update(
        rope_parameters=LLAMA3, rope_scaling=LINEAR
    ),
    "no architectures": lambda c: c.pop("architectures"),
    "several ends, no beginning": lambda c: c.update(eos_token_id=[2, 7], bos_token_id=None),
    "no num_key_value_heads": lambda c: c.pop("num_key_value_heads"),
    "no rms_norm_eps": lambda c: c.pop("rms_norm_eps"),
    "pretraining_tp": lambda c: c.update(pretraining_tp=2),
    "qwen2, as transformers 4 wrote it": older,
    "qwen2, a window and no length": lambda c: c.update(
        use_sliding_window=True, max_window_layers=0
    )
    or c.pop("sliding_window"),
}


def check_layouts(work):
    "The same weights with another config.json: an accepted one gives the logits of transformers."
    rope = {"rope_parameters": PLAIN | {"rope_theta": 1e6}}
    for kind, config in (
        ("llama", LlamaConfig(**small, **rope)),
        ("qwen2", Qwen2Config(**small, num_key_value_heads=4, **rope)),
    ):
        make(config, work / kind)
    ids = [int(x) for x in torch.randint(3, 320, (24,))]
    for n, (name, edit) in enumerate(LAYOUTS.items()):
        folder = work / f"layout-{n}"
        shutil.copytree(work / ("qwen2" if name.startswith("qwen2") else "llama"), folder)
        c = json.loads((folder / "config.json").read_text())
        edit(c)
        (folder / "config.json").write_text(json.dumps(c))
        run("import", folder, "--out", work / f"ckpt-{n}")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        report(
            "config.json",
            name,
            float((logits_of(model, ids) - logits_here(work / f"ckpt-{n}", ids)).abs().max()),
        )


def check_adapter(work):
    """A PEFT adapter: imported, exported, and merged."""
    import peft
    config = CASES["qwen2-tied-f16"]
    torch.manual_seed(3)
    base = (
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        .float()
        .eval()
    )
    model = peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=4,
            lora_alpha=10,
            target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    ).eval()
    parameters(model, 6)  # the base too; it is saved below
    base_again = work / "hf2"
    ids = [int(x) for x in torch.randint(3, config.vocab_size, (20,))]
    theirs = logits_of(model, ids)
    model.save_pretrained(work / "adapter")
    state = {
        k.replace("base_model.model.", "").replace(".base_layer", ""): v
        for k, v in model.state_dict().items()
        if "lora_" not in k
    }
    base = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).float()
    base.load_state_dict(state)
    base.save_pretrained(base_again)
    ckpt = work / "ckpt"
    run("import", base_again, "--adapter", work / "adapter", "--out", ckpt)
    report(
        "peft", "import: max |logit - theirs|", float((theirs - logits_here(ckpt, ids)).abs().max())
    )
    run("export", ckpt, work / "adapter2", "--adapter")
    back = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(
        base_again, attn_implementation="eager").float(), work / "adapter2").eval()
    report("peft", "export --adapter", float((theirs - logits_of(back, ids)).abs().max()))
    run("export", ckpt, work / "merged", "--merge-lora")
    merged = transformers.AutoModelForCausalLM.from_pretrained(
        work / "merged", attn_implementation="eager"
    ).float()
    report(
        "peft", "export --merge-lora", float((theirs - logits_of(merged.eval(), ids)).abs().max())
    )
    check_adapters(work, base_again, ids)


def check_adapters(work, base, ids):
    """Each module alone; and the files of peft that are refused."""
    import peft
    qv = ["q_proj", "v_proj"]

    def adapter(folder, **options):
        options = {
            "r": 4,
            "lora_alpha": 10,
            "target_modules": qv,
            "task_type": "CAUSAL_LM",
        } | options
        model = transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.float32, attn_implementation="eager"
        )
        model = peft.get_peft_model(model, peft.LoraConfig(**options)).eval()
        g = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.08 * torch.randn(p.shape, generator=g) * p.requires_grad)
        model.save_pretrained(folder)
        return model

    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        model = adapter(work / name, target_modules=[name], init_lora_weights=name != "k_proj")
        run("import", base, "--adapter", work / name, "--out", work / f"ckpt-{name}")
        report(
            "peft",
            f"{name} alone",
            float((logits_of(model, ids) - logits_here(work / f"ckpt-{name}", ids)).abs().max()),
        )
    refused = {
        "rank_pattern": {"rank_pattern": {"q_proj": 8}},
        "alpha_pattern": {"alpha_pattern": {"q_proj": 32}},
        "use_rslora": {"use_rslora": True},
        "use_dora": {"use_dora": True},
        "bias": {"bias": "all"},
        "lora_bias": {"lora_bias": True},
        "modules_to_save": {"modules_to_save": ["embed_tokens"]},
        "layers_to_transform": {"layers_to_transform": [0]},
        "exclude_modules": {"exclude_modules": ".*layers.1.*"},
        "target_modules": {"target_modules": ["q_proj", "lm_head"]},
        "init_lora_weights": {"init_lora_weights": "pissa"},
        "trainable_token_indices": {"trainable_token_indices": [1]},
        "layer_replication": {"layer_replication": [[0, 2], [1, 3]]},
    }
    for name, options in refused.items():
        adapter(work / f"no-{name}", **options)
        p = run("import", base, "--adapter", work / f"no-{name}", "--out", work / "never", ok=False)
        good = (
            p.returncode == 1
            and f"{name}: " in p.stderr
            and "cannot be imported" in p.stderr
            and not (work / "never").exists()
        )
        report("peft refused", name, 0 if good else 1, good)
    shutil.copytree(base, work / "both")
    adapter(work / "both")
    p = run("import", work / "both", "--out", work / "never", ok=False)
    good = p.returncode == 1 and "--adapter" in p.stderr and not (work / "never").exists()
    report("peft refused", "an adapter in the model's own folder", 0 if good else 1, good)


# Scripts, emoji, spaces, digits, control characters, long words.
SAMPLES = [
    "",
    " ",
    " a",
    "a ",
    "  two  spaces ",
    "\t tab\tx",
    "a\n\n\nb\n",
    "\r\nx\r\n",
    "Grüße, 東京",
    "Привет, мир",
    "مرحبا بالعالم",
    "שלום",
    "नमस्ते दुनिया",
    "ไทยสวัสดี",
    "안녕하세요 세계",
    "ελληνικά",
    "👍🏽👨‍👩‍👧‍👦🇩🇪",
    "1234567890 3.14 1,000,000 ٣٤٥",
    "x" * 3000,
    " " * 200 + "x",
    "a\u00a0b\u2003c\u3000d",
    "e\u0301 é ﬁ ① ½ Ａ",
    "\u200b\u200d\ufeff",
    "\x01\x02\x7f\x1b[31m",
    "▁under▁score",
    "don't I'LL",
    "𝔘𐍈\U0010ffff",
]


def check_tokenizer(work):
    "A model with a vocabulary of nebula data build: transformers makes the same tokens of a text."
    import sentencepiece
    text = (pathlib.Path(__file__).parents[3] / "README.md").read_text()
    lines = work / "lines.txt"
    lines.write_text(text)
    for kind in ("unigram", "bpe"):
        ckpt, out = work / f"ckpt-{kind}", work / f"out-{kind}"
        ckpt.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines),
            model_prefix=str(ckpt / "tokenizer"),
            vocab_size=480,
            model_type=kind,
            byte_fallback=True,
            remove_extra_whitespaces=False,
            user_defined_symbols="\n",
            normalization_rule_name="identity",
            minloglevel=2,
            hard_vocab_limit=False,
        )
        run(
            "import",
            make(LlamaConfig(**small | {"vocab_size": 480}), work / f"hf-{kind}"),
            "--out",
            work / f"in-{kind}",
        )
        (ckpt / "model.ckpt").write_bytes((work / f"in-{kind}" / "model.ckpt").read_bytes())
        run("export", ckpt, out)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(ckpt / "tokenizer.model"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        samples = [t for t in text.split("\n\n") if t] + SAMPLES
        differ = [t for t in samples if tokenizer(t)["input_ids"] != pieces.encode(t)]
        report("tokenizer", f"{kind}: texts of {len(samples)} that differ", len(differ), not differ)
        if differ:
            t = min(differ, key=len)
            print(repr(t), tokenizer(t)["input_ids"], pieces.encode(t))
        differ = [
            t
            for t in samples
            if tokenizer.decode(pieces.encode(t)) != pieces.decode(pieces.encode(t))
        ]
        report("tokenizer", f"{kind}: texts that come back otherwise", len(differ), not differ)
        back = transformers.AutoConfig.from_pretrained(out)
        good = (back.bos_token_id, back.eos_token_id) == (pieces.bos_id(), pieces.eos_id())
        report("tokenizer", f"{kind}: token ids in config.json", 0, good)


def pieces_of(corpus):
    """The documents of a corpus, each as a tuple of its ids without the EOS."""
    info = json.loads((corpus / "corpus.json").read_text())
    documents = set()
    for source in info["sources"]:
        for shards in (v for v in source.values() if isinstance(v, list)):
            for shard in shards:
                ids = array.array("H" if info["vocab"] <= 65536 else "I")
                ids.frombytes((corpus / shard["file"]).read_bytes()[64:])
                document = []
                for i in ids:
                    if i == EOS:
                        documents.add(tuple(document))
                        document = []
                    else:
                        document.append(i)
    return documents


EOS = 0  # of make_bpe_golden's vocabularies


def random_text(g):
    (
        "Characters of one range with some of ASCII, so that all splitting rules apply; "
        "of marks only old\n"
        "    ones (the reason is in intra/data/bpe.h)."
    )
    first = g.choice(
        [
            0x20,
            0xA0,
            0x250,
            0x370,
            0x590,
            0x900,
            0xE00,
            0x1100,
            0x1E00,
            0x2000,
            0x3000,
            0x4E00,
            0xAC00,
            0x1F300,
        ]
    )
    old = unicodedata.ucd_3_2_0
    ranges = [
        c
        for c in range(first, first + 256)
        if unicodedata.category(chr(c)) != "Cn"
        and unicodedata.combining(chr(c)) == old.combining(chr(c))
    ]
    return (
        "".join(
            chr(g.choice(ranges)) if g.random() < 0.5 else g.choice(" \t\n\r'stlm09aB-\u0301\u0323")
            for _ in range(g.randrange(1, 80))
        )
        + "."
    )


def check_bpe(work):
    (
        "An imported byte-level tokenizer.json: nebula data build makes the same documents "
        "as tokenizers,\n"
        "    and transformers loads the export."
    )
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "golden"))
    import make_bpe_golden
    g = random.Random(1)
    readme = (pathlib.Path(__file__).parents[3] / "README.md").read_text()
    texts = [t.rstrip() for t in readme.split("\n\n") + make_bpe_golden.TRAINING] + [
        t + "." for t in SAMPLES + make_bpe_golden.TEXTS
    ]
    texts = list(dict.fromkeys(t for t in texts + [random_text(g) for _ in range(4000)] if t))
    (work / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for name, *how in make_bpe_golden.kinds():
        hf, ckpt, out, corpus = (
            work / f"{what}-{name}" for what in ("hf", "ckpt", "out", "corpus")
        )
        o = make_bpe_golden.make(*how)
        make(LlamaConfig(**small | {"vocab_size": 480, "eos_token_id": EOS}), hf)
        (hf / "tokenizer.json").write_text(json.dumps(o))
        (hf / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "tokenizer_class": "TokenizersBackend",
                    "bos_token": None,
                    "eos_token": "<|endoftext|>",
                }
            )
        )
        run("import", hf, "--out", ckpt)
        (work / "spec.yaml").write_text(
            f"name: x\ntokenizer: {ckpt}\nsources:\n  - {{name: x, format: jsonl, path: "
            f"{work}/text.jsonl, field: text}}\n"
        )
        run("data", "build", work / "spec.yaml", "--out", corpus)
        theirs = make_bpe_golden.reference(o)
        want = {tuple(theirs.encode(t, add_special_tokens=False).ids) for t in texts}
        got = pieces_of(corpus)
        report(
            "byte-level", f"{name}: texts of {len(want)} that differ", len(want - got), want == got
        )
        for ids in sorted(want - got, key=len)[:1]:
            print(repr(theirs.decode(ids)), ids)
        run("export", ckpt, out)
        there = transformers.AutoTokenizer.from_pretrained(out)
        plain = [t for t in texts if "<|" not in t]
        differ = [
            t for t in plain if tuple(there(t, add_special_tokens=False)["input_ids"]) not in got
        ]
        report(
            "byte-level",
            f"{name}: exported, texts that differ in transformers",
            len(differ),
            not differ,
        )


def make(config, folder):
    model = transformers.AutoModelForCausalLM.from_config(config)
    parameters(model, 9)
    model.save_pretrained(folder)
    return folder


def check_refused(work):
    """Output of transformers that the transformer cannot represent."""
    base = dict(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    heads, few = {"head_dim": 16}, {"num_experts_per_tok": 1}
    t5 = {"d_model": 64, "d_kv": 16, "d_ff": 112, "num_layers": 2, "num_heads": 4}
    rope = lambda **k: LlamaConfig(**small, rope_parameters={"rope_theta": 1e4, "factor": 2.0} | k)
    refused = {
        "rope dynamic": rope(rope_type="dynamic"),
        "rope yarn": rope(rope_type="yarn", original_max_position_embeddings=64),
        "rope partial": LlamaConfig(
            **small,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        ),
        "biases": LlamaConfig(**small, attention_bias=True),
        "mlp biases": LlamaConfig(**small, mlp_bias=True),
        "gelu": LlamaConfig(**small, hidden_act="gelu"),
    }
    for name, more in (
        ("Qwen3", heads),
        ("Gemma", heads),
        ("Gemma2", heads),
        ("Gemma3Text", heads),
        ("Phi3", {}),
        ("SmolLM3", {}),
        ("Olmo2", {}),
        ("Granite", {}),
        ("GPTNeoX", {}),
        ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
        ("Mixtral", {"num_local_experts": 2}),
        ("Qwen3Moe", heads | few | {"num_experts": 2, "moe_intermediate_size": 32}),
        ("Bert", {}),
        ("XLMRoberta", {}),
        ("Bloom", {"n_layer": 2, "n_head": 4}),
        ("MT5", t5),
    ):
        refused[name] = getattr(transformers, name + "Config")(**base | more)
    for name, config in refused.items():
        folder = work / name.replace(" ", "-")
        kind = (
            transformers.AutoModelForSeq2SeqLM
            if name == "MT5"
            else transformers.AutoModelForCausalLM
        )
        kind.from_config(config).save_pretrained(folder)
        p = run("import", folder, "--out", work / "never", ok=False)
        good = (
            p.returncode == 1 and "cannot be imported" in p.stderr and not (work / "never").exists()
        )
        report("refused", name, 0 if good else 1, good)
        if not good:
            print(p.stderr)


print(f"transformers {transformers.__version__}, torch {torch.__version__}, limit {LIMIT:g}")
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
for case, config in CASES.items():
    with tempfile.TemporaryDirectory() as d:
        check(case, config, pathlib.Path(d))
for more in (check_layouts, check_adapter, check_tokenizer, check_bpe, check_refused):
    with tempfile.TemporaryDirectory() as d:
        more(pathlib.Path(d))
print(f"{failures} differ")
sys.exit(failures > 0)
