# SPDX-License-Identifier: Apache-2.0
"""Pieces of ranks against lists of indices that are cut one by one, over random meshes; and against
DTensor where torch is installed. usage: placements.py [SEED]"""
import collections
import itertools
import math
import random
import sys
import unittest

from nebula import placements

SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1


class Replicate:
    def is_replicate(self):
        return True

    def is_shard(self):
        return False


class Shard(Replicate):
    def __init__(self, dim):
        self.dim = dim

    def is_replicate(self):
        return False

    def is_shard(self):
        return True


class StridedShard(Shard):
    def __init__(self, dim, factor):
        super().__init__(dim)
        self.split_factor = factor

    def is_shard(self):  # as in older versions of torch
        return False


def chunks(items, n):
    size = max(1, -(-len(items) // n))
    parts = [items[i:i + size] for i in range(0, len(items), size)]
    return parts + [[]] * (n - len(parts))


def cut_left_to_right(length, cuts):
    """cuts: (factor, size, coordinate), left to right."""
    items = list(range(length))
    for factor, size, at in cuts:
        items = sum((chunks(part, size)[at] for part in chunks(items, factor)), [])
    return items


def indices(runs):
    return [i for start, n in runs for i in range(start, start + n)]


def cells(piece):
    """(global index, local index) of each element of a piece."""
    for at in itertools.product(*(range(n) for n in piece.extent)):
        yield (tuple(o + i for o, i in zip(piece.offset, at)),
               tuple(o + i for o, i in zip(piece.local, at)))


class Placements(unittest.TestCase):
    def test_fsdp_over_tensor_parallel(self):
        """The table in the head of placements.py, and its uneven relative."""
        for at, rows in {(0, 0): [0, 1], (0, 1): [4, 5], (1, 0): [2, 3], (1, 1): [6, 7]}.items():
            got = placements.pieces((8, 3), [StridedShard(0, 2), Shard(0)], (2, 2), at, (2, 3))
            self.assertEqual(got, [((rows[0], 0), (2, 3), (0, 0))])
        # 9 rows, tp 2 cuts 5 + 4, dp 4 cuts 2 2 1 0 and 1 1 1 1: the last rank holds row 8
        mesh = (4, 2)
        sizes = {(3, 0): 0, (3, 1): 1, (0, 0): 2, (0, 1): 1}
        for at, n in sizes.items():
            got = placements.pieces((9,), [StridedShard(0, 2), Shard(0)], mesh, at, (n,))
            self.assertEqual(sum(p.extent[0] for p in got), n)
        got = placements.pieces((9,), [StridedShard(0, 2), Shard(0)], mesh, (3, 1), (1,))
        self.assertEqual(got, [((8,), (1,), (0,))])

    def test_every_element_once_for_each_replica(self):
        """All orders in which mesh dimensions may cut, as FSDP2 and TP do it one after another."""
        rng = random.Random(SEED)
        for _ in range(400):
            shape = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
            mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            dims = [rng.choice([None, *range(len(shape))]) for _ in mesh]
            order = rng.sample(range(len(mesh)), len(mesh))  # which dimension cuts first
            seen = collections.Counter()
            marks = []
            for m, dim in enumerate(dims):
                before = [k for k in order[:order.index(m)] if k > m and dims[k] == dim]
                factor = math.prod(mesh[k] for k in before)
                marks.append(Replicate() if dim is None else Shard(dim) if factor == 1
                             else StridedShard(dim, factor))
            for at in itertools.product(*(range(n) for n in mesh)):
                held = [list(range(n)) for n in shape]
                for m in order:
                    if dims[m] is not None:
                        held[dims[m]] = chunks(held[dims[m]], mesh[m])[at[m]]
                size = [len(h) for h in held]
                got = placements.pieces(shape, marks, mesh, at, size)
                want = {g: i for g, i in zip(itertools.product(*held),
                                             itertools.product(*(range(n) for n in size)))}
                cover = dict(c for p in got for c in cells(p))
                self.assertEqual(cover, want, (SEED, shape, mesh, marks, at))
                self.assertLessEqual(len(got), 1)  # FSDP2 never makes more than one rectangle
                seen.update(cover.keys())
            replicas = math.prod(n for n, dim in zip(mesh, dims) if dim is None)
            self.assertEqual(set(seen.values()), {replicas}, (SEED, shape, mesh, dims))
            self.assertEqual(len(seen), math.prod(shape))

    def test_left_to_right(self):
        """distribute_tensor with factors that no order explains, and with uneven ones."""
        rng = random.Random(SEED)
        for _ in range(400):
            length = rng.randint(0, 40)
            cuts = [(rng.randint(1, 5), rng.randint(1, 4)) for _ in range(rng.randint(1, 3))]
            factors, sizes = zip(*cuts)
            at = [rng.randrange(n) for n in sizes]
            want = cut_left_to_right(length, list(zip(factors, sizes, at)))
            order = placements.order_of_cuts(factors, sizes)
            if order is not None:
                items = list(range(length))
                for i in order:
                    items = chunks(items, sizes[i])[at[i]]
                if len(items) == len(want):
                    want = items
            got = placements.runs_of(length, factors, sizes, at, len(want))
            self.assertEqual(indices(got), want, (SEED, length, cuts, at))

    def test_several_pieces(self):
        got = placements.pieces((8, 2), [StridedShard(0, 2)], (2,), (1,), (4, 2))
        self.assertEqual(got, [((2, 0), (2, 2), (0, 0)), ((6, 0), (2, 2), (2, 0))])

    def test_scalars_replicas_and_strangers(self):
        self.assertEqual(placements.pieces((), [Replicate()], (2,), (1,), ()), [((), (), ())])
        self.assertEqual(placements.pieces((4,), [Shard(0)], (2,), None, (0,)), [])
        self.assertEqual(placements.pieces((4, 6), [Shard(-1)], (2,), (1,), (4, 3)),
                         [((0, 3), (4, 3), (0, 0))])
        self.assertEqual(placements.pieces((3,), [Shard(0)], (4,), (3,), (0,)), [])

    def test_refused(self):
        class Partial(Replicate):
            def is_replicate(self):
                return False

            def __str__(self):
                return "Partial(sum)"

        with self.assertRaisesRegex(ValueError, r"Partial\(sum\) is neither"):
            placements.pieces((4,), [Partial()], (2,), (0,), (4,))
        with self.assertRaisesRegex(ValueError, "dimension 0: the rank holds 3 of 4 .* give 2"):
            placements.pieces((4,), [Shard(0)], (2,), (0,), (3,))
        with self.assertRaisesRegex(ValueError, "cuts dimension 2 of a tensor that has 1"):
            placements.pieces((4,), [Shard(2)], (2,), (0,), (2,))


try:
    import torch
    from torch.distributed.tensor import Replicate as TorchReplicate, Shard as TorchShard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as of_torch
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:
    torch = None


@unittest.skipUnless(torch, "torch is not installed")
class AgainstTorch(unittest.TestCase):
    def test_shapes_and_first_offsets(self):
        rng = random.Random(SEED)
        for _ in range(500):
            shape = [rng.randint(1, 12) for _ in range(rng.randint(1, 4))]
            mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            marks = []
            for m in range(len(mesh)):
                dim = rng.choice([None, *range(len(shape))])
                factor = rng.choice([1, 1, 2, 3])
                marks.append(TorchReplicate() if dim is None else TorchShard(dim) if factor == 1
                             else _StridedShard(dim, split_factor=factor))
            for at in itertools.product(*(range(n) for n in mesh)):
                size, offset = of_torch(shape, mesh, list(at), marks)
                got = placements.pieces(shape, marks, mesh, at, size)
                self.assertEqual(sum(math.prod(p.extent) for p in got), math.prod(size))
                for dim in range(len(shape) if got else 0):
                    cuts = [(getattr(p, "split_factor", 1), n) for p, n in zip(marks, mesh)
                            if not p.is_replicate() and p.dim == dim]
                    # An order of cuts wins over torch's left to right, which is not what FSDP2 does
                    if not cuts or placements.order_of_cuts(*zip(*cuts)) is None or all(
                            f == 1 for f, _ in cuts):
                        self.assertEqual(got[0].offset[dim], offset[dim],
                                         (SEED, shape, mesh, marks))

    def test_values(self):
        """Elements of the tensors that torch's own split gives to each rank."""
        rng = random.Random(SEED)
        for _ in range(300):
            shape = [rng.randint(1, 12), rng.randint(1, 5)]
            parts, factor = rng.randint(1, 4), rng.randint(1, 4)
            mark = _StridedShard(0, split_factor=factor) if factor > 1 else TorchShard(0)
            full = torch.arange(math.prod(shape)).view(shape)
            split, _ = mark._split_tensor(full, parts, with_padding=False)
            for at, part in enumerate(split):
                for p in placements.pieces(shape, [mark], [parts], (at,), part.shape):
                    for g, i in cells(p):
                        self.assertEqual(full[g], part[i], (SEED, shape, mark, parts, at))


if __name__ == "__main__":
    unittest.main()
