"""One of two loops for the case "cost" of attached.py. Paris alternates windows of one exchange interval: with fed.step after every step,
and the same steps alone. Berlin answers the rounds and computes nothing, so that both windows find the machine equally loaded.

Two measurements, since others may use the machine:
  spent  processor time inside fed.step and of the library's own threads, beside all of the process: what federating takes, whatever
         the load. (PyTorch computes in the main thread alone here.) Waiting for the other cluster is no cost of the library.
  pair   tokens a second with and without, of processor time and of the clock: they would show what fed.step costs the steps
         around it (caches), and carry the machine's noise."""
import os
import pathlib
import sys
import time

import nebula
import torch
from model import BATCH, SEQ, batches, loss_of, make_model

paris = sys.argv[1] == "paris"
torch.set_num_threads(1)
torch.manual_seed(1)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches(1)
fed = nebula.attach(model.named_parameters(), threads=1)
WINDOW = 50  # steps: sync.interval of the case, so that every federated window holds one exchange


def other_threads():
    """Seconds that all threads but this one have run."""
    total, me = 0, str(os.getpid())
    for task in pathlib.Path("/proc/self/task").iterdir():
        if task.name != me:
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass  # it has just ended
    return total / 1e9


def train(federated):
    """(tokens/s of processor time, of the clock, seconds inside fed.step, of other threads, of the process)"""
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
    cpu, clock, tokens = time.process_time() - cpu, time.monotonic() - clock, WINDOW * BATCH * SEQ
    return tokens / cpu, tokens / clock, inside, others, cpu


if not paris:
    for step in fed.steps():
        fed.step(BATCH * SEQ, 1.0)
else:
    for k in range(fed.total // WINDOW):
        if k % 2:
            with_, alone = train(True), train(False)
        else:
            alone, with_ = train(False), train(True)
        print("pair", *alone[:2], *with_[:2], flush=True)
        print("spent", *with_[2:], flush=True)
    print("info", fed.info())
fed.close()
