# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer in a federation.

    from nebula.hf import NebulaCallback
    trainer = Trainer(model, args, train_dataset=data, callbacks=[NebulaCallback(tokens=4096)])
    trainer.train()     # ends with the job

One process, DDP, and FSDP2 (fsdp_version 2) work, and models of peft. DeepSpeed and FSDP1 are
refused: their parameters are copies, or flat. args.max_steps must allow the steps of the job.
"""
from __future__ import annotations

import logging
import math
from typing import Any

from transformers import TrainerCallback

from ._lib import INVALID, Error
from .federation import Federation

log = logging.getLogger(__name__)


class NebulaCallback(TrainerCallback):
    """Attaches when training begins, exchanges after optimiser steps, and stops with the job.

    options: those of nebula.attach, such as tokens (of one optimiser step of all ranks). Without
    tokens: the number that Trainer counts (args.include_num_input_tokens_seen), else the job's.
    fed: the Federation, from on_train_begin on.
    """

    def __init__(self, **options: Any):
        self.fed: Federation | None = None
        self._options = options
        self._loss = self._grad_norm = self._eval_loss = math.nan
        self._seen = 0

    def on_train_begin(self, args, state, control, model=None, **_):
        if getattr(args, "deepspeed", None):
            raise Error(INVALID, "DeepSpeed trains copies of the parameters, so merged values "
                                 "would be lost: use DDP or FSDP2")
        self.fed = Federation(model, **self._options)
        self._seen = state.num_input_tokens_seen
        left = self.fed.total - self.fed.step_count
        if state.max_steps - state.global_step < left:
            log.warning("Trainer will make %d steps, but the job has %d left: set max_steps",
                        state.max_steps - state.global_step, left)
        self._stop(control)

    def _stop(self, control) -> None:
        if not self.fed.running:
            control.should_training_stop = True

    def on_step_end(self, args, state, control, lr_scheduler=None, **_):
        tokens = None
        if "tokens" not in self._options and state.num_input_tokens_seen > self._seen:
            tokens = int(state.num_input_tokens_seen - self._seen)
        self._seen = state.num_input_tokens_seen
        rate = lr_scheduler.get_last_lr()[0] if lr_scheduler else math.nan
        self.fed.step(tokens, self._loss, rate, self._grad_norm, self._eval_loss)
        # Figures come with on_log and on_evaluate; each is reported once.
        self._loss = self._grad_norm = self._eval_loss = math.nan
        self._stop(control)

    def on_log(self, args, state, control, logs=None, **_):
        self._loss = float((logs or {}).get("loss", self._loss))
        self._grad_norm = float((logs or {}).get("grad_norm", self._grad_norm))

    def on_evaluate(self, args, state, control, metrics=None, **_):
        self._eval_loss = float((metrics or {}).get("eval_loss", math.nan))

    def on_train_end(self, args, state, control, **_):
        self.fed.close(self._eval_loss)
