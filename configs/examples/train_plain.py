# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch loop in a federation. (+) marks the lines for Nebula.

usage: train_plain.py SEED"""
import sys

import torch
from model import BATCH, SEQ, batches, loss_of, make_model

import nebula  # (+)

seed = int(sys.argv[1])
torch.manual_seed(seed)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
data = batches(seed)
fed = nebula.attach(model.named_parameters())  # (+) $NEBULA_AGENT: the agent's home

for step in fed.steps():  # (+) instead of range(300)
    x, y = next(data)
    loss = loss_of(model, x, y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    fed.count(x, y)  # (+) optional: weights embedding rows by how often they were seen
    fed.step(tokens=BATCH * SEQ, loss=loss.item(),  # (+)
             lr=optimizer.param_groups[0]["lr"], grad_norm=norm)
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
print(f"step {fed.step_count} of {fed.total}, digest {fed.info()['digest']}", flush=True)
with torch.no_grad():
    fed.close(sum(loss_of(model, *next(data)).item() for _ in range(8)) / 8)  # (+)
