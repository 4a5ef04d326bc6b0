"""In which order, and in how many instructions, the steps of a product run.

Three things matter. What is multiplied with padding adds nothing, so that those steps are left out. What is left is cut
into parts that fold into the hardware's loops: places of the window that are seen by the same rows of outputs go
together. And a step must not accumulate into what one of the two before it wrote, as some hardware has not finished
by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.timing.costs import PIPELINE

Table = NDArray[np.int64]
Mask = NDArray[np.bool_]


def product_steps(parts: Sequence[Table], keep: Mask, zeros: Mask | None) -> list[Table]:
    """List the steps of a product, those of each instruction by themselves.

    Parameters
    ----------
    parts : sequence of NDArray[np.int64]
        Indices of accumulators, inputs and weights, each of the shape of the loops, in their order.
    keep : NDArray[np.bool_]
        Steps that are meant, of the same shape.
    zeros : NDArray[np.bool_], optional
        Inputs that are zero.

    Returns
    -------
    list of NDArray[np.int64]
        Tables [steps, 3]. No table has a step that writes what one of the two before it wrote.
    """
    every = _parts(parts, keep)
    if zeros is None:
        return every
    # Steps that are not meant, as those beyond the end of an axis, may have indices beyond those of the tile.
    adds_nothing = keep & zeros[np.where(keep, parts[1], 0)]
    if not adds_nothing.any():
        return every
    fewer = _parts(parts, keep & ~adds_nothing)
    return min(fewer, every, key=lambda tables: sum(len(table) + PIPELINE for table in tables))


def _parts(parts: Sequence[Table], keep: Mask) -> list[Table]:
    """Cut a product into tables; one whose steps come too soon after each other is listed in another order."""
    walks = [_walks(parts[0], axis) for axis in range(keep.ndim)]
    leading = list(itertools.takewhile(walks.__getitem__, range(keep.ndim)))
    summed = [axis for axis in range(keep.ndim) if not walks[axis]]
    tables = []
    for turns in itertools.product(*(_classes(keep, axis, leading) for axis in summed)):
        chosen = np.zeros(keep.shape, bool)
        chosen[np.ix_(*_turns(keep.shape, summed, turns))] = True
        chosen &= keep
        if chosen.any():
            tables.append(_listed(parts, chosen, range(keep.ndim)))
    if not any(map(_too_soon, tables)):
        return tables
    outputs = [axis for axis in range(keep.ndim) if walks[axis]]
    tables = []
    for turns in itertools.product(*(_classes(keep, axis, outputs) for axis in summed)):
        chosen = np.zeros(keep.shape, bool)
        chosen[np.ix_(*_turns(keep.shape, summed, turns))] = True
        chosen &= keep
        if chosen.any():
            tables += _in_time(_listed(parts, chosen, [*summed, *outputs]))
    return tables


def _walks(accumulators: Table, axis: int) -> bool:
    """Whether a loop walks over outputs; one that does not is summed over."""
    return bool((np.take(accumulators, [0], axis) != accumulators).any())


def _classes(keep: Mask, axis: int, seen_by: Sequence[int]) -> list[list[int]]:
    """Sort the turns of a summed loop by the turns of other loops for which they have steps."""
    others = tuple(other for other in range(keep.ndim) if other != axis and other not in seen_by)
    seen = np.asarray(keep.any(axis=others, keepdims=True))
    rows = np.moveaxis(seen, axis, 0).reshape(keep.shape[axis], -1)
    found: dict[bytes, list[int]] = {}
    for turn, row in enumerate(rows):
        if row.any():
            found.setdefault(row.tobytes(), []).append(turn)
    return list(found.values())


def _turns(shape: Sequence[int], summed: Sequence[int], turns: Sequence[list[int]]) -> list[list[int]]:
    chosen = dict(zip(summed, turns, strict=True))
    return [chosen.get(axis, list(range(extent))) for axis, extent in enumerate(shape)]


def _listed(parts: Sequence[Table], keep: Mask, axes: Sequence[int]) -> Table:
    """List steps in the order of some axes, the first one outermost."""
    mask = keep.transpose(axes)
    return np.stack([part.transpose(axes)[mask] for part in parts], axis=-1).reshape(-1, 3)


def _too_soon(steps: Table) -> bool:
    """Whether a step writes what one of the two before it wrote."""
    dst = steps[:, 0]
    return bool((dst[1:] == dst[:-1]).any() or (dst[2:] == dst[:-2]).any())


def _in_time(steps: Table) -> list[Table]:
    """Cut steps where a step would come too soon; between two instructions there is time."""
    if not _too_soon(steps):
        return [steps]
    cuts, begin = [], 0
    dst = steps[:, 0].tolist()
    for at in range(1, len(dst)):
        if dst[at] in dst[max(begin, at - 2) : at]:
            cuts.append(at)
            begin = at
    return np.split(steps, cuts)
