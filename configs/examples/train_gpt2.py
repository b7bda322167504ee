# SPDX-License-Identifier: Apache-2.0
"""A PyTorch loop that trains a small GPT-2 in a federation. (+) marks the lines for Nebula.

usage: [torchrun --nproc-per-node 2] train_gpt2.py SEED
With torchrun the model is sharded over the ranks (FSDP2)."""
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

ROOT = pathlib.Path(__file__).resolve().parents[2]  # source folder, or share/ of an installation
sys.path += [str(ROOT / "agent/lib/python"), str(ROOT.parent / "lib/nebula/python")]
import nebula  # (+)

SEQ, BATCH, seed = 64, 8, int(sys.argv[1])
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def batches():
    """Text of this machine, byte by byte. Another seed gives another order."""
    files = sorted(pathlib.Path("/usr/share/common-licenses").iterdir())
    text = b"".join(p.read_bytes() for p in files if not p.is_symlink())
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    g = torch.Generator().manual_seed(seed * ranks + rank)
    while True:
        at = torch.randint(0, len(data) - SEQ, (BATCH,), generator=g)
        yield torch.stack([data[i:i + SEQ] for i in at])


torch.manual_seed(seed)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=SEQ, n_embd=128, n_layer=4,
                                   n_head=4))
if ranks > 1:
    dist.init_process_group("gloo")
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fed = nebula.attach(model, tokens=BATCH * SEQ * ranks)  # (+) $NEBULA_AGENT: the agent's home

for step, x in zip(fed.steps(), batches()):  # (+) instead of range(300)
    loss = model(input_ids=x, labels=x).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    fed.step(loss=loss)  # (+)
    if step % 50 == 0 and rank == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
digest = fed.info()["digest"]  # (+) equal at both sites
if rank == 0:
    print(f"step {fed.step_count} of {fed.total}, digest {digest}", flush=True)
fed.close()  # (+)
if ranks > 1:
    dist.destroy_process_group()
