# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer in a federation.

    from nebula.lightning import NebulaCallback
    trainer = lightning.Trainer(max_steps=1000, callbacks=[NebulaCallback(tokens=4096)])
    trainer.fit(module, data)     # ends with the job

One process, DDP and ModelParallelStrategy (FSDP2, tensor parallelism) work. DeepSpeed and FSDP1
(FSDPStrategy) are refused: their parameters are copies, or flat.
"""
from __future__ import annotations

import math
from typing import Any, Iterable, Iterator

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from ._lib import INVALID, Error
from .federation import Federation


class _Plain:
    """A module whose tensors lose `prefix` in their names, if all parameters have it. So they have
    the names that the model has outside of Lightning."""

    def __init__(self, module: Any, prefix: str):
        self._module = module
        cut = all(name.startswith(prefix) for name, _ in module.named_parameters())
        self._prefix = prefix if cut else ""

    def _cut(self, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        return ((name.removeprefix(self._prefix), t) for name, t in named)

    def named_parameters(self, **options: Any) -> Iterator[tuple[str, Any]]:
        return self._cut(self._module.named_parameters(**options))

    def named_buffers(self, **options: Any) -> Iterator[tuple[str, Any]]:
        return self._cut(self._module.named_buffers(**options))


class NebulaCallback(Callback):
    """Attaches when training begins, exchanges after optimiser steps, and stops with the job.

    prefix: the part that names of tensors lose. options: those of nebula.attach, such as tokens (of
    one optimiser step of all ranks) and buffers.
    fed: the Federation, from on_train_start on.
    """

    def __init__(self, prefix: str = "model.", **options: Any):
        self.fed: Federation | None = None
        self._prefix, self._options = prefix, options
        self._step, self._eval_loss = 0, math.nan

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if "DeepSpeed" in type(trainer.strategy).__name__:
            raise Error(INVALID, "DeepSpeed trains copies of the parameters, so merged values "
                                 "would be lost: use DDP or ModelParallelStrategy")
        self.fed = Federation(_Plain(pl_module, self._prefix), **self._options)
        self._step = trainer.global_step
        trainer.should_stop = not self.fed.running

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        if trainer.global_step == self._step:  # gradients accumulate
            return
        self._step = trainer.global_step
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        rate = next((g["lr"] for o in trainer.optimizers for g in o.param_groups), math.nan)
        self.fed.step(loss=math.nan if loss is None else loss, lr=rate,
                      eval_loss=self._eval_loss)
        self._eval_loss = math.nan
        if not self.fed.running:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._eval_loss = float(trainer.callback_metrics.get("val_loss", math.nan))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.fed.close(self._eval_loss)
