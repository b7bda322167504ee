# SPDX-License-Identifier: Apache-2.0
"""The loop of train_plain.py with FSDP (fully_shard: DTensors, sharded by rows).

Each rank exchanges the rows that it holds. (+) marks the lines for Nebula.

usage: torchrun --nproc-per-node 2 train_fsdp.py SEED"""
import sys

import torch
import torch.distributed as dist
from model import BATCH, SEQ, batches, loss_of, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import nebula  # (+)

dist.init_process_group("gloo")
rank, ranks, seed = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
torch.manual_seed(seed)
model = make_model()
mesh = init_device_mesh("cpu", (ranks,))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
data = batches(seed * ranks + rank)
fed = nebula.attach(model.named_parameters())  # (+) after fully_shard

for step in fed.steps():  # (+)
    x, y = next(data)
    loss = loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    fed.count(x, y)  # (+)
    fed.step(tokens=BATCH * SEQ * ranks, loss=loss.item())  # (+)
digest = fed.info()["digest"]  # (+) all ranks ask
if rank == 0:
    print(f"step {fed.step_count} of {fed.total}, digest {digest}", flush=True)
fed.close()  # (+)
dist.destroy_process_group()
