"""One of two loops for the case "cost" of attached.py. Paris alternates windows of one exchange interval: with fed.step after
every step, and the same steps alone. Berlin answers the rounds and computes nothing, so that both windows find the machine
equally loaded. Measured is processor time of this process, the library's threads included: a machine that others use as well
would add far more noise to seconds than federating takes. Waiting for the other cluster is no cost of the library."""
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


def train(federated):
    start = time.process_time()
    for _ in range(WINDOW):
        x, y = next(data)
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if federated:
            fed.step(BATCH * SEQ, loss.item())
        else:
            loss.item()
    return WINDOW * BATCH * SEQ / (time.process_time() - start)


if not paris:
    for step in fed.steps():
        fed.step(BATCH * SEQ, 1.0)
else:
    for k in range(fed.total // WINDOW):
        if k % 2:
            with_, alone = train(True), train(False)
        else:
            alone, with_ = train(False), train(True)
        print("pair", alone, with_, flush=True)
    print("info", fed.info())
fed.close()
