# SPDX-License-Identifier: Apache-2.0
"""The ranks of the loop: messages over a gloo group beside the loop's own process group."""
from __future__ import annotations

import ctypes
import datetime
import sys
from typing import Any

from ._lib import IO, Error

_MESSAGE_MAX = 1 << 28  # bytes


def _group_of(process_group: Any) -> tuple[Any, Any]:
    """(torch.distributed, the loop's group), or (None, None) if there is one process."""
    if process_group is None and "torch" not in sys.modules:
        return None, None
    import torch.distributed as dist
    if not dist.is_available() or not dist.is_initialized():
        return None, None
    group = process_group if process_group is not None else dist.group.WORLD
    return (dist, group) if dist.get_world_size(group) > 1 else (None, None)


class Ranks:
    """This process's rank and the number of ranks. libnebula uses send and recv; agree shares the
    errors of this package."""

    def __init__(self, process_group: Any = None):
        self.rank, self.size = 0, 1
        self._messages: Any = None
        self._dist, loop = _group_of(process_group)
        if self._dist is None:
            return
        self.rank, self.size = self._dist.get_rank(loop), self._dist.get_world_size(loop)
        self._global = [self._dist.get_global_rank(loop, r) for r in range(self.size)]
        # A message may wait for other clusters; the loop's own group would time out after minutes.
        self._messages = self._dist.new_group(
            self._global, backend="gloo", timeout=datetime.timedelta(days=30),
            use_local_synchronization=self.size < self._dist.get_world_size())

    def _each(self, address: int, size: int):
        import torch
        for at in range(0, size, _MESSAGE_MAX):
            n = min(_MESSAGE_MAX, size - at)
            memory = (ctypes.c_char * n).from_address(address + at)
            yield torch.frombuffer(memory, dtype=torch.uint8)

    def send(self, address: int, size: int, to: int) -> None:
        for part in self._each(address, size):
            self._dist.send(part, dst=self._global[to], group=self._messages)

    def recv(self, address: int, size: int, source: int) -> None:
        for part in self._each(address, size):
            self._dist.recv(part, src=self._global[source], group=self._messages)

    def share(self, value: Any) -> list[Any]:
        """The value of each rank, on every rank. Collective."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self._messages)
        return values

    def agree(self, error: BaseException | None) -> None:
        """Raises the error of this rank, or else that of the first rank with an error. Collective.
        """
        said = None if error is None else (getattr(error, "status", IO),
                                           str(error) or type(error).__name__)
        others = self.share(said)
        if error is not None:
            raise error
        for rank, other in enumerate(others):
            if other is not None:
                raise Error(other[0], f"rank {rank}: {other[1]}")

    def close(self) -> None:
        """Destroys the group of messages, and so its threads. Messages of other ranks to this one
        fail from now on.

        At the interpreter's exit such a thread could still hold a tensor of its last message, and
        would wait for a lock that is never released.
        """
        if self._dist is not None and self._dist.is_initialized():  # else it is destroyed already
            self._dist.destroy_process_group(self._messages)
        self._dist = self._messages = None  # the last reference closes the connections
