# SPDX-License-Identifier: Apache-2.0
"""Which rectangles of a global tensor one rank of a device mesh holds.

Pure functions over the placements of PyTorch's DTensor; torch is not imported. A placement is
anything with the methods is_shard() and is_replicate(), an attribute dim, and, if it is strided,
an attribute split_factor.

    mesh (dp 2, tp 2), placements (_StridedShard(0, 2), Shard(0)), 8 rows:

    tp cuts first          dp cuts each half       rank (dp, tp) holds rows
    tp 0: 0 1 2 3          dp 0: 0 1  dp 1: 2 3    (0, 0): 0 1   (0, 1): 4 5
    tp 1: 4 5 6 7          dp 0: 4 5  dp 1: 6 7    (1, 0): 2 3   (1, 1): 6 7
"""
from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, Sequence

Run = tuple[int, int]  # first index of the global dimension, number of indices


class Piece(NamedTuple):
    """A rectangle of a global tensor. All fields have one entry for each dimension.

    offset: where it begins in the global tensor.
    extent: its size; a piece may be empty.
    local: where it begins in the tensor that the rank holds.
    """
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    local: tuple[int, ...]


def chunk(runs: Sequence[Run], parts: int, index: int) -> list[Run]:
    """Part `index` of `parts` of the indices in `runs`, as torch.chunk cuts: all parts have the
    size of the first; the last ones may be smaller or empty."""
    total = sum(n for _, n in runs)
    size = -(-total // parts)
    return cut(runs, min(size * index, total), min(size * (index + 1), total))


def cut(runs: Sequence[Run], first: int, end: int) -> list[Run]:
    """Positions [first, end) of the indices in `runs`."""
    out, at = [], 0
    for start, n in runs:
        a, b = max(first - at, 0), min(end - at, n)
        if a < b:
            out.append((start + a, b - a))
        at += n
    return out


def join(runs: Sequence[Run]) -> list[Run]:
    """The same indices; adjacent runs are joined."""
    out: list[Run] = []
    for start, n in runs:
        if out and sum(out[-1]) == start:
            out[-1] = (out[-1][0], out[-1][1] + n)
        else:
            out.append((start, n))
    return out


def _strided(runs: Sequence[Run], factor: int, parts: int, index: int) -> list[Run]:
    pieces = (chunk(chunk(runs, factor, k), parts, index) for k in range(factor))
    return list(itertools.chain.from_iterable(pieces))


def _factor(placement: Any) -> int:
    return int(getattr(placement, "split_factor", 1))


def _cuts(placements: Sequence[Any], dims: int) -> dict[int, list[int]]:
    """The mesh dimensions that cut each tensor dimension, left to right."""
    cuts: dict[int, list[int]] = {}
    for m, p in enumerate(placements):
        if p.is_replicate():
            continue
        # is_shard() is false for _StridedShard in some versions
        if not (p.is_shard() or hasattr(p, "split_factor")):
            raise ValueError(f"placement {p} is neither a shard nor a replica")
        dim = p.dim + dims if p.dim < 0 else p.dim
        if not 0 <= dim < dims:
            raise ValueError(f"placement {p} cuts dimension {p.dim} of a tensor that has {dims}")
        cuts.setdefault(dim, []).append(m)
    return cuts


def order_of_cuts(factors: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """The order in which mesh dimensions cut one tensor dimension; None: no order explains the
    factors. factors[i] is the number of shards that later entries had made before entry i cut."""
    order: list[int] = []
    for i in reversed(range(len(factors))):
        shards = [math.prod(sizes[k] for k in order[:n]) for n in range(len(order) + 1)]
        if factors[i] not in shards:
            return None
        order.insert(shards.index(factors[i]), i)
    return order


def runs_of(length: int, factors: Sequence[int], sizes: Sequence[int], at: Sequence[int],
            held: int) -> list[Run]:
    """Indices of one tensor dimension of `length` that a rank holds, in the order of its memory.

    factors, sizes, at: of the mesh dimensions that cut it, left to right: the split factor (1: a
    plain Shard), the size of the mesh dimension, the coordinate of the rank. held: how many
    indices the rank has.

    FSDP2 over tensor parallelism cuts in the order that the factors give, so every rank holds one
    run. distribute_tensor takes placements left to right. The two differ if shards are uneven:
    then `held` decides. Error: ValueError, if neither gives `held` indices.
    """
    order = order_of_cuts(factors, sizes)
    found = []
    if order is not None:
        runs: list[Run] = [(0, length)]
        for i in order:
            runs = chunk(runs, sizes[i], at[i])
        found.append(runs)
    runs = [(0, length)]
    for f, n, k in zip(factors, sizes, at):
        runs = chunk(runs, n, k) if f == 1 else _strided(runs, f, n, k)
    found.append(runs)
    for runs in found:
        if sum(n for _, n in runs) == held:
            return join(runs)
    raise ValueError(f"the rank holds {held} of {length} indices, but its placements give "
                     f"{' or '.join(str(sum(n for _, n in runs)) for runs in found)}")


def pieces(shape: Sequence[int], placements: Sequence[Any], mesh: Sequence[int],
           coordinate: Sequence[int] | None, held: Sequence[int]) -> list[Piece]:
    """The rectangles of a global tensor that one rank holds.

    shape: of the global tensor. placements: one for each mesh dimension. mesh: sizes of the mesh
    dimensions. coordinate: of the rank in the mesh; None: the rank is outside it, and holds
    nothing. held: the shape of the rank's own tensor.
    Error: ValueError for partial and unknown placements, and where `held` does not fit.
    """
    if coordinate is None:
        return []
    cuts = _cuts(placements, len(shape))
    runs = []
    for dim, length in enumerate(shape):
        by = cuts.get(dim, [])
        try:
            runs.append(runs_of(length, [_factor(placements[m]) for m in by],
                                [mesh[m] for m in by], [coordinate[m] for m in by], held[dim]))
        except ValueError as e:
            raise ValueError(f"dimension {dim}: {e}") from None
    local = [list(itertools.accumulate((n for _, n in r), initial=0)) for r in runs]
    out = []
    for at in itertools.product(*(range(len(r)) for r in runs)):
        where = [(r[i], starts[i]) for r, starts, i in zip(runs, local, at)]
        out.append(Piece(tuple(run[0] for run, _ in where), tuple(run[1] for run, _ in where),
                         tuple(start for _, start in where)))
    return out


def whole(shape: Sequence[int]) -> list[Piece]:
    """The one piece of a rank that holds all of a tensor."""
    zeros = (0,) * len(shape)
    return [Piece(zeros, tuple(shape), zeros)]
