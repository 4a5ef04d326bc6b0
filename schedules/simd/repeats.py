"""Rows that repeat a shorter one many times, as those of ``Tile``: where they are divided, and pieces lie in order."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.pieces import MOST_PIECES
from tvm_ext.schedules.simd.widen import uses

LONGEST = 8
"""Vectors into which copies of a row that does not fill vectors are joined at most."""


def repeated_rows(block: Any, lanes: int) -> int:
    """Give the length of pieces of the last axis in which what a block reads lies in order.

    before: ``for i in range(165): y[i] = x[i % 33]``
    after:  ``for k in range(5): for i in range(33): y[33 * k + i] = x[i]``

    Rows that are shorter than a vector are taken together: what they load one by one stays the same for all pieces.

    Parameters
    ----------
    block : tvm.s_tir.SBlock
        A data-parallel one.
    lanes : int
        Of vectors.

    Returns
    -------
    int
        0 where nothing is repeated, or so few times that the row is cut into loops of its own
        (see :mod:`tvm_ext.schedules.simd.pieces`), or rows cannot be taken together.
    """
    axis = block.iter_vars[-1]
    variable, extent = axis.var, axis.dom.extent
    found: set[int] = set()
    in_order: list[bool] = []

    def index(part: Any) -> None:
        if isinstance(part, prim.FloorMod) and part.a.same_as(variable) and isinstance(part.b, prim.IntImm):
            found.add(int(part.b))
        else:
            in_order.append(part.same_as(variable) or not uses(part, variable))

    def load(node: Any) -> None:
        for part in node.indices:
            index(part)

    tvm_ffi.structural_walk(block.body, [(tvm.ir.TensorLoad, load)])
    if len(found) != 1 or not all(in_order) or not isinstance(extent, prim.IntImm):
        return 0
    size = found.pop()
    copies = int(extent) // size if size > 1 and int(extent) % size == 0 else 0
    if copies < MOST_PIECES:
        return 0
    if size >= lanes:
        return size
    joined = [count for count in range(2, copies + 1) if copies % count == 0 and size * count <= LONGEST * lanes]
    joined = [count for count in joined if size * count >= lanes]
    whole = [count for count in joined if size * count % lanes == 0]
    return size * max(whole or joined, default=0)
