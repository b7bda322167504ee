# SPDX-License-Identifier: Apache-2.0
"""Training speed of gpu_check's models in PyTorch: the same shapes (pre-norm RMSNorm, rotary,
SwiGLU, tied output), bf16 autocast over fp32 parameters, torch.compile, fused attention and AdamW,
norm clipping. Tokens have the same distribution as gpu_zipf: rank r has a frequency of 1 / r.

    torch_peer.py [SHAPE...]         124m, 350m
    torch_peer.py attn [HEAD_DIM...] attention alone at the shapes of gpu_check's attn (128, 64), by
                                     each of its backends

Prints one Markdown line a model (the median of 20 steps after a warm-up), or one line per shape and
backend (the fastest of 20).
"""
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
        q, k, v = (
            self.qkv(self.norm1(h))
            .view(B, T, 3, self.heads, d // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
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
        angle = torch.outer(
            torch.arange(SEQ).float(), 10000 ** (-torch.arange(half).float() / half)
        )
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
    optim = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        fused=True,
    )
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
        if i == 0:  # for the report, if a run is cut off
            print(
                f"{name}: compiled, and a first step made, in {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
        if i >= 8:
            times.append(time.perf_counter() - start)
    assert math.isfinite(loss.item())
    median = statistics.median(times)
    print(
        f"| torch {torch.__version__} {name} | {batch} x {SEQ} | {batch * SEQ / median:.0f} | "
        f"{median * 1e3:.1f} |",
        flush=True,
    )


def fastest_ms(run):
    best = math.inf
    for i in range(23):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best


def attention(backend, batch, seq, head_dim):
    heads = 2048 // head_dim
    q, k, v, g = (
        torch.randn((batch, seq, heads, head_dim), device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )
        for _ in range(4)
    )
    for x in (q, k, v):
        x.requires_grad_()
    name = backend.name.lower().removesuffix("_attention")
    what = f"| torch {torch.__version__} {name} | {batch} x {seq}, {heads} heads of {head_dim} |"
    try:
        with nn.attention.sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            forward = fastest_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            backward = fastest_ms(lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True))
    except RuntimeError as e:
        print(f"{what} | | | | {str(e).splitlines()[0][:80]} |", flush=True)
        return
    tflop = 2e-12 * batch * heads * head_dim * seq * seq
    print(
        f"{what} {forward:.3f} | {tflop / forward * 1e3:.0f} | {backward:.3f} | "
        f"{2.5 * tflop / backward * 1e3:.0f} | |",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["attn"]:
        for head_dim in map(int, sys.argv[2:] or ("128", "64")):
            for batch, seq in ((4, 4096), (32, 1024)):
                for backend in (
                    nn.attention.SDPBackend.CUDNN_ATTENTION,
                    nn.attention.SDPBackend.FLASH_ATTENTION,
                ):
                    attention(backend, batch, seq, head_dim)
        sys.exit()
    torch.set_float32_matmul_precision("high")
    for shape in sys.argv[1:] or SHAPES:
        speed(shape, *SHAPES[shape])
