# SPDX-License-Identifier: Apache-2.0
"""libnebula by ctypes. The structs and the numbers are those of libnebula.h.

The library is $NEBULA_LIBRARY if that is set. Otherwise this module looks beside the package, in
nebula_federation (a wheel), in build/ of the source folder, two folders up (lib/ of an
installation), and where the system looks.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64
from ctypes import c_uint32, c_void_p

API = 2
DIMS_MAX = 8
F32, BF16, F16 = 0, 1, 2
HOST, CUDA = 0, 1
TRAIN, DONE, STOP = 0, 1, 2
INVALID, STATE, IO, AGAIN = 1, 2, 7, 8
STATE_F32, STATE_BYTES = 0, 1

SEND = RECV = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_int)
CHECKPOINT = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64)
WAIT = ctypes.CFUNCTYPE(c_int, c_void_p)
FIGURES = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)  # the last one: a StepStats
NOT_YET, LATER, LATER_TOKENS = -1, 1, 2


class Error(RuntimeError):
    """A call of libnebula failed. status: its enum nebula_status.

    AGAIN (8): this cluster has to continue with another state, for example after a long absence.
    Close, attach again, and continue from step_count.
    """

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status

    def __reduce__(self):
        return Error, (self.status, str(self))


class _Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Ranks(_Sized):
    _fields_ = [("size", c_size_t), ("rank", c_int), ("ranks", c_int), ("user", c_void_p),
                ("send", SEND), ("recv", RECV)]


class Hooks(ctypes.Structure):
    _fields_ = [("user", c_void_p), ("checkpoint", CHECKPOINT), ("wait", WAIT),
                ("figures", FIGURES)]


class Options(_Sized):
    _fields_ = [("size", c_size_t), ("api", c_int), ("agent", c_char_p), ("job", c_char_p),
                ("timeout_s", c_double), ("threads", c_int), ("ranks", POINTER(Ranks)),
                ("hooks", Hooks)]


class Tensor(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char * 256), ("dims", c_int32),
                ("shape", c_int64 * DIMS_MAX), ("dtype", c_int), ("buffer", c_int32),
                ("trained", c_int32), ("group", c_int32), ("fragment", c_int32)]


class Piece(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("offset", c_int64 * DIMS_MAX),
                ("extent", c_int64 * DIMS_MAX), ("stride", c_int64 * DIMS_MAX), ("dtype", c_int),
                ("place", c_int), ("data", c_void_p)]


class StepStats(_Sized):
    _fields_ = [("size", c_size_t), ("tokens", c_uint64),
                *((k, c_double) for k in ("loss", "lr", "grad_norm", "eval_loss")),
                ("later", c_uint32)]


class Info(_Sized):
    _fields_ = [("size", c_size_t),
                *((k, c_int32) for k in ("tensors", "fragments", "cluster", "clusters", "vocab",
                                         "seq_len", "batch", "accumulate")),
                ("step", c_int64), ("steps", c_int64), ("rounds", c_uint64),
                ("payload_bytes", c_uint64), ("stall_s", c_double), ("sync_s", c_double),
                ("others", c_int), ("dir", c_char * 1024), ("corpus", c_char * 1024),
                ("digest", c_char * 33)]


class StatePart(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char * 320), ("type", c_int), ("total", c_int64),
                ("offset", c_int64), ("count", c_int64)]


_HANDLE = c_void_p
_ARGUMENTS = {
    "attach": [POINTER(Options), POINTER(_HANDLE)],
    "declare": [_HANDLE, POINTER(Tensor)],
    "tensor_at": [_HANDLE, c_int32, POINTER(Tensor)],
    "register": [_HANDLE, POINTER(Piece)],
    "set_stream": [_HANDLE, c_void_p],
    "begin": [_HANDLE],
    "count": [_HANDLE, c_void_p, c_void_p, c_size_t],
    "step_with": [_HANDLE, POINTER(StepStats), POINTER(c_int)],
    "checkpoint": [_HANDLE],
    "info_get": [_HANDLE, POINTER(Info)],
    "state_count": [_HANDLE, POINTER(c_int32)],
    "state_at": [_HANDLE, c_int32, POINTER(StatePart)],
    "state_get": [_HANDLE, c_int32, c_void_p],
    "state_set": [_HANDLE, c_int32, c_void_p, c_int64],
    "close": [POINTER(_HANDLE), c_double],
}


def _find() -> ctypes.CDLL:
    package = pathlib.Path(__file__).resolve().parent
    folders = (package, package.parent, package.parent / "nebula_federation/lib",
               package.parents[3] / "build", package.parents[2])
    places = [os.environ.get("NEBULA_LIBRARY")] if os.environ.get("NEBULA_LIBRARY") else [
        *(str(p / "libnebula.so.2") for p in folders), "libnebula.so.2"]
    why = ""
    for place in places:
        if "/" not in place or os.path.exists(place):
            try:
                return ctypes.CDLL(place)
            except OSError as e:
                why = f"; {e}"
    raise ImportError(f"libnebula.so.2 not found (looked at {', '.join(places)}): "
                      f"set NEBULA_LIBRARY{why}")


def _load() -> ctypes.CDLL:
    lib = _find()
    lib.nebula_last_error.restype = lib.nebula_version.restype = c_char_p
    api = c_int()
    text = lib.nebula_version(ctypes.byref(api))
    if api.value != API:
        raise ImportError(f"the package nebula has API {API}, but libnebula {text.decode()} has "
                          f"API {api.value}: use both from one version")
    for name, arguments in _ARGUMENTS.items():
        if hasattr(lib, f"nebula_{name}"):
            getattr(lib, f"nebula_{name}").argtypes = arguments
    lib.nebula_step_count.argtypes = [_HANDLE]
    lib.nebula_step_count.restype = c_int64
    return lib


lib = _load()


def version() -> str:
    """Version of the library, such as "0.2.0"."""
    return lib.nebula_version(None).decode()


def check(status: int) -> None:
    if status:
        raise Error(status, lib.nebula_last_error().decode(errors="replace"))
