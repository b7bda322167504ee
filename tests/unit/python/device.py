# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device, over a library without an agent and a torch without CUDA: they are
registered where they are, and each call names the stream on which the loop works then. Figures on
the device are copied on that stream, and the host waits for none of them before the last step."""
import array
import ctypes
import sys
import types
import unittest

import nebula
from nebula import _lib


class Tensor:
    """Like a CUDA tensor, but in the memory of the host."""
    dtype, layout, requires_grad, is_cuda = "torch.bfloat16", "torch.strided", True, True
    shape = (2, 3)
    device = types.SimpleNamespace(type="cuda", index=1)

    def __init__(self):
        self.bits = array.array("H", bytes(12))

    def stride(self):
        return 3, 1

    def data_ptr(self):
        return self.bits.buffer_info()[0]

    def detach(self):
        return self

    def cpu(self):
        raise AssertionError("a copy to the host")


class Figure:
    """A tensor of one element on the device. The host gets it by an enqueued copy only."""
    is_cuda, requires_grad, device = True, False, Tensor.device

    def __init__(self, value):
        self.value = value

    def detach(self):
        return self

    def reshape(self, n):
        assert n == 1
        return self

    def data_ptr(self):
        return id(self)

    def wait(self, *_):
        raise AssertionError("the host waits for the device")

    __float__ = __int__ = __bool__ = item = cpu = tolist = wait


class Pinned:
    """Host memory into which the device copies when its stream gets there."""

    def __init__(self, queue, n):
        self.queue, self.values = queue, [None] * n

    def __getitem__(self, part):
        def copy(source, non_blocking):
            assert non_blocking
            value = source.value  # the loop may change the tensor later
            self.queue.append(lambda: self.values.__setitem__(part.start, value))
        return types.SimpleNamespace(copy_=copy)

    def tolist(self):
        assert None not in self.values, "read before the copy"
        return self.values


class Device(unittest.TestCase):
    def torch(self, current_stream):
        queue = []

        class Event:
            def record(self, stream):
                assert stream.cuda_stream
                self.run = list(queue)
                queue.clear()

            def query(self):
                return not self.run

            def synchronize(self):
                for op in self.run:
                    op()
                self.run = []

        def empty(n, dtype, pin_memory):
            assert dtype == "float64" and pin_memory
            return Pinned(queue, n)

        torch = types.ModuleType("torch")
        torch.nn = types.SimpleNamespace(Parameter=type("Parameter", (), {}))
        torch.cuda = types.SimpleNamespace(current_stream=current_stream, Event=Event)
        torch.float64, torch.empty = "float64", empty
        torch.distributed = types.SimpleNamespace(is_available=lambda: False)
        torch.__path__ = []  # a package
        sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})
        return torch

    def test_late_figures(self):
        self.torch(lambda device: types.SimpleNamespace(cuda_stream=4096))
        told = ctypes.c_int.in_dll(_lib.lib, "fake_told")
        tokens = ctypes.c_uint64.in_dll(_lib.lib, "fake_tokens")
        loss = (ctypes.c_double * 8).in_dll(_lib.lib, "fake_loss")
        rate = (ctypes.c_double * 8).in_dll(_lib.lib, "fake_lr")
        with nebula.attach({"w": Tensor()}, tokens=8) as fed:
            x = Figure(0.5)
            fed.step(loss=x, lr=0.25)
            x.value = 7
            first = fed._late[0]
            fed.step(tokens=Figure(9), loss=Figure(1.5))
            self.assertEqual(told.value, 0)
            first._event.synchronize()
            fed.step(loss=2.5)  # the last one: all are told
            self.assertEqual((told.value, tokens.value), (2, 9))
            self.assertEqual((loss[0], loss[1], rate[0]), (0.5, 1.5, 0.25))
            self.assertFalse(fed._late)

    def test_stream(self):
        asked = []

        def current_stream(device):
            asked.append(device)
            return types.SimpleNamespace(cuda_stream=4096 + len(asked))

        self.torch(current_stream)
        stream = ctypes.c_void_p.in_dll(_lib.lib, "fake_stream")
        place = ctypes.c_int.in_dll(_lib.lib, "fake_place")
        t = Tensor()
        with nebula.attach({"w": t}, tokens=8) as fed:
            self.assertEqual(stream.value, 4096 + len(asked))
            self.assertEqual(place.value, _lib.CUDA)
            before = len(asked)
            fed.step(loss=1.0)
            self.assertEqual(stream.value, 4096 + before + 1)
        self.assertTrue(all(d is Tensor.device for d in asked))
        self.assertTrue(any(t.bits))  # written in place


if __name__ == "__main__":
    unittest.main()
