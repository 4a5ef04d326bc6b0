"""Blocks and loops of a kernel that a rule writes, rather than schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE


def written_loop(variable: Any, extent: int, body: Any, lanes: int = 0) -> Any:
    """Make a loop from 0 on; with ``lanes``, one that is to be made of vectors of so many iterations."""
    annotations = {SIMD_ATTRIBUTE: lanes} if lanes else {}
    return tirx.For(variable, number(0), number(extent), tirx.ForKind.SERIAL, body, annotations=annotations)


def written_block(
    name: str, axes: Sequence[Any], values: Sequence[Any], buffer: Any, element: Any, inside: Any = None
) -> Any:
    """Make a block that stores one element, with the values of its axes.

    Parameters
    ----------
    name : str
    axes : sequence of tvm.tirx.IterVar
        One for each dimension of ``buffer``.
    values : sequence of tvm.ir.Expr
    buffer : tvm.tirx.Buffer
    element : tvm.ir.Expr
        In terms of the axes.
    inside : tvm.ir.Expr, optional
        Where the block is run; everywhere by default.
    """
    variables = [axis.var for axis in axes]
    written = [tvm.ir.Range.from_min_extent(variable, number(1)) for variable in variables]
    block = s_tir.SBlock(
        axes, _reads(element), [tirx.BufferRegion(buffer, written)], name, tirx.BufferStore(buffer, element, variables)
    )
    return s_tir.SBlockRealize(values, tirx.const(True, "bool") if inside is None else inside, block)


def written_root(body: Any, buffers: Sequence[Any], root: Any) -> Any:
    """Make the outermost block of a kernel of its loops and its own buffers, in place of ``root``."""
    block = s_tir.SBlock([], [], [], "root", body, None, list(buffers), [], root.annotations)
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)


def data_parallel_axis(extent: Any, variable: Any) -> Any:
    """Make an axis of a block."""
    return tirx.IterVar(from_zero(extent), variable, tirx.IterVar.DataPar)


def from_zero(extent: Any) -> Any:
    """Make the range of an extent."""
    return tvm.ir.Range.from_min_extent(number(0), number(extent) if isinstance(extent, int) else extent)


def number(value: int) -> Any:
    """Make a constant of 64 bits."""
    return tirx.const(value, "int64")


def _reads(value: Any) -> list[Any]:
    """List what an expression reads: of each tensor what lies at the axes, and all along what is computed of them."""
    regions: dict[Any, list[Any]] = {}

    def load(node: Any) -> None:
        ranges = [
            tvm.ir.Range.from_min_extent(index, number(1)) if isinstance(index, tvm.ir.Var) else from_zero(extent)
            for index, extent in zip(node.indices, node.source.ty.shape, strict=True)
        ]
        before = regions.get(node.source)
        regions[node.source] = ranges if before is None else [
            one if one.min.same_as(other.min) else from_zero(extent)
            for one, other, extent in zip(before, ranges, node.source.ty.shape, strict=True)
        ]  # fmt: skip

    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, load)])
    return [tirx.BufferRegion(source, ranges) for source, ranges in regions.items()]
