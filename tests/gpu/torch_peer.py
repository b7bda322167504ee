"""Training speed of the models of gpu_check in PyTorch: the same shapes (pre-norm RMSNorm, rotary, SwiGLU, tied output),
bf16 autocast over fp32 parameters, torch.compile, scaled_dot_product_attention, fused AdamW, norm clipping.
Tokens come from the same law as gpu_check's (gpu_zipf): rank r as often as 1 / r.

    torch_peer.py [SHAPE...]      124m, 350m

Prints one Markdown line a model; the median of 20 steps after warming up."""
import math
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, SEQ = 50304, 1024
SHAPES = {"124m": (12, 768, 12, 2048, 32), "350m": (24, 1024, 16, 2736, 16)}


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)

    def forward(self, h, cos, sin):
        B, T, d = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.o(y.transpose(1, 2).reshape(B, T, d))
        gate, up = self.gate_up(self.norm2(h)).chunk(2, dim=-1)
        return h + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, layers, d, heads, ff):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d)
        self.blocks = nn.ModuleList(Block(d, heads, ff) for _ in range(layers))
        self.norm = nn.RMSNorm(d, eps=1e-5)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        half = d // heads // 2
        angle = torch.outer(torch.arange(SEQ).float(), 10000 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x, y):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        logits = F.linear(self.norm(h), self.embed.weight)
        return F.cross_entropy(logits.float().view(-1, VOCAB), y.view(-1))


def tokens(batch):
    u = torch.rand((batch, SEQ), device="cuda", dtype=torch.float64)
    return torch.clamp(torch.exp(u * math.log(VOCAB + 1)).long() - 1, 0, VOCAB - 1)


def speed(name, layers, d, heads, ff, batch):
    torch.manual_seed(0)
    model = Model(layers, d, heads, ff).cuda()
    step_model = torch.compile(model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optim = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}],
                              lr=1e-3, betas=(0.9, 0.95), fused=True)
    times = []
    begun = time.perf_counter()
    for i in range(28):
        x, y = tokens(batch), tokens(batch)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step_model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if i == 0:  # for a report of one that is cut off
            print(f"{name}: compiled, and a first step made, in {time.perf_counter() - begun:.0f} s", flush=True)
        if i >= 8:
            times.append(time.perf_counter() - start)
    assert math.isfinite(loss.item())
    median = statistics.median(times)
    print(f"| torch {torch.__version__} {name} | {batch} x {SEQ} | {batch * SEQ / median:.0f} | {median * 1e3:.1f} |",
          flush=True)


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    for shape in sys.argv[1:] or SHAPES:
        speed(shape, *SHAPES[shape])
