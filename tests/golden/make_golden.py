#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes model_golden.inc: the results of ten training steps of four tiny models.

This is a second definition of the model, its optimiser and its clipping, written from the papers
and from the conventions of Hugging Face's Llama and Qwen2, in float64, with derivatives by the
package `autograd`. It shares no code with the program. Builds and tests do not need it; run it
after a deliberate change of the mathematics:

    pip install numpy autograd && python3 make_golden.py > model_golden.inc
"""
import math

import autograd.numpy as np
import numpy
from autograd import value_and_grad

MASK64 = (1 << 64) - 1
STEPS, BATCH, SEQ = 10, 2, 12
SHAPE = dict(V=29, d=16, L=2, H=4, D=6, f=20, theta=100.0, eps=1e-5)
BETA1, BETA2, EPS, DECAY, LR = 0.9, 0.95, 1e-8, 0.1, 0.02

CASES = [
    dict(
        name="tied",
        G=2,
        tied=True,
        bias=False,
        causal=True,
        train="full",
        schedule="cosine",
        clip="global",
        micros=1,
        ignore=False,
    ),
    dict(
        name="untied, bias, AdaGC",
        G=2,
        tied=False,
        bias=True,
        causal=True,
        train="full",
        schedule="wsd",
        clip="adagc",
        micros=2,
        ignore=True,
    ),
    dict(
        name="LoRA",
        G=4,
        tied=True,
        bias=True,
        causal=True,
        train="lora",
        schedule="constant",
        clip="none",
        micros=1,
        ignore=False,
    ),
    dict(
        name="bidirectional, bitfit",
        G=1,
        tied=False,
        bias=True,
        causal=False,
        train="bitfit",
        schedule="cosine",
        clip="global",
        micros=1,
        ignore=True,
    ),
]
RANK, ALPHA, TARGETS = (
    3,
    6.0,
    ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj"),
)


def mix64(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK64
    return h


def unit(name, k):  # in [-1, 1), exact in float32
    return (mix64((fnv(name) + k) & MASK64) >> 40) * 2.0**-23 - 1


def parameters(case):
    s, kv = SHAPE, case["G"] * SHAPE["D"]
    q = s["H"] * s["D"]
    linears = [
        ("self_attn.q_proj", q, s["d"]),
        ("self_attn.k_proj", kv, s["d"]),
        ("self_attn.v_proj", kv, s["d"]),
        ("self_attn.o_proj", s["d"], q),
        ("mlp.gate_proj", s["f"], s["d"]),
        ("mlp.up_proj", s["f"], s["d"]),
        ("mlp.down_proj", s["d"], s["f"]),
    ]
    shapes = {"model.embed_tokens.weight": (s["V"], s["d"]), "model.norm.weight": (s["d"],)}
    if not case["tied"]:
        shapes["lm_head.weight"] = (s["V"], s["d"])
    for l in range(s["L"]):
        at = f"model.layers.{l}."
        shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (
            s["d"],
        )
        for name, rows, cols in linears:
            shapes[f"{at}{name}.weight"] = (rows, cols)
            if case["bias"] and name[10:] in ("q_proj", "k_proj", "v_proj"):
                shapes[f"{at}{name}.bias"] = (rows,)
            if case["train"] == "lora" and name in TARGETS:
                shapes[f"{at}{name}.lora_A.weight"] = (RANK, cols)
                shapes[f"{at}{name}.lora_B.weight"] = (rows, RANK)
    params = {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        flat = numpy.array([unit(name, k) for k in range(size)]) * 0.5 + (
            1 if name.endswith("norm.weight") else 0
        )
        params[name] = flat.astype(numpy.float32).astype(numpy.float64).reshape(shape)
    return params


def learns(case, name):
    if case["train"] == "full":
        return True
    return (
        ".lora_" in name
        if case["train"] == "lora"
        else name.endswith("norm.weight") or name.endswith(".bias")
    )


def rmsnorm(x, gain):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + SHAPE["eps"]) * gain


def rotate(x):  # (B, T, heads, D): pairs (i, i + D/2)
    D, T = x.shape[-1], x.shape[1]
    angle = numpy.arange(T)[:, None] * SHAPE["theta"] ** (-2.0 * numpy.arange(D // 2) / D)[None, :]
    cos, sin = numpy.cos(angle)[None, :, None, :], numpy.sin(angle)[None, :, None, :]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def linear(p, name, x):
    y = np.dot(x, p[name + ".weight"].T)
    if name + ".lora_A.weight" in p:
        y = y + ALPHA / RANK * np.dot(
            np.dot(x, p[name + ".lora_A.weight"].T), p[name + ".lora_B.weight"].T
        )
    return y + p[name + ".bias"] if name + ".bias" in p else y


def logits(p, case, tokens):
    s, G = SHAPE, case["G"]
    B, T = tokens.shape
    x = p["model.embed_tokens.weight"][tokens]
    hidden = (
        numpy.triu(numpy.full((T, T), -numpy.inf), 1) if case["causal"] else numpy.zeros((T, T))
    )
    for l in range(s["L"]):
        at = f"model.layers.{l}."
        y = rmsnorm(x, p[at + "input_layernorm.weight"])
        q = rotate(np.reshape(linear(p, at + "self_attn.q_proj", y), (B, T, s["H"], s["D"])))
        k = rotate(np.reshape(linear(p, at + "self_attn.k_proj", y), (B, T, G, s["D"])))
        v = np.reshape(linear(p, at + "self_attn.v_proj", y), (B, T, G, s["D"]))
        k, v = np.repeat(k, s["H"] // G, axis=2), np.repeat(v, s["H"] // G, axis=2)
        score = np.einsum("bihe,bjhe->bhij", q, k) / math.sqrt(s["D"]) + hidden
        e = np.exp(score - np.max(score, axis=-1, keepdims=True))
        att = np.einsum("bhij,bjhe->bihe", e / np.sum(e, axis=-1, keepdims=True), v)
        x = x + linear(p, at + "self_attn.o_proj", np.reshape(att, (B, T, s["H"] * s["D"])))
        y = rmsnorm(x, p[at + "post_attention_layernorm.weight"])
        gate, up = linear(p, at + "mlp.gate_proj", y), linear(p, at + "mlp.up_proj", y)
        x = x + linear(p, at + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    x = rmsnorm(x, p["model.norm.weight"])
    return np.dot(x, p["model.embed_tokens.weight" if case["tied"] else "lm_head.weight"].T)


def batch(
    index, case, step
):  # all micro-batches of a step, one below the other; target -1: ignored
    def draw(purpose, micro, i):
        return mix64((((index * 100 + step) * 10 + micro) * 10 + purpose) * 1000 + i + 1)

    n, V = BATCH * SEQ, SHAPE["V"]
    x = [draw(0, m, i) % V for m in range(case["micros"]) for i in range(n)]
    y = [
        (3 * x[m * n + i] + draw(1, m, i) % 3) % V for m in range(case["micros"]) for i in range(n)
    ]
    if case["ignore"]:
        y = [
            -1 if draw(2, m, i) % 5 == 0 else y[m * n + i]
            for m in range(case["micros"])
            for i in range(n)
        ]
    return numpy.array(x).reshape(-1, SEQ), numpy.array(y)


def learning_rate(kind, t, warmup=3, steps=STEPS, low=0.1, decay=0.4):
    if t < warmup:
        return LR * (t + 1) / warmup
    if kind == "cosine":
        return LR * (
            low + (1 - low) * 0.5 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup)))
        )
    if kind == "wsd":
        return LR * min(1, low + (1 - low) * (steps - t) / (decay * steps))
    return LR


def clip(case, g, t, gamma):
    norms = {k: math.sqrt(float(numpy.sum(v * v))) for k, v in g.items()}
    total = math.sqrt(sum(n * n for n in norms.values()))
    scale = min(1, 0.5 / total) if case["clip"] != "none" else 1
    if case["clip"] != "adagc" or t < 3:
        for k in g:
            gamma[k] = min(gamma.get(k, math.inf), norms[k] * scale)
        return {k: v * scale for k, v in g.items()}, total
    out = {}
    for k, v in g.items():
        factor = min(1, 1.04 * gamma[k] / norms[k]) if norms[k] else 1
        gamma[k] = 0.99 * gamma[k] + 0.01 * norms[k] * factor
        out[k] = v * factor
    return out, total


def run(index, case):
    params = parameters(case)
    m, v, gamma, lines = {}, {}, {}, []
    for t in range(STEPS):
        x, y = batch(index, case, t)
        counted = y >= 0

        def loss(learning):
            z = np.reshape(logits({**params, **learning}, case, x), (-1, SHAPE["V"]))[counted]
            top = np.max(z, axis=-1, keepdims=True)
            lse = top[:, 0] + np.log(np.sum(np.exp(z - top), axis=-1))
            return np.mean(lse - z[numpy.arange(len(z)), y[counted]])

        value, g = value_and_grad(loss)({k: w for k, w in params.items() if learns(case, k)})
        g, norm = clip(case, g, t, gamma)
        lr = learning_rate(case["schedule"], t)
        for k in g:
            m[k] = BETA1 * m.get(k, 0) + (1 - BETA1) * g[k]
            v[k] = BETA2 * v.get(k, 0) + (1 - BETA2) * g[k] ** 2
            step = m[k] / (1 - BETA1 ** (t + 1)) / (numpy.sqrt(v[k] / (1 - BETA2 ** (t + 1))) + EPS)
            decay = 0 if k.endswith("norm.weight") or k.endswith(".bias") else DECAY
            params[k] = params[k] - lr * (step + decay * params[k])
        lines.append((float(value), norm))
    check = sum(
        float(w.ravel()[i]) * unit("check " + k, i)
        for k, w in sorted(params.items())
        for i in range(w.size)
    )
    return lines, check


print(
    "// Written by make_golden.py: loss (nats a token) and gradient norm of every step, then a "
    "checksum of the parameters."
)
for i, case in enumerate(CASES):
    lines, check = run(i, case)
    print(f"{{ // {case['name']}\n    {{")
    for value, norm in lines:
        print(f"        {{{value:.9f}, {norm:.9f}}},")
    print(f"    }},\n    {check:.7f},\n}},")
