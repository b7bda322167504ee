# SPDX-License-Identifier: Apache-2.0
"""One of two loops for the case "cost" of attached.py. Paris alternates short segments of one
exchange interval. Segments B call fed.step after every step; segments A make the same steps alone.
The order is ABBA and BAAB in turn, so a steady change of the machine's speed affects both alike.
Berlin answers the rounds and computes nothing, so that the load is the same.

Prints for each group of four segments:
  four   tokens per second of A and B, by the clock and by processor time; the ratio of A's two
         segments (the noise of the machine)
  spent  processor time of fed.step and of the library's threads, and of the process, in B. (PyTorch
         computes in the main thread only.) Waiting for the other cluster costs no processor time.
"""
import os
import pathlib
import sys
import time

import nebula
import torch

BATCH, SEQ, VOCAB = 2, 128, 2048


def make_model():
    import transformers
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=192, n_layer=4, n_head=4))


def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
        yield x, x


def loss_of(model, x, y):
    return model(input_ids=x, labels=y).loss


if os.environ.get("COST_MODEL") == "small":  # configs/examples: steps of 12 ms
    from model import BATCH, SEQ, batches, loss_of, make_model
paris = sys.argv[1] == "paris"
torch.set_num_threads(1)
torch.manual_seed(1)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches(1)
fed = nebula.attach(model, threads=1)
WINDOW = int(
    os.environ["COST_INTERVAL"]
)  # steps: sync.interval of the case, so that every federated segment holds one exchange


def other_threads():
    """Processor time in seconds of all threads but this one."""
    total, me = 0, str(os.getpid())
    for task in pathlib.Path("/proc/self/task").iterdir():
        if task.name != me:
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass  # it has just ended
    return total / 1e9


def train(federated):
    "Seconds of one segment: (by the clock, of processor time, inside fed.step, of other threads)"
    cpu, clock, others, inside = time.process_time(), time.monotonic(), other_threads(), 0.0
    for _ in range(WINDOW):
        x, y = next(data)
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if federated:
            begin = time.thread_time()
            fed.step(BATCH * SEQ, value)
            inside += time.thread_time() - begin
    others = other_threads() - others
    return time.monotonic() - clock, time.process_time() - cpu, inside, others


if not paris:
    for step in fed.steps():
        fed.step(BATCH * SEQ, 1.0)
else:
    tokens = WINDOW * BATCH * SEQ
    for k in range(fed.total // (2 * WINDOW)):
        a, b = [], []
        for federated in (True, False, False, True) if k % 2 else (False, True, True, False):
            (b if federated else a).append(train(federated))
        rate = [2 * tokens / (x[0][i] + x[1][i]) for i in (0, 1) for x in (a, b)]
        print("four", *rate, a[0][0] / a[1][0], flush=True)
        print("spent", *(b[0][i] + b[1][i] for i in (2, 3, 1)), flush=True)
    for step in fed.steps():  # the rest of the job, if its steps are not a multiple
        fed.step(BATCH * SEQ, 1.0)
    print("info", fed.info())
fed.close()
