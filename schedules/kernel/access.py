"""How a block walks over the tensors it touches: the stride of each of its axes, read off the index expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm, IterVar


@dataclass(frozen=True)
class Access:
    """One tensor that a block reads or writes.

    Attributes
    ----------
    buffer : tvm.tirx.Buffer
    written : bool
        Whether the block writes it.
    strides : tuple of int or None, or None
        Elements between neighbours along each axis of the block; None for an axis along which they are not evenly
        spaced, and None altogether when the address depends on data.
    """

    buffer: Any
    written: bool
    strides: tuple[int | None, ...] | None

    def meets_elements_once(self, extents: Sequence[int | None]) -> bool:
        """Whether no element of the tensor belongs to two points of axes of these extents, as far as strides tell."""
        if self.strides is None:
            return False
        reach = 1
        walking = [(stride, extent) for stride, extent in zip(self.strides, extents, strict=True) if extent != 1]
        if any(stride is None or extent is None for stride, extent in walking):
            return False
        for stride, extent in sorted((abs(stride or 0), extent or 1) for stride, extent in walking):
            if stride < reach:
                return False
            reach = stride * extent
        return True


@dataclass(frozen=True)
class Axes:
    """The axes of a block: extents (None where symbolic), which of them reduce, and the tensors walked over."""

    extents: tuple[int | None, ...]
    reduces: tuple[bool, ...]
    accesses: tuple[Access, ...]

    def flat(self, first: int, last: int) -> bool:
        """Whether axes ``first`` to ``last`` walk every tensor as one axis would, or not at all."""
        extents = self.extents[first : last + 1]
        for access in self.accesses:
            if access.strides is None:
                return False
            strides = access.strides[first : last + 1]
            if any(stride is None for stride in strides) or any(extent is None for extent in extents[1:]):
                return False
            # Walking on along the outer axis must continue where the inner axis ends; a unit axis never walks.
            expected = None
            for stride, extent in zip(reversed(strides), reversed(extents), strict=True):
                if extent == 1:
                    continue
                if expected is not None and stride != expected:
                    return False
                expected = stride * extent if extent is not None else 0  # type: ignore[operator]
        return True

    def flat_suffix(self) -> int:
        """Count the last axes that walk every tensor as one axis would, or not at all; at least one."""
        last = len(self.extents) - 1
        return next((count for count in range(1, last + 1) if not self.flat(last - count, last)), last + 1)


def axes_of(schedule: Schedule, block: SBlockRV) -> Axes:
    """Read the axes of a block off its iteration variables and its reads and writes."""
    body = schedule.get(block)
    analyzer = tvm.sym.Analyzer()
    for iter_var in body.iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)
    variables = [iter_var.var for iter_var in body.iter_vars]
    extents = tuple(_constant(iter_var.dom.extent) for iter_var in body.iter_vars)
    reduces = tuple(int(iter_var.iter_type) == IterVar.CommReduce for iter_var in body.iter_vars)
    accesses = tuple(
        Access(region.source, written, _strides(region, variables, extents, analyzer))
        for regions, written in ((body.reads, False), (body.writes, True))
        for region in regions
    )
    return Axes(extents, reduces, accesses)


def _strides(
    region: Any, variables: Sequence[Any], extents: Sequence[int | None], analyzer: Any
) -> tuple[int | None, ...] | None:
    if not all(analyzer.can_prove_equal(item.extent, 1) for item in region.region):
        return None
    address: Any = None
    for item, size in zip(region.region, region.source.shape, strict=True):
        address = item.min if address is None else address * size + item.min
    if address is None:
        return (0,) * len(variables)
    address = analyzer.simplify(address)
    used = tvm.tirx.analysis.undefined_vars(address)
    strides: list[int | None] = []
    for variable, extent in zip(variables, extents, strict=True):
        if extent == 1 or not any(variable.same_as(found) for found in used):
            strides.append(0)
            continue
        found = tvm.sym.detect_linear_equation(address, [variable])
        if len(found) != 2 or any(variable.same_as(v) for v in tvm.tirx.analysis.undefined_vars(found[1])):
            strides.append(None)
        else:
            stride = analyzer.simplify(found[0])
            strides.append(int(stride) if isinstance(stride, prim.IntImm) else None)
    return tuple(strides)


def _constant(extent: Any) -> int | None:
    return int(extent) if isinstance(extent, IntImm) else None
