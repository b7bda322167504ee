# SPDX-License-Identifier: Apache-2.0
"""One loop of the cases of attached.py, on each of its ranks.

usage: [torchrun …] loops.py KIND MODEL SEED
KIND: fixed:MESH (a mesh of models.py; steps that are a function of name, index and step), or the
library that trains: loop ddp fsdp hf accelerate lightning peft titan numpy jax; with several ranks
NAME_fsdp shards by FSDP2 inside the library hf, accelerate or lightning
"""
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "agent/lib/python"))
import models
import nebula

kind, name, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
SHARDED = kind.endswith("_fsdp") and ranks > 1
kind = kind.removesuffix("_fsdp")
TOKENS = models.BATCH * models.SEQ * ranks
STEPS = 10000  # of the libraries' own loops; the job ends them earlier
torch.set_num_threads(1)
torch.manual_seed(seed)  # the clusters start from different parameters


def say(fed, digest, loss=float("nan")):
    if rank == 0:
        print(f"step {fed.step_count} of {fed.total}, digest {digest}, loss {loss:.3f}", flush=True)


def batches():
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        yield models.batch(name, generator)


class Watch:
    """The digest and the last loss of a loop that closes the federation itself."""

    def __init__(self):
        self.digest, self.loss = "", float("nan")
        close = nebula.Federation.close

        def closing(fed, *rest):
            if not fed._closed:
                self.digest = fed.info()["digest"]
            close(fed, *rest)

        nebula.Federation.close = closing


def fixed(mesh):
    model = models.shard(models.make(name), mesh)
    # The weights of the clusters must not depend on the mesh.
    with nebula.attach(model, tokens=100 * seed) as fed:
        for step in fed.steps():
            models.fixed_step(model, seed, step)
            fed.step()
        say(fed, fed.info()["digest"])


def loop():
    model = models.make(name)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp" and ranks > 1:
        models.shard(model, "rows")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = batches()
    with nebula.attach(model, tokens=TOKENS) as fed:
        for _ in fed.steps():
            loss = model(**next(data)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            fed.step(loss=loss)
        say(fed, fed.info()["digest"], loss)


def state():
    """The loop saves the federation with torch.distributed.checkpoint in mid-run, and continues
    from what it saved."""
    from torch.distributed.checkpoint import load, save
    model = models.shard(models.make(name), "rows" if ranks > 1 else "one")
    with nebula.attach(model, tokens=100 * seed) as fed, tempfile.TemporaryDirectory() as own:
        box = [own]
        if ranks > 1:
            dist.broadcast_object_list(box)
        for step in fed.steps():
            if step == 25:
                save({"fed": fed.state_dict()}, checkpoint_id=box[0] + "/dcp")
                with torch.no_grad():
                    for p in model.parameters():
                        p.zero_()
                load({"fed": fed}, checkpoint_id=box[0] + "/dcp")
                if fed.step_count != 25:
                    sys.exit(f"continues from step {fed.step_count}")
            models.fixed_step(model, seed, step)
            fed.step()
        say(fed, fed.info()["digest"])


def hf(wrap=lambda model: model):
    from nebula.hf import NebulaCallback
    from transformers import Trainer, TrainingArguments

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return STEPS * models.BATCH * ranks

        def __getitem__(self, i):
            one = models.batch(name, torch.Generator().manual_seed(1000003 * seed + i))
            return {k: v[0] for k, v in one.items()}

    watch, callback = Watch(), NebulaCallback(tokens=TOKENS)
    fsdp = {"fsdp": "full_shard", "fsdp_config": {"version": 2}} if SHARDED else {}
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, per_device_train_batch_size=models.BATCH,
                                 learning_rate=3e-3, lr_scheduler_type="constant", save_steps=0,
                                 max_steps=STEPS, logging_steps=1, report_to=[], use_cpu=True,
                                 disable_tqdm=True, save_strategy="no", **fsdp)
        trainer = Trainer(wrap(models.make(name)), args, train_dataset=Data(),
                          callbacks=[callback])
        trainer.train()
    losses = [x["loss"] for x in trainer.state.log_history if "loss" in x]
    say(callback.fed, watch.digest, losses[-1])


def peft():
    from peft import LoraConfig, get_peft_model

    def wrap(model):
        torch.manual_seed(int(os.environ.get("BASE_SEED", 7)))  # the base is frozen
        model = models.make(name)
        target = {"gpt2": ["c_attn"]}.get(name, ["q_proj", "v_proj"])
        return get_peft_model(model, LoraConfig(r=4, target_modules=target, task_type="CAUSAL_LM"))

    hf(wrap)


def accelerate():
    import nebula.accelerate
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = {}
    if SHARDED:
        plugin["fsdp_plugin"] = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **plugin)
    model = models.make(name)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    data = batches()
    fed = nebula.accelerate.attach(accelerator, model, tokens=2 * TOKENS)
    while fed.running:
        with accelerator.accumulate(model):
            loss = model(**next(data)).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            fed.step(loss=loss)
    say(fed, fed.info()["digest"], loss)
    fed.close()


def lightning():
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy
    from nebula.lightning import NebulaCallback
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = models.make(name)

        def configure_model(self):
            if SHARDED and not isinstance(next(self.parameters()), DTensor):
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    class Data(torch.utils.data.IterableDataset):
        def __iter__(self):
            return batches()

    watch, callback = Watch(), NebulaCallback(tokens=TOKENS)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, max_steps=STEPS,
        strategy=ModelParallelStrategy(ranks, 1) if SHARDED else "ddp" if ranks > 1 else "auto",
        callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=None))
    say(callback.fed, watch.digest)


def titan():
    """torchtitan's model and its function that shards it."""
    import nebula.torchtitan
    import titan_model
    watch, trainer = Watch(), titan_model.Trainer(ranks, seed)
    found = nebula.torchtitan.federate(trainer)
    trainer.train()
    trainer.close()
    say(found.fed, watch.digest)


def arrays():
    """A linear model in NumPy or JAX; JAX's own arrays are copied in and out."""
    import numpy
    rng = numpy.random.default_rng(seed)
    host = {"w": rng.normal(size=(8, 3)).astype("f"), "b": numpy.zeros(3, "f")}
    truth = numpy.random.default_rng(0).normal(size=(8, 3)).astype("f")
    if kind == "jax":
        import jax
        gradient = jax.jit(jax.value_and_grad(
            lambda p, x, y: ((x @ p["w"] + p["b"] - y) ** 2).mean()))
    else:
        def gradient(p, x, y):
            e = x @ p["w"] + p["b"] - y
            return (e ** 2).mean(), {"w": 2 * x.T @ e / e.size, "b": 2 * e.sum(0) / e.size}
    with nebula.attach(host, tokens=64) as fed:
        for _ in fed.steps():
            x = rng.normal(size=(64, 8)).astype("f")
            loss, g = gradient(host, x, x @ truth)
            for k in host:
                host[k] -= 0.3 * numpy.asarray(g[k])
            fed.step(loss=float(loss))
        say(fed, fed.info()["digest"], float(loss))


if ranks > 1 and kind not in ("hf", "peft", "accelerate", "lightning"):
    dist.init_process_group("gloo")
if kind.startswith("fixed:"):
    fixed(kind.removeprefix("fixed:"))
else:
    {"ddp": loop, "fsdp": loop, "numpy": arrays, "jax": arrays}.get(kind, globals().get(kind))()
if dist.is_initialized():
    dist.destroy_process_group()
