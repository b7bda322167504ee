# SPDX-License-Identifier: Apache-2.0
"""Tensors of all kinds as pieces in the memory of this rank: PyTorch (also DTensor), NumPy, other
buffers, DLPack, and parts that the caller names."""
from __future__ import annotations

import ctypes
import fnmatch
import math
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from . import placements
from ._lib import BF16, CUDA, DIMS_MAX, F16, F32, HOST, INVALID, Error

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_KINDS = {"float32": F32, "bfloat16": BF16, "float16": F16}
_BYTES = {F32: 4, BF16: 2, F16: 2}


class Parts(NamedTuple):
    """A global tensor that the caller's own code shards. This rank holds parts of it.

    shape: of the global tensor. parts: (offset, tensor) pairs; offset has one index for each
    dimension; there may be none. trained: like requires_grad of a parameter.
    """
    shape: Sequence[int]
    parts: Sequence[tuple[Sequence[int], Any]]
    trained: bool = True


class Memory(NamedTuple):
    """A dense array in this process. strides are in elements; address is in bytes."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int
    place: int
    address: int
    keep: Any  # what keeps the memory alive
    now: Callable[[], Any] | None = None  # its present tensor; None: it cannot change


class Placed(NamedTuple):
    """A piece of a global tensor and where it lies."""
    piece: placements.Piece
    strides: tuple[int, ...]
    place: int
    address: int


class Slot(NamedTuple):
    """One tensor of the model, on this rank."""
    name: str
    shape: tuple[int, ...]
    dtype: int
    trained: bool
    buffer: bool
    placed: list[Placed]
    memories: list[Memory]
    identity: int

    def key(self) -> tuple:
        """Equal for two names of the same memory (tied tensors)."""
        if any(math.prod(m.shape) for m in self.memories):
            return tuple((m.place, m.address, m.shape, m.strides) for m in self.memories)
        return ("empty", self.identity)


def plain_name(name: str) -> str:
    """The name without what wrappers add (DDP, FSDP, torch.compile, activation checkpointing)."""
    for word in _WRAPPERS:
        name = name.replace(word, "")
    return name.removeprefix("module.")


def is_torch(t: Any) -> bool:
    return hasattr(t, "data_ptr") and hasattr(t, "requires_grad")


def _is_trained(t: Any) -> bool:
    """True for a trained tensor. A parameter says so itself; any other tensor (NumPy, a plain
    tensor) counts as trained."""
    if isinstance(t, Parts):
        return t.trained
    torch = sys.modules.get("torch")
    return not (torch and isinstance(t, torch.nn.Parameter)) or t.requires_grad


def _of_torch(t: Any) -> Memory:
    kind = _kind(str(t.dtype).removeprefix("torch."))
    if str(t.layout) != "torch.strided":
        raise Error(INVALID, f"layout {t.layout}; only dense tensors can be exchanged")
    if t.device.type not in ("cpu", "cuda"):
        raise Error(INVALID, f"device {t.device}; only CPU and CUDA memory can be exchanged")
    # Memory keeps a second tensor of the same memory, because `t` may get other memory.
    return Memory(tuple(t.shape), tuple(t.stride()), kind, CUDA if t.is_cuda else HOST,
                  t.data_ptr(), t.detach(), lambda: t)


def form(t: Any) -> str:
    """What must stay as it is at attach, of a PyTorch tensor."""
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}, strides {tuple(t.stride())}"


def _kind(name: str) -> int:
    if name not in _KINDS:
        raise Error(INVALID, f"{name}; only float32, bfloat16 and float16 can be exchanged")
    return _KINDS[name]


def _of_numpy(a: Any) -> Memory:
    described = a.__array_interface__
    address, readonly = described["data"]
    if readonly:
        raise Error(INVALID, "the array cannot be written")
    kind = _kind(a.dtype.name)
    if described["typestr"][0] == ">":
        raise Error(INVALID, "the bytes of its numbers are swapped")
    size = _BYTES[kind]
    strides = tuple(s // size for s in a.strides)
    return Memory(tuple(a.shape), strides, kind, HOST, address, a)


def _of_buffer(t: Any) -> Memory:
    view = memoryview(t)
    formats = {"f": F32, "e": F16}
    if view.readonly or view.format not in formats or not view.c_contiguous:
        raise Error(INVALID, f"needs a writable contiguous buffer of floats (format f or e), not "
                             f"format {view.format}")
    keep = (ctypes.c_char * view.nbytes).from_buffer(t)
    kind = formats[view.format]
    shape = view.shape or ()
    return Memory(shape, tuple(s // view.itemsize for s in view.strides or ()), kind, HOST,
                  ctypes.addressof(keep), keep)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _of_dlpack(t: Any) -> Memory:
    capsule = t.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    d = _DLTensor.from_address(get(capsule, b"dltensor"))
    names = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}
    kind = _kind(names.get((d.code, d.bits), f"DLPack type {d.code} of {d.bits} bits"))
    places = {1: HOST, 2: CUDA, 3: HOST, 13: CUDA}  # kDLCPU, kDLCUDA, …Host, …Managed
    if d.device not in places:
        raise Error(INVALID, f"DLPack device {d.device}; only host and CUDA memory can be "
                             f"exchanged")
    shape = tuple(d.shape[i] for i in range(d.ndim))
    strides = tuple(d.strides[i] for i in range(d.ndim)) if d.strides else _row_major(shape)
    # The capsule owns its tensor as long as nobody consumes it.
    return Memory(shape, strides, kind, places[d.device], (d.data or 0) + d.byte_offset,
                  (capsule, t))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def memory_of(t: Any) -> Memory:
    """The memory of a dense tensor. Error: INVALID, if its numbers cannot be exchanged in place."""
    if is_torch(t):
        m = _of_torch(t)
    elif hasattr(t, "__array_interface__") and hasattr(t, "dtype"):
        m = _of_numpy(t)
    elif hasattr(t, "__dlpack__"):
        m = _of_dlpack(t)
    else:
        m = _of_buffer(t)
    if type(t).__module__.startswith("jax"):
        raise Error(INVALID, "a JAX array cannot change; pass a NumPy copy (numpy.array(x)), write "
                             "to it before step(), and read it after")
    if len(m.shape) > DIMS_MAX:
        raise Error(INVALID, f"{len(m.shape)} dimensions; at most {DIMS_MAX} can be exchanged")
    if any(s < 0 or (s == 0 and n > 1) for s, n in zip(m.strides, m.shape)):
        raise Error(INVALID, f"strides {m.strides}; elements share memory, or are in reverse order")
    return m


def _refuse_strangers(t: Any) -> None:
    if hasattr(t, "ds_id"):
        raise Error(INVALID, "DeepSpeed stage 3 keeps its shards out of the parameters; use FSDP2 "
                             "(fully_shard)")
    if getattr(t, "_fsdp_flattened", False) or type(t).__name__ == "FlatParameter":
        raise Error(INVALID, "FSDP1 (FullyShardedDataParallel) keeps flat shards; use FSDP2 "
                             "(fully_shard)")


def _place(piece: placements.Piece, m: Memory) -> Placed:
    at = sum(i * s for i, s in zip(piece.local, m.strides)) * _BYTES[m.dtype]
    return Placed(piece, m.strides, m.place, m.address + at)


def _of_dtensor(t: Any) -> tuple[tuple[int, ...], list[Placed], list[Memory]]:
    mesh = t.device_mesh
    m = memory_of(t._local_tensor)._replace(now=lambda: t._local_tensor)
    found = placements.pieces(tuple(t.shape), t.placements, tuple(mesh.shape),
                              mesh.get_coordinate(), m.shape)
    return tuple(t.shape), [_place(p, m) for p in found], [m]


def _of_parts(t: Parts) -> tuple[tuple[int, ...], list[Placed], list[Memory]]:
    memories = [memory_of(part) for _, part in t.parts]
    zeros = (0,) * len(t.shape)
    placed = [_place(placements.Piece(tuple(offset), m.shape, zeros), m)
              for (offset, _), m in zip(t.parts, memories)]
    return tuple(t.shape), placed, memories


def slot_of(name: str, t: Any, buffer: bool = False) -> Slot:
    """The parts of tensor `name` on this rank. Error: INVALID; the text begins with the name."""
    try:
        _refuse_strangers(t)
        if isinstance(t, Parts):
            shape, placed, memories = _of_parts(t)
        elif hasattr(t, "device_mesh") and hasattr(t, "placements"):
            shape, placed, memories = _of_dtensor(t)
        else:
            m = memory_of(t)
            shape, memories = m.shape, [m]
            placed = [_place(p, m) for p in placements.whole(m.shape)]
    except (Error, ValueError, TypeError) as e:
        raise Error(INVALID, f"{name}: {e}") from None
    kinds = {m.dtype for m in memories} or {F32}
    if len(kinds) > 1:
        raise Error(INVALID, f"{name}: its parts have different dtypes")
    return Slot(name, shape, kinds.pop(), _is_trained(t) and not buffer, buffer, placed, memories,
                id(t))


def _pairs(model: Any, buffers: Sequence[str]) -> Iterator[tuple[str, Any, bool]]:
    if not hasattr(model, "named_parameters"):
        for name, t in model.items() if hasattr(model, "items") else model:
            yield name, t, _matches(plain_name(name), buffers)
        return
    for name, t in model.named_parameters(remove_duplicate=False):
        yield name, t, False
    for name, t in model.named_buffers(remove_duplicate=False):
        if _matches(plain_name(name), buffers):
            yield name, t, True


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def slots_of(model: Any, buffers: Sequence[str] = ()) -> list[Slot]:
    """The tensors of a module, of (name, tensor) pairs or of a dict, in their order. Frozen tensors
    of other dtypes (quantised ones) are left out.
    Error: INVALID, if a tensor cannot be exchanged, or two have one name."""
    out: dict[str, Slot] = {}
    for name, t, buffer in _pairs(model, buffers):
        name = plain_name(name)
        try:
            slot = slot_of(name, t, buffer)
        except Error:
            if buffer or _is_trained(t):
                raise
            continue
        if name in out and out[name].key() != slot.key():
            raise Error(INVALID, f"two tensors have the name {name}")
        out.setdefault(name, slot)
    for p in buffers:
        if not any(s.buffer and fnmatch.fnmatchcase(s.name, p) for s in out.values()):
            raise Error(INVALID, f"buffers: {p} matches no buffer of the model")
    return list(out.values())


def without_ties(slots: Sequence[Slot], wanted: Iterable[str]) -> list[Slot]:
    """One slot for each memory. If a memory has several names, the slot has the one in `wanted`,
    else the first. It is trained if any of its names is."""
    groups: dict[tuple, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot.key(), []).append(slot)
    names = set(wanted)
    out = []
    for group in groups.values():
        chosen = next((s for s in group if s.name in names), group[0])
        out.append(chosen._replace(trained=any(s.trained for s in group)))
    return out
