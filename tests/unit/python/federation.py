# SPDX-License-Identifier: Apache-2.0
"""The package over a libnebula without an agent (fake_nebula.c): where elements of all kinds of
tensors lie, ties, hooks, errors, state. Parts with NumPy and torch run where these are installed;
those with two ranks start two processes."""
import array
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

import nebula
from nebula import _tensors

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


def floats(*shape, kind="f"):
    data = array.array("f", bytes(4 * math.prod(shape)))
    return memoryview(data).cast("B").cast(kind, shape)


class Number(array.array):
    """A parameter of one float."""
    requires_grad = True

    def __new__(cls):
        return super().__new__(cls, "f", [0])


class Net:
    """A module of the parameters a and b and the buffers mean and count, without torch."""

    def __init__(self, prefix="", frozen=False):
        self.all = {prefix + name: Number() for name in "ab"}
        self.mean = {prefix + name: Number() for name in ("mean", "count")}
        self.all[prefix + "b"].requires_grad = not frozen

    def named_parameters(self, remove_duplicate=True):
        return self.all.items()

    def named_buffers(self, remove_duplicate=True):
        return self.mean.items()


class Alone(unittest.TestCase):
    def test_buffers(self):
        a, b = floats(2, 3), floats(4)
        fed = nebula.attach({"a": a, "module.b": b}, tokens=8)
        self.assertEqual(a.tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual([t["name"] for t in fed.tensors()], ["a", "b"])
        self.assertEqual([(t["shape"]) for t in fed.tensors()], [(2, 3), (4,)])
        self.assertEqual([s for s in fed.steps() if fed.step() is None], [0, 1, 2])
        self.assertTrue(fed.done)
        self.assertEqual(b.tolist(), [0, 8, 16, 24])
        fed.close()
        fed.close()

    def test_ties(self):
        a = floats(2, 3)
        for wanted, name in (("", "x"), ("y", "y")):
            os.environ["FAKE_TENSOR"] = wanted
            with nebula.attach([("x", a), ("y", a), ("z", floats(1))], tokens=1) as fed:
                self.assertEqual([t["name"] for t in fed.tensors()], [name, "z"])
        os.environ["FAKE_TENSOR"] = ""
        with self.assertRaisesRegex(nebula.Error, "two tensors have the name x"):
            nebula.attach([("x", a), ("module.x", floats(2, 3))])

    def test_parts(self):
        """A tensor of 4 x 6 that the caller cut: rows 1 and 2 of columns 2 to 4, and a corner."""
        a, b = floats(2, 3), floats(1, 1)
        parts = nebula.Parts((4, 6), [((1, 2), a), ((3, 5), b)])
        with nebula.attach({"w": parts}, tokens=1):
            self.assertEqual(a.tolist(), [[8, 9, 10], [14, 15, 16]])
            self.assertEqual(b.tolist(), [[23]])

    def test_errors(self):
        with self.assertRaisesRegex(nebula.Error, "^there is no job none$") as e:
            nebula.attach({"a": floats(1)}, job="none")
        self.assertEqual(e.exception.status, 4)
        with self.assertRaisesRegex(nebula.Error, "^a: needs a writable contiguous buffer"):
            nebula.attach({"a": array.array("d", [0])})
        with self.assertRaisesRegex(nebula.Error, "^a: needs a writable contiguous buffer"):
            nebula.attach({"a": floats(4)[::2]})
        with self.assertRaisesRegex(nebula.Error, "^long: 9 dimensions"):
            nebula.attach({"long": floats(*[1] * 9)})
        with self.assertRaisesRegex(nebula.Error, "more than 255 bytes"):
            nebula.attach({"ä" * 128: floats(1)})
        a = floats(1)
        with nebula.attach({"a": a}) as fed:
            with self.assertRaisesRegex(nebula.Error, "give tokens to step"):
                fed.step()
            with self.assertRaisesRegex(nebula.Error, "too many tokens"):
                fed.step(2000)
            with self.assertRaisesRegex(nebula.Error, "outside the vocabulary"):
                fed.count(array.array("i", [512]), array.array("i", [1]))
            a[0] = 13
            with self.assertRaisesRegex(nebula.Error, "not finite in a"):
                fed.step(1)

    def test_pairs_of_a_generator(self):
        """load_state_dict attaches again, and needs the pairs a second time."""
        a = floats(4)
        with nebula.attach((pair for pair in [("a", a)]), tokens=1) as fed:
            fed.load_state_dict(fed.state_dict())
            self.assertEqual([t["name"] for t in fed.tensors()], ["a"])

    def test_buffer_patterns(self):
        with nebula.attach({"a": floats(1), "mean": floats(2)}, buffers=["me*"]):
            pass
        with self.assertRaisesRegex(nebula.Error, "^buffers: var matches no buffer"):
            nebula.attach({"a": floats(1), "mean": floats(2)}, buffers=["me*", "var"])

    def test_trained_since_attach(self):
        net = Net(frozen=True)
        with nebula.attach(net, tokens=1) as fed:
            fed.step()
            net.all["b"].requires_grad = True
            with self.assertRaisesRegex(nebula.Error, "did not train at attach"):
                fed.step()

    def test_lightning(self):
        """Names lose the prefix, buffers too."""
        with unittest.mock.patch.dict(sys.modules, {
                "lightning": types.ModuleType("lightning"),
                "lightning.pytorch": types.SimpleNamespace(Callback=object)}):
            from nebula.lightning import NebulaCallback
        trainer = types.SimpleNamespace(strategy=None, global_step=0, should_stop=False)
        callback = NebulaCallback(tokens=1, buffers=["*mean"])
        callback.on_train_start(trainer, Net("model."))
        self.assertEqual([t["name"] for t in callback.fed.tensors()], ["a", "b", "mean"])
        callback.on_train_end(trainer, None)

    def test_hooks(self):
        def saved(folder, step):
            seen.append((folder, step))
            if step == 2:
                raise KeyError("disk")

        seen = []
        with nebula.attach({"a": floats(1)}, tokens=1, on_checkpoint=saved) as fed:
            fed.step()
            with self.assertRaisesRegex(KeyError, "disk"):
                fed.step()
        self.assertEqual(seen, [("folder", 1), ("folder", 2)])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raiser = lambda folder, step: signal.raise_signal(signal.SIGINT)
        with nebula.attach({"a": floats(1)}, tokens=1, on_checkpoint=raiser) as fed:
            with self.assertRaises(KeyboardInterrupt):
                fed.step()

    def test_state(self):
        fed = nebula.attach({"a": floats(2, 3), "b": floats(4)}, tokens=1)
        state = fed.state_dict()
        self.assertEqual(state["exchange"], b"bytes")
        self.assertEqual(list(state["theta/b"].parts[0][1]), [0, 1, 2, 3])
        cut = [(a, state["theta/b"].parts[0][1][a:a + 1]) for a in range(4)]
        state["theta/b"] = nebula.Flat(4, cut)  # other ranks had other parts
        fed.load_state_dict(state)
        self.assertEqual(fed.info()["digest"], "3")
        fed.close()
        with nebula.attach({"a": floats(2, 3)}, tokens=1, state=state) as fed:
            self.assertEqual(fed.info()["digest"], "2")
        state["theta/b"] = nebula.Flat(4, cut[1:])
        with self.assertRaisesRegex(nebula.Error, "lacks 1 of the 4 values of theta/b"):
            nebula.attach({"b": floats(4)}, state=state)


@unittest.skipUnless(numpy, "NumPy is not installed")
class WithNumPy(unittest.TestCase):
    def test_arrays(self):
        base = numpy.zeros((6, 8), numpy.float32)
        a, h, s = base[1:4, ::2], numpy.zeros((2, 2, 2, 2), numpy.float16), numpy.zeros((), "f")
        with nebula.attach({"a": a, "h": h, "s": s, "t": base[4:].T}, tokens=1) as fed:
            self.assertEqual(a.tolist(), [[4 * i + j for j in range(4)] for i in range(3)])
            self.assertEqual(h.ravel().tolist(), list(range(16)))
            self.assertEqual(base[4:].tolist(), [[0, 2, 4, 6, 8, 10, 12, 14],
                                                 [1, 3, 5, 7, 9, 11, 13, 15]])
            self.assertEqual(base[1:4, 1::2].tolist(), [[0] * 4] * 3)
            fed.step()
            self.assertEqual(h.ravel().tolist(), list(range(0, 32, 2)))

    def test_refused(self):
        fixed = numpy.zeros(2, "f")
        fixed.flags.writeable = False
        for bad, why in ((fixed, "cannot be written"), (numpy.zeros(2), "float64; only"),
                         (numpy.zeros(2, ">f4"), "swapped"),
                         (numpy.zeros(4, "f")[::-1], "reverse")):
            with self.assertRaisesRegex(nebula.Error, f"^bad: .*{why}"):
                nebula.attach({"bad": bad})

    def test_dlpack(self):
        class Foreign:  # of a library that this package does not know
            def __init__(self, a):
                self.a = a

            def __dlpack__(self):
                return self.a.__dlpack__()

        a = numpy.zeros((3, 4), "f")
        with nebula.attach({"a": Foreign(a[:, 1:3])}, tokens=1):
            self.assertEqual(a.tolist(), [[0, 0, 1, 0], [0, 2, 3, 0], [0, 4, 5, 0]])


@unittest.skipUnless(torch, "torch is not installed")
class WithTorch(unittest.TestCase):
    def test_module(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = torch.nn.Embedding(5, 3)
                self.conv = torch.nn.Conv2d(2, 3, 2)
                self.norm = torch.nn.BatchNorm2d(3)
                self.head = torch.nn.Linear(3, 5, bias=False)
                self.head.weight = self.embed.weight
                self.scale = torch.nn.Parameter(torch.tensor(1.0))
                self.frozen = torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8),
                                                 requires_grad=False)

        net = torch.compile(Net())
        with nebula.attach(net, tokens=1, buffers=["*running_mean"]) as fed:
            names = [t["name"] for t in fed.tensors()]
            self.assertEqual(names, ["scale", "embed.weight", "conv.weight", "conv.bias",
                                     "norm.weight", "norm.bias", "norm.running_mean"])
            self.assertEqual(net.conv.weight.flatten().tolist(), list(range(24)))
            self.assertEqual(net.norm.running_mean.tolist(), [0, 1, 2])
            self.assertEqual(net.norm.running_var.tolist(), [1, 1, 1])
            was = net.conv.weight.data
            changed = r"^conv.weight is \w+ \(.* but was float32 \(3, 2, 2, 2\), strides"
            for other in (was.view(3, 2, 4), was.transpose(2, 3), was.view(torch.int32)):
                net.conv.weight.requires_grad = False
                net.conv.weight.data = other
                with self.assertRaisesRegex(nebula.Error, changed):
                    fed.step()
            net.conv.weight.data = was.clone()
            with self.assertRaisesRegex(nebula.Error, "^conv.weight has moved to other memory"):
                fed.step()

    def test_half(self):
        net = torch.nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
        with nebula.attach(net, tokens=1):
            self.assertEqual(net.weight.flatten().tolist(), list(range(12)))

    def test_refused(self):
        stage_3, flat = torch.nn.Parameter(torch.zeros(0)), torch.nn.Parameter(torch.zeros(2))
        stage_3.ds_id, flat._fsdp_flattened = 1, True
        for bad, why in ((stage_3, "DeepSpeed stage 3"), (flat, "FSDP1"),
                         (torch.zeros(1).expand(4), "share memory"),
                         (torch.zeros(2, dtype=torch.float64), "float64; only"),
                         (torch.zeros(2, 2).to_sparse(), "dense"),
                         (torch.zeros(2, device="meta"), "device meta; only CPU and CUDA")):
            with self.assertRaisesRegex(nebula.Error, f"^bad: .*{why}"):
                nebula.attach({"bad": bad})


