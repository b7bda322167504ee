# SPDX-License-Identifier: Apache-2.0
"""The state of the exchange as flat arrays. Each rank has parts of them.

torch.distributed.checkpoint saves and loads a FlatTensor like a DTensor. Another number of ranks
may load it.
"""
from __future__ import annotations

import array
import ctypes
import sys
from typing import Any, Iterator, NamedTuple, Sequence

from . import _lib
from ._lib import check, lib


class Flat(NamedTuple):
    """A flat array of `total` floats. parts: (offset, floats) of this rank, in any order."""
    total: int
    parts: list[tuple[int, Any]]


def _flat_tensor() -> Any:
    import torch
    from torch.distributed.checkpoint import metadata, planner

    class FlatTensor(torch.Tensor):
        """A Flat that is a tensor, with the protocol of torch.distributed.checkpoint."""

        @staticmethod
        def __new__(cls, total, parts):
            return torch.Tensor._make_wrapper_subclass(cls, (total,), dtype=torch.float32)

        def __init__(self, total, parts):
            self.total, self.parts = total, parts

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError(f"{func}: a FlatTensor is only for checkpoints")

        def __repr__(self, **_):
            return f"FlatTensor(total={self.total}, parts={[(o, len(p)) for o, p in self.parts]})"

        def __reduce_ex__(self, protocol):
            return _rebuild, (self.total, self.parts)

        def __create_chunk_list__(self):
            return [metadata.ChunkStorageMetadata(torch.Size([o]), torch.Size([len(p)]))
                    for o, p in self.parts]

        def __create_write_items__(self, name, _):
            return [planner.WriteItem(
                metadata.MetadataIndex(name, chunk.offsets), planner.WriteItemType.SHARD,
                tensor_data=planner.TensorWriteData(
                    chunk, metadata.TensorProperties.create_from_tensor(part), self.size()))
                    for chunk, (_, part) in zip(self.__create_chunk_list__(), self.parts)]

        def __get_tensor_shard__(self, index):
            return next(p for o, p in self.parts if index.offset == torch.Size([o]))

    return FlatTensor


_class = None


def _rebuild(total: int, parts: list[tuple[int, Any]]) -> Any:
    global _class
    if "torch" not in sys.modules:
        return Flat(total, parts)
    _class = _class or _flat_tensor()
    return _class(total, parts)


def _floats(count: int) -> Any:
    if "torch" in sys.modules:
        import torch
        return torch.zeros(count, dtype=torch.float32)
    return array.array("f", bytes(4 * count))


def _address(floats: Any) -> int:
    return floats.data_ptr() if hasattr(floats, "data_ptr") else floats.buffer_info()[0]


def _parts(handle: Any, call: Any) -> Iterator[tuple[int, Any, str]]:
    if not hasattr(lib, "nebula_state_count"):
        raise _lib.Error(_lib.STATE, "this libnebula keeps its state in its own checkpoints only")
    count = ctypes.c_int32()
    call(lib.nebula_state_count, handle, ctypes.byref(count))
    for i in range(count.value):
        part = _lib.StatePart()
        check(lib.nebula_state_at(handle, i, ctypes.byref(part)))
        yield i, part, part.name.decode()


def save(handle: Any, call: Any, read: bool = True) -> dict[str, Any]:
    """{name of an array: FlatTensor, or bytes}. read False: zeros in the shapes that a load needs.
    Collective."""
    parts: dict[str, list[tuple[int, Any]]] = {}
    totals: dict[str, int] = {}
    out: dict[str, Any] = {}
    for i, part, name in _parts(handle, call):
        if part.type == _lib.STATE_BYTES:
            data = ctypes.create_string_buffer(part.count)
            if read:
                check(lib.nebula_state_get(handle, i, data))
            out[name] = data.raw
            continue
        floats = _floats(part.count)
        if read:
            check(lib.nebula_state_get(handle, i, _address(floats)))
        parts.setdefault(name, []).append((part.offset, floats))
        totals[name] = part.total
    return out | {name: _rebuild(totals[name], p) for name, p in parts.items()}


def load(handle: Any, call: Any, state: dict[str, Any]) -> None:
    """Gives the library its parts of `state`. Collective.
    Error: INVALID, if this rank's part of an array is not in `state`."""
    for i, part, name in _parts(handle, call):
        if name not in state:
            raise _lib.Error(_lib.INVALID, f"the state has no {name}")
        if part.type == _lib.STATE_BYTES:
            data = bytes(state[name])
            check(lib.nebula_state_set(handle, i, data, len(data)))
            continue
        floats = gather(name, part.offset, part.count, state[name].parts)
        check(lib.nebula_state_set(handle, i, _address(floats), part.count))


def gather(name: str, offset: int, count: int, parts: Sequence[tuple[int, Any]]) -> Any:
    """Floats [offset, offset + count) from parts that were cut differently."""
    for start, floats in parts:
        if start == offset and len(floats) == count:
            return floats
    out, missing = _floats(count), count
    for start, floats in parts:
        a, b = max(start, offset), min(start + len(floats), offset + count)
        if a < b:
            out[a - offset:b - offset] = floats[a - start:b - start]
            missing -= b - a
    if missing:
        raise _lib.Error(_lib.INVALID, f"the state lacks {missing} of the {count} values of {name} "
                                       f"from {offset}: load it with torch.distributed.checkpoint")
    return out
