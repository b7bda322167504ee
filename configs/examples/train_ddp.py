# SPDX-License-Identifier: Apache-2.0
"""The loop of train_plain.py with DistributedDataParallel.

All ranks make the same calls. (+) marks the lines for Nebula.

usage: torchrun --nproc-per-node 2 train_ddp.py SEED"""
import sys

import torch
import torch.distributed as dist
from model import BATCH, SEQ, batches, loss_of, make_model
from torch.nn.parallel import DistributedDataParallel

import nebula  # (+)

dist.init_process_group("gloo")
rank, ranks, seed = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
torch.manual_seed(seed)
model = DistributedDataParallel(make_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
data = batches(seed * ranks + rank)
fed = nebula.attach(model.named_parameters())  # (+) after the process group is there

for step in fed.steps():  # (+)
    x, y = next(data)
    loss = loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    fed.count(x, y)  # (+)
    fed.step(tokens=BATCH * SEQ * ranks, loss=loss.item())  # (+) tokens of all ranks
digest = fed.info()["digest"]  # (+) all ranks ask
if rank == 0:
    print(f"step {fed.step_count} of {fed.total}, digest {digest}", flush=True)
fed.close()  # (+)
dist.destroy_process_group()
