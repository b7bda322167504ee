# SPDX-License-Identifier: Apache-2.0
"""A loop with Hugging Face's Accelerate in a federation.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fed = nebula.accelerate.attach(accelerator, model, tokens=4096)
    while fed.running:
        ...                       # forward, accelerator.backward, optimizer.step: as before
        fed.step(loss=loss)       # does nothing while gradients accumulate
    fed.close()

One process, DDP and FSDP2 work. DeepSpeed, Megatron-LM and FSDP1 are refused: their parameters are
copies, or flat.
"""
from __future__ import annotations

import math
from typing import Any

from ._lib import INVALID, Error
from .federation import Federation


class AcceleratedFederation(Federation):
    """A Federation whose step() counts optimiser steps only."""

    def __init__(self, accelerator: Any, model: Any, **options: Any):
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind in ("DEEPSPEED", "MEGATRON_LM"):
            raise Error(INVALID, f"{kind} trains copies of the parameters, so merged values would "
                                 f"be lost: use DDP or FSDP2")
        self._accelerator = accelerator
        super().__init__(accelerator.unwrap_model(model, keep_fp32_wrapper=False), **options)

    def step(self, tokens: int | None = None, loss: Any = math.nan, **figures: Any) -> None:
        """As Federation.step, after an optimiser step."""
        if self._accelerator.sync_gradients:
            super().step(tokens, loss, **figures)


def attach(accelerator: Any, model: Any, **options: Any) -> AcceleratedFederation:
    """Attaches a model that accelerator.prepare returned. options: those of nebula.attach."""
    return AcceleratedFederation(accelerator, model, **options)
