# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 loop of a GPT-2 with 124M parameters, for the case "memory" of attached.py. Prints the
peak of each rank's memory.

usage: [torchrun …] memory.py alone | attached | peer   (a peer holds the parameters, and trains
nothing)
"""
import os
import pathlib
import re
import sys

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "agent/lib/python"))
import nebula

kind, STEPS = sys.argv[1], int(os.environ["STEPS"])
ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.set_num_threads(1)
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=64))
if kind == "peer":
    with nebula.attach(model, tokens=64) as fed:
        for _ in fed.steps():
            fed.step()
    sys.exit()
if ranks > 1:
    dist.init_process_group("gloo")
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
fed = nebula.attach(model, tokens=64 * ranks) if kind == "attached" else None
for step in fed.steps() if fed else range(STEPS):
    x = torch.randint(0, 50257, (1, 64))
    model(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if fed:
        fed.step()
share = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel()
            for p in model.parameters())
peak = int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
print("rank", rank, "share", share, "peak", peak, flush=True)
if fed:
    fed.close()
if ranks > 1:
    dist.destroy_process_group()
