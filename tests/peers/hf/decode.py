# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding on processors: nebula bench decode beside transformers' generate.

usage: decode.py NEBULA [SHAPE] [ROUNDS]. Both decode random prompts of half a sequence with a cache
of keys and values in fp32, on one thread, with the model of nebula bench. Prints tokens for a
second of processor time (load affects it less than the clock) and the ratio.
"""
import json
import os
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM

nebula, shape = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "8x256x256"
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
layers, width, seq = map(int, shape.split("x"))
torch.set_num_threads(1)
heads = width // (64 if width >= 128 and width % 64 == 0 else 32)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=(width * 8 // 3 + 15) // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=seq,
        tie_word_embeddings=True,
    )
).eval()


@torch.no_grad()
def generate(prompts, new):
    start = time.process_time()
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        min_new_tokens=new,
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return time.process_time() - start


out = subprocess.run(
    [nebula, "bench", "decode", "--threads", "1", "--shape", shape, "--json"],
    check=True,
    capture_output=True,
    text=True,
).stdout
for line in map(json.loads, out.splitlines()):
    n = 16 if "16 at once" in line["case"] else 1
    prompts = torch.randint(1, 4096, (n, seq // 2))
    generate(prompts, 1)
    few = min(generate(prompts, 1) for _ in range(rounds))
    many = min(generate(prompts, seq // 2) for _ in range(rounds))
    theirs = n * (seq // 2 - 1) / (many - few)
    ours = line["tokens_per_cpu_s"]
    print(
        f"{line['case']}: nebula {ours:.0f}, transformers {theirs:.0f} tokens for a second of "
        f"processor time, ratio {ours / theirs:.2f}"
    )
