#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes hf_golden.inc: config.json and logits of three tiny models, made by transformers.

Parameters follow from their names (as in make_golden.py), so none are stored. Builds and tests do
not need this script:

    $(tests/peers/hf/setup) tests/golden/make_hf_golden.py > tests/golden/hf_golden.inc
"""
import json
import pathlib
import tempfile

import torch
import transformers
from transformers import LlamaConfig, Qwen2Config

MASK64 = (1 << 64) - 1
TOKENS = [3, 28, 7, 7, 0, 19, 11, 2, 25]
SMALL = dict(
    vocab_size=29,
    hidden_size=16,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=16,
    num_key_value_heads=2,
)
CASES = {
    "llama": LlamaConfig(**SMALL, head_dim=6, rope_theta=100.0, rms_norm_eps=1e-5),
    "llama3": LlamaConfig(
        **SMALL | {"max_position_embeddings": 64},
        head_dim=6,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True, rope_theta=1000000.0),
}


def unit(name, k):  # in [-1, 1), exact in float32
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK64
    z = (h + k) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return ((z ^ (z >> 31)) >> 40) * 2.0**-23 - 1


print(
    f"// Written by make_hf_golden.py with transformers {transformers.__version__}, torch "
    f"{torch.__version__.split('+')[0]}:"
)
print("// config.json, and logits (position, vocabulary).")
for name, config in CASES.items():
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            base = 1 if key.endswith("norm.weight") else 0
            p.copy_(
                base + 0.5 * torch.tensor([unit(key, k) for k in range(p.numel())]).reshape(p.shape)
            )
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d)
            text = (pathlib.Path(d) / "config.json").read_text()
            # .double() would keep the rotary table in float32, so the model itself is made in
            # float64.
            torch.set_default_dtype(torch.float64)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                d, dtype=torch.float64, attn_implementation="eager"
            )
            torch.set_default_dtype(torch.float32)
        logits = model(torch.tensor([TOKENS])).logits[0].tolist()
    print(f"{{\n    \"{name}\",")
    for line in text.splitlines():
        print(f"    {json.dumps(line + chr(10))}")
    print("    ,\n    {")
    for row in logits:
        print("        {" + ", ".join(f"{x:.7f}" for x in row) + "},")
    print("    },\n},")
