"""Leaves out what a transposed convolution would multiply by zeros: taps that a phase of the stride does not have.

before: ``for kh in range(2): ... sums[a] += x[h + kh] * w[a, kh]``, with zeros where phase ``a`` has no tap ``kh``
after:  ``for kh in range(2): if a != 0 or kh != 1: ...``

All phases have windows of one size, so that they are one kernel. Of 3 x 3 taps at a stride of 2, seven of 16 places
are empty. The condition stands outside the loops of a register tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.annotations import ABSENT_TAPS_ATTRIBUTE

# Axes of the weights. The others are those whose loops may hold what is true of all taps, as there is only one.
_PHASES, _TAPS, _OTHERS = (0, 1), (4, 5), (3, 6)


def without_absent_taps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Guard the loops over taps of a scheduled kernel that says which are absent; other kernels are left alone."""
    conditions: dict[Any, list[Any]] = {}

    def note(realize: Any) -> None:
        absent = realize.block.annotations.get(ABSENT_TAPS_ATTRIBUTE)
        if absent is not None and realize.block.reads:
            for loop_var, condition in _conditions(realize, absent):
                conditions.setdefault(loop_var, []).append(condition)

    tvm_ffi.structural_walk(func.body, [(tvm.s_tir.SBlockRealize, note)])
    if not conditions:
        return func

    def guard(loop: Any, mutator: Any) -> Any:
        guards = conditions.get(loop.loop_var)
        loop = mutator.default_mutate(loop)
        if guards is None:
            return loop
        body = tirx.IfThenElse(_all(guards), loop.body, None)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, guard)]))


def _conditions(realize: Any, absent: Sequence[Sequence[int]]) -> Iterator[tuple[Any, Any]]:
    """Give variables of loops, and when their iterations have a tap; ``absent`` is of pairs of phase and tap."""
    values = {bound.var: value for bound, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    # A window of one tap and a stride of one leave numbers where others have variables.
    weights = [values.get(place.min, place.min) for place in realize.block.reads[-1].region]
    for pairs, phase_axis, tap_axis in zip(absent, _PHASES, _TAPS, strict=True):
        phase, tap = weights[phase_axis], weights[tap_axis]
        loop_var = next((weights[axis] for axis in (tap_axis, *_OTHERS) if isinstance(weights[axis], tvm.ir.Var)), None)
        if not pairs or loop_var is None:
            continue
        numbers = [int(number) for number in pairs]
        for at, place in zip(numbers[::2], numbers[1::2], strict=True):
            yield loop_var, prim.Or(prim.NE(phase, _like(at, phase)), prim.NE(tap, _like(place, tap)))


def _all(conditions: Sequence[Any]) -> Any:
    result = conditions[0]
    for condition in conditions[1:]:
        result = prim.And(result, condition)
    return result


def _like(number: int, index: Any) -> Any:
    return tirx.const(number, str(index.ty.dtype))
