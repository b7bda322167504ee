# SPDX-License-Identifier: Apache-2.0
"""A PyTorch loop that attaches to an agent, for tests/gpu/run --part attach.

    attach_peer.py bits AGENT cuda|cpu    steps that give the same bits on every device; fp32, bf16
                                          and fp16 tensors with gaps; prints the digest
    attach_peer.py train AGENT SHAPE      the model of torch_peer.py; prints what the exchange costs
    attach_peer.py idle AGENT SHAPE MS    its tensors on the processor, and steps of MS milliseconds

train makes steps without the exchange, then with it, then without it again. The cost is the time of
the steps with the exchange over that of the others, less one. No step waits for the device, as in a
real loop; only the ends of the three parts do. The loss of each step stays on the device.
"""
import itertools
import sys
import time

import torch

import nebula

STEPS_ALONE = 100  # before, and after


def bits(agent, device):
    def make(dtype, *shape, gap=1):
        whole = torch.full([*shape[:-1], shape[-1] * gap], 0.25, dtype=dtype, device=device)
        return whole[..., ::gap]

    tensors = {"w": make(torch.float32, 1500, 1200), "half": make(torch.bfloat16, 300, 70),
               "small": make(torch.float16, 41, 3, 5, gap=3), "bias": make(torch.float32, 37)}
    with nebula.attach(tensors, agent=agent, job="attach", tokens=256) as fed:
        target = 1.0 if fed.info()["cluster"] == 0 else -1.0
        for _ in fed.steps():
            for t in tensors.values():  # each op rounds once, on every device
                t.mul_(0.98)
                t.add_(0.02 * target)
            fed.step(loss=1.0)
        print(f"digest {fed.info()['digest']}", flush=True)
        fed.close(1.0)


def model_of(shape):
    import torch_peer

    torch.manual_seed(0)
    layers, d, heads, ff, batch = torch_peer.SHAPES[shape]
    return torch_peer, torch_peer.Model(layers, d, heads, ff), batch


def train(agent, shape):
    peer, model, batch = model_of(shape)
    model = model.cuda()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = peer.tokens(batch), peer.tokens(batch)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optim.step()
        optim.zero_grad(set_to_none=True)
        return loss

    def seconds(steps, after=lambda loss: None):
        torch.cuda.synchronize()
        begun, n = time.perf_counter(), 0
        for _ in steps:
            after(step())
            n += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / n

    first = [p.detach().clone() for p in model.parameters()]
    seconds(range(20))
    before = seconds(range(STEPS_ALONE))
    with torch.no_grad():  # the job has `init: equal`
        for p, was in zip(model.parameters(), first):
            p.copy_(was)
    del first
    with nebula.attach(model, agent=agent, job="attach", tokens=batch * peer.SEQ) as fed:
        total, steps = fed.info()["steps"], fed.steps()
        # The last steps wait for the last exchange.
        together = seconds(itertools.islice(steps, total - 10), lambda loss: fed.step(loss=loss))
        info = fed.info()
        for _ in steps:
            fed.step(loss=step())
        fed.close(1.0)
    alone = (before + seconds(range(STEPS_ALONE))) / 2
    print(f"| {shape} | {total - 10} | {info['rounds']} | {alone * 1e3:.2f} | "
          f"{together * 1e3:.2f} | {(together / alone - 1) * 100:.2f} % |", flush=True)


def idle(agent, shape, ms):
    model = model_of(shape)[1]
    with nebula.attach(model, agent=agent, job="attach", tokens=256) as fed:
        for _ in fed.steps():
            time.sleep(float(ms) / 1e3)
            fed.step()
        fed.close(1.0)


if __name__ == "__main__":
    {"bits": bits, "train": train, "idle": idle}[sys.argv[1]](*sys.argv[2:])
