# SPDX-License-Identifier: Apache-2.0
"""Figures of a step that a CUDA device has not computed yet: the host must not wait for them."""
from __future__ import annotations

import sys
from typing import Any, Mapping

from . import _lib, _tensors


def number(x: Any) -> float:
    """The value of a number or of a tensor of one element. A tensor on a device makes the host
    wait."""
    return float(x.detach() if hasattr(x, "detach") else x)


def is_late(x: Any) -> bool:
    """True for a tensor of one element on a CUDA device."""
    if not getattr(x, "is_cuda", False) or hasattr(x, "to_local"):
        return False
    return _tensors.is_torch(x)


class Later:
    """The figures of one step. Those on the device are copied to pinned memory of the host, on the
    stream on which the loop works, so the loop may change the tensors afterwards."""

    def __init__(self, figures: Mapping[str, Any]):
        torch = sys.modules["torch"]
        self._known = {k: number(v) for k, v in figures.items()
                       if k != "tokens" and not is_late(v)}
        self._names = [k for k, v in figures.items() if is_late(v)]
        self._values = torch.empty(len(self._names), dtype=torch.float64, pin_memory=True)
        for i, k in enumerate(self._names):
            self._values[i:i + 1].copy_(figures[k].detach().reshape(1), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(figures[self._names[0]].device))

    @property
    def flags(self) -> int:
        """What the library has to ask for later."""
        return _lib.LATER | (_lib.LATER_TOKENS if "tokens" in self._names else 0)

    def ready(self, wait: bool) -> bool:
        if wait:
            self._event.synchronize()
        return wait or self._event.query()

    def tell(self, out: Any) -> None:
        """Sets the fields of a struct nebula_step_stats. Only after ready()."""
        values = {**self._known, **dict(zip(self._names, self._values.tolist()))}
        for k, v in values.items():
            setattr(out, k, int(v) if k == "tokens" else v)
