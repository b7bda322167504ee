# SPDX-License-Identifier: Apache-2.0
"""The model of `nebula bench train` in PyTorch, written for speed: fused attention and AdamW.

Reads numbers of steps from stdin, one a line; answers with two JSON lists: the seconds of each
step, and its processor time over all threads. Tokens are random: they do not affect the speed.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.gate_up, self.down = nn.Linear(d, 2 * d_ff, bias=False), nn.Linear(d_ff, d, bias=False)

    def forward(self, x, cos, sin):
        B, T, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Model(nn.Module):
    def __init__(self, vocab, layers, d, seq):
        super().__init__()
        head_dim = 64
        d_ff = (d * 8 // 3 + 15) // 16 * 16
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, d // head_dim, d_ff) for _ in range(layers))
        self.norm = nn.RMSNorm(d, eps=1e-5)
        angles = torch.outer(
            torch.arange(seq), 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed.weight)  # tied
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    for name in ("layers", "width", "seq", "batch", "threads"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--compile", action="store_true")
    p.add_argument(
        "--bf16",
        action="store_true",
        help="autocast: parameters, optimizer and norms stay in fp32, as in precision: bf16",
    )
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    vocab = 4096
    model = Model(vocab, a.layers, a.width, a.seq)
    optim = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    loss_of = torch.compile(model) if a.compile else model

    def step():
        tokens = torch.randint(vocab, (a.batch, a.seq + 1))
        start, cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.bf16):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        return time.perf_counter() - start, time.process_time() - cpu, loss

    step()
    step()
    print(json.dumps({"params": sum(x.numel() for x in model.parameters())}), flush=True)
    for line in sys.stdin:
        times, cpus = [], []
        for _ in range(int(line)):
            seconds, cpu, loss = step()
            times.append(seconds)
            cpus.append(cpu)
        assert torch.isfinite(loss), "the loss is not finite"
        print(json.dumps([times, cpus]), flush=True)


main()
