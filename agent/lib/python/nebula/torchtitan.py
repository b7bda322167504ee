# SPDX-License-Identifier: Apache-2.0
"""torchtitan in a federation.

    trainer = config.build()
    nebula.torchtitan.federate(trainer)
    trainer.train()     # ends with the job

Its FSDP2, HSDP, tensor and expert parallelism work. Pipeline parallelism is refused, because its
ranks have different tensors. Your own loop with a torchtitan model needs only nebula.attach(model).
"""
from __future__ import annotations

from typing import Any

from ._lib import INVALID, Error
from .federation import Federation


def tokens_of(trainer: Any) -> int:
    """Tokens of one optimiser step of all ranks."""
    training = trainer.config.training
    batch = training.global_batch_size
    if batch < 0:
        dims = trainer.parallel_dims
        batch = training.local_batch_size * dims.dp_replicate * dims.dp_shard
    return batch * training.seq_len


class Titan:
    """What federate() returns. fed: the Federation, once trainer.train() has loaded its own
    checkpoint."""

    def __init__(self, trainer: Any, options: dict[str, Any]):
        if len(trainer.model_parts) > 1 or trainer.parallel_dims.pp_enabled:
            raise Error(INVALID, "with pipeline parallelism the ranks have different tensors")
        self.fed: Federation | None = None
        self._trainer, self._options = trainer, options
        self._train_step = trainer.train_step
        trainer.should_continue_training, trainer.train_step = self._continue, self._step
        self._close, trainer.close = trainer.close, self._end

    def _continue(self) -> bool:
        if self.fed is None:
            self._options.setdefault("tokens", tokens_of(self._trainer))
            self.fed = Federation(self._trainer.model_parts[0], **self._options)
        if not self.fed.running:
            self.fed.close()
        return self.fed.running

    def _step(self, data: Any) -> None:
        self._train_step(data)
        rates = self._trainer.lr_schedulers.schedulers[0].get_last_lr()
        self.fed.step(lr=rates[0])

    def _end(self) -> None:
        if self.fed is not None:
            self.fed.close()
        self._close()


def federate(trainer: Any, **options: Any) -> Titan:
    """Lets a torchtitan Trainer make the steps of a job, instead of its own number of steps.
    options: those of nebula.attach."""
    return Titan(trainer, options)
