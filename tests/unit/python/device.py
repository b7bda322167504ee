# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device, over a library without an agent and a torch without CUDA: they are
registered where they are, and each call names the stream on which the loop works then."""
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


class Device(unittest.TestCase):
    def test_stream(self):
        asked = []

        def current_stream(device):
            asked.append(device)
            return types.SimpleNamespace(cuda_stream=4096 + len(asked))

        torch = types.ModuleType("torch")
        torch.nn = types.SimpleNamespace(Parameter=type("Parameter", (), {}))
        torch.cuda = types.SimpleNamespace(current_stream=current_stream)
        torch.distributed = types.SimpleNamespace(is_available=lambda: False)
        torch.__path__ = []  # a package
        sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})
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
