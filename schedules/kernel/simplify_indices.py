"""Simplifies the indices of kernels by what is known of their loops.

before: ``y[i, j] = x[(j // 64 + i) % 32, j % 64]`` for ``i < 32`` and ``j < 64``, a reshape of (1, 32, 64) to (32, 64)
after:  ``y[i, j] = x[i, j]``

Reshapes are lowered to arithmetic that is right for any shape. Inside a merged kernel that arithmetic is in the way: a
schedule that computes one operator where the next needs it must find out which elements these are, and where it cannot,
it computes whole rows again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx


def simplify_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel with the indices of what it reads, and the regions that blocks declare to read, made simple.

    Only indices with divisions are touched, and nothing that a block writes: an axis of one element stays an axis.

    Parameters
    ----------
    func : tirx.PrimFunc
        A kernel of blocks, before it is scheduled.

    Returns
    -------
    tirx.PrimFunc
        The same object where nothing is simpler.
    """
    return tvm_ffi.structural_mutate(func, [(s_tir.SBlock, _simplified_block)])


def _simplified_block(block: Any, mutator: Any) -> Any:
    block = mutator.default_mutate(block)
    if not block.iter_vars:
        return block
    analyzer = tvm.sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def simple(source: Any, indices: Sequence[Any]) -> list[Any] | None:
        if any(source.same_as(region.source) for region in block.writes) or not _divides(indices):
            return None
        found = [analyzer.simplify(index) for index in indices]
        return None if all(map(tvm_ffi.structural_equal, found, indices)) else found

    def load(expression: Any, inner: Any) -> Any:
        expression = inner.default_mutate(expression)
        indices = simple(expression.source, expression.indices)
        return expression if indices is None else tirx.BufferLoad(expression.source, indices)

    def region(declared: Any, _inner: Any) -> Any:
        starts = simple(declared.source, [item.min for item in declared.region])
        if starts is None:
            return declared
        extents = [item.extent for item in declared.region]
        ranges = list(map(tvm.ir.Range.from_min_extent, starts, extents))
        return tvm.ir.TensorRegion(declared.source, ranges, declared.ty)

    return tvm_ffi.structural_mutate(block, [(tvm.ir.TensorLoad, load), (tvm.ir.TensorRegion, region)])


def _divides(indices: Sequence[Any]) -> bool:
    def find(_expression: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True)

    return tvm_ffi.structural_walk(list(indices), [((tirx.FloorDiv, tirx.FloorMod), find)]) is not None