def rank_program(case):
    """One of two ranks; an assertion that fails ends it with a status."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import load, save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    data = torch.arange(15.0).view(5, 3)
    model = {k: distribute_tensor(torch.zeros(5, 3), mesh, [Shard(d)]) for k, d in
             (("rows", 0), ("columns", 1))}
    model["same"] = torch.zeros(4)
    if case == "shards":
        with nebula.attach(model, tokens=1) as fed:
            for k in ("rows", "columns"):
                assert torch.equal(model[k].full_tensor(), data), (k, model[k])
            fed.step()
            assert torch.equal(model["columns"].full_tensor(), 2 * data)
    elif case == "error":
        bad = torch.zeros(1, dtype=torch.float64) if rank else torch.zeros(1)
        with contextlib.suppress(nebula.Error):
            nebula.attach({"bad": bad})
            raise AssertionError
        try:
            nebula.attach({"bad": bad})
        except nebula.Error as e:
            assert str(e).endswith("bad: float64; only float32, bfloat16 and float16 can be "
                                   "exchanged") and str(e).startswith("rank 1: " * (not rank)), e
    elif case == "end":
        fed = nebula.attach(model, tokens=1)
        if rank:
            os._exit(0)
        try:
            fed.step()
        except nebula.Error as e:
            assert "a rank has ended" in str(e) and e.__cause__ is not None
        os._exit(0)
    elif case == "moved":  # an error that only rank 1 sees
        fed = nebula.attach(model, tokens=1)
        if rank:
            model["same"].data = model["same"].clone()
        try:
            with fed:
                fed.step()
            raise AssertionError
        except nebula.Error as e:
            assert ("moved to other memory" if rank else "a rank has ended") in str(e), e
        time.sleep(60 * rank)  # rank 0 hears of it while rank 1 lives
        os._exit(0)
    elif case == "failed":  # outside of the package
        fed = nebula.attach(model, tokens=1)
        with contextlib.suppress(KeyError), fed:
            if rank:
                raise KeyError
            try:
                fed.step()
                raise AssertionError
            except nebula.Error as e:
                assert "a rank has ended" in str(e), e
        time.sleep(60 * rank)
        os._exit(0)
    elif case == "state":
        fed = nebula.attach(model, tokens=1)
        state = fed.state_dict()
        folder = os.environ["FOLDER"]
        save({"fed": state}, checkpoint_id=folder)
        fed.close()

        def fill(wanted):
            assert not wanted["theta/same"].parts[0][1].any()
            load({"fed": wanted}, checkpoint_id=folder)

        fed = nebula.attach(model, tokens=1, state=fill)
        assert fed.info()["digest"] == ("3" if rank else "4")
        load({"fed": fed}, checkpoint_id=folder)  # calls state_dict and load_state_dict
        assert fed.info()["digest"] == ("3" if rank else "4")
        fed.close()
    dist.destroy_process_group()


@unittest.skipUnless(torch, "torch is not installed")
class TwoRanks(unittest.TestCase):
    def run_ranks(self, case):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen(
                [sys.executable, __file__, "--rank", case], stderr=subprocess.PIPE,
                env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(20000 + os.getpid() % 9000), "FOLDER": folder + "/state"})
                     for r in range(2)]
            if case in ("moved", "failed"):
                ranks[0].wait(timeout=60)
                self.assertIsNone(ranks[1].poll(), "rank 0 waited for the end of rank 1")
                ranks[1].kill()
                said = [r.communicate()[1].decode() for r in ranks]
                self.assertEqual(ranks[0].returncode, 0, said[0])
                return
            said = [r.communicate(timeout=120)[1].decode() for r in ranks]
            self.assertEqual([r.returncode for r in ranks], [0, 0], "".join(said))

    def test_shards(self):
        self.run_ranks("shards")

    def test_error_reaches_both(self):
        self.run_ranks("error")

    def test_error_of_one_rank(self):
        self.run_ranks("moved")
        self.run_ranks("failed")

    def test_a_rank_ends(self):
        self.run_ranks("end")

    def test_state(self):
        self.run_ranks("state")


if __name__ == "__main__":
    if "--rank" in sys.argv:
        rank_program(sys.argv[-1])
    else:
        unittest.main()
