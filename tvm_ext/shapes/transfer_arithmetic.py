"""Transfer functions of the arithmetic on small integer tensors that shapes are made of.

Values are followed as expressions. A comparison is known where the ranges of the symbols settle it; whatever becomes a
float is followed as long as it is a number, in its own precision: ``0.7 * 10`` is 7 in float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeGuard

import numpy as np

from tvm_ext.graph.symbolic import Dim, Symbolic
from tvm_ext.shapes.lattice import (
    ANYTHING,
    NOT_CONSTANT,
    UNKNOWN,
    Fact,
    array_of,
    dim_of,
    is_dim,
    is_extreme,
    is_float,
)
from tvm_ext.shapes.transfer import Step, Transfer, broadcast, larger, of_shape, small_shape, smaller, with_value
from tvm_ext.shapes.transfer_forms import divided_exactly

_INTEGERS = (6, 7, 12, 13)  # TensorProto: int32, int64, uint32, uint64
_FLOATS: dict[int, Callable[[Any], Any]] = {1: np.float32, 11: np.float64}


def reduction(step: Step) -> list[Fact]:
    """``ReduceSum`` and its like, the axes as an input or attribute."""
    data, named = step.dims(0), "axes" in step.operator.attributes or step.given(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    axes, keeps = step.numbers(1, "axes"), step.attribute("keepdims", 1)
    if data is None:
        return [ANYTHING]
    if named and axes is None:
        return of_shape((NOT_CONSTANT,) * len(data) if keeps else NOT_CONSTANT)
    if not axes:
        if step.attribute("noop_with_empty_axes", 0):
            return [Fact(tuple(data), step.fact(0).value)]
        axes = list(range(len(data)))
    gone = {axis % len(data) for axis in axes} if data else set()
    dims = [1 if axis in gone else dim for axis, dim in enumerate(data) if keeps or axis not in gone]
    value, combine = step.fact(0).value, _REDUCED.get(step.operator.kind)
    if isinstance(value, np.ndarray) and combine is not None and len(gone) == value.ndim and value.size:
        if any(map(is_float, value.ravel())):  # in which order they are added is not said
            return of_shape(tuple(dims))
        total = reduce(lambda a, b: combine(step, a, b), value.ravel())
        return with_value(array_of([total], tuple(int(dim) for dim in dims)))  # type: ignore[arg-type]
    return of_shape(tuple(dims))


_REDUCED: dict[str, Callable[[Step, Any, Any], Any]] = {
    "ReduceMax": larger,
    "ReduceMin": smaller,
    "ReduceProd": lambda _step, a, b: a * b,
    "ReduceSum": lambda _step, a, b: a + b,
}


def cast(step: Step) -> list[Fact]:
    """``Cast``: values stay what they are between integers; an expression is not followed into floats."""
    fact, to = step.fact(0), step.attribute("to", 0)
    if not isinstance(fact.value, np.ndarray):
        return [fact]
    if to in _INTEGERS:
        return [Fact(fact.shape, _each(fact.value, lambda item: item if is_dim(item) else _truncated(item)))]
    if to in _FLOATS:
        return [
            Fact(fact.shape, _each(fact.value, lambda item: _FLOATS[to](item) if _is_number(item) else NOT_CONSTANT))
        ]
    return of_shape(fact.shape)


def rounding(function: Callable[[Any], Any]) -> Transfer:
    """Make the transfer function of ``Floor``, ``Ceil`` or ``Round``."""

    def transfer(step: Step) -> list[Fact]:
        fact = step.fact(0)
        if not isinstance(fact.value, np.ndarray):
            return [fact]
        known = _each(fact.value, lambda item: type(item)(function(item)) if _is_finite(item) else NOT_CONSTANT)
        return [Fact(fact.shape, known)]

    return transfer


def _each(array: np.ndarray, compute: Callable[[Any], Any]) -> np.ndarray:
    return array_of([compute(item) for item in array.ravel()], array.shape)


def _is_number(item: object) -> bool:
    return isinstance(item, int | float | np.integer | np.floating) and not isinstance(item, bool)


def _truncated(item: object) -> Any:
    if isinstance(item, bool | np.bool_):
        return int(item)
    return int(item) if _is_finite(item) else NOT_CONSTANT


def _is_finite(item: object) -> TypeGuard[float | np.floating]:
    return is_float(item) and math.isfinite(item)


def where(step: Step) -> list[Fact]:
    """``Where``, by a condition that is known."""
    shapes = [step.shape(position) for position in range(3)]
    values = [step.fact(position).value for position in range(3)]
    result = broadcast(step, shapes)
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    known = small_shape(result)
    if len(arrays) < 3 or known is None:
        return of_shape(result)
    condition, yes, no = (np.broadcast_to(array, known).ravel() for array in arrays)
    chosen = [_chosen(*row) for row in zip(condition, yes, no, strict=True)]
    return with_value(array_of(chosen, known))


def _chosen(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, int | bool | np.bool_ | np.integer):
        return yes if condition else no
    return yes if not is_extreme(yes) and not is_extreme(no) and yes == no else NOT_CONSTANT


def elementwise(compute: Callable[..., Any]) -> Transfer:
    """Make the transfer function of an element-wise operator that computes with values."""

    def transfer(step: Step) -> list[Fact]:
        positions = [position for position, name in enumerate(step.operator.inputs) if name]
        result = broadcast(step, [step.shape(position) for position in positions])
        arrays = [value for position in positions if isinstance(value := step.fact(position).value, np.ndarray)]
        known = small_shape(result)
        if len(arrays) < len(positions) or known is None:
            return of_shape(result)
        rows = zip(*(np.broadcast_to(array, known).ravel() for array in arrays), strict=True)
        with np.errstate(all="ignore"):
            return with_value(array_of([compute(step, *row) for row in rows], known))

    return transfer


def _plain(combine: Callable[..., Any]) -> Callable[..., Any]:
    def compute(_step: Step, *items: Any) -> Any:
        floats = any(map(is_float, items))
        if any(map(is_extreme, items)) or (floats and any(isinstance(item, Symbolic) for item in items)):
            return NOT_CONSTANT
        return combine(*items)

    return compute


def _divided(step: Step, left: Any, right: Any) -> Any:
    if is_float(left) and is_float(right) and right:
        return left / right
    if not is_dim(left) or not is_dim(right):
        return NOT_CONSTANT
    a, b = dim_of(left), dim_of(right)
    if not step.at_least(b, 1) or not step.at_least(a, 0):
        return NOT_CONSTANT
    return divided_exactly(a, b) if isinstance(b, Symbolic) else a // b


def _remainder(step: Step, left: Any, right: Any) -> Any:
    if not is_dim(left) or not is_dim(right) or not step.at_least(right, 1) or not step.at_least(left, 0):
        return NOT_CONSTANT
    return dim_of(left) % dim_of(right)


def _compared(true_from: Callable[[Step, Dim], bool], false_from: Callable[[Step, Dim], bool]) -> Callable[..., Any]:
    """Make a comparison of sizes by their difference; not constant where it depends on the symbols."""

    def compare(step: Step, left: Any, right: Any) -> Any:
        if isinstance(left, bool | np.bool_) and isinstance(right, bool | np.bool_):
            left, right = int(left), int(right)
        if not is_dim(left) or not is_dim(right):
            return NOT_CONSTANT
        apart = dim_of(left) - dim_of(right)
        return True if true_from(step, apart) else False if false_from(step, apart) else NOT_CONSTANT

    return compare


def _is_zero(step: Step, apart: Dim) -> bool:
    return isinstance(apart, int) and apart == 0


def _is_not_zero(step: Step, apart: Dim) -> bool:
    return step.at_least(apart, 1) or step.at_most(apart, -1)


def _logical(combine: Callable[[bool, bool], bool]) -> Callable[..., Any]:
    def compute(_step: Step, left: Any, right: Any) -> Any:
        return combine(bool(left), bool(right)) if not is_extreme(left) and not is_extreme(right) else NOT_CONSTANT

    return compute


TRANSFERS: dict[str, Transfer] = {
    "Abs": elementwise(lambda step, item: item if step.at_least(item, 0) else NOT_CONSTANT),
    "Add": elementwise(_plain(operator.add)),
    "And": elementwise(_logical(lambda a, b: a and b)),
    "Cast": cast,
    "Ceil": rounding(math.ceil),
    "Div": elementwise(_divided),
    "Equal": elementwise(_compared(_is_zero, _is_not_zero)),
    "Floor": rounding(math.floor),
    "Greater": elementwise(_compared(lambda s, d: s.at_least(d, 1), lambda s, d: s.at_most(d, 0))),
    "GreaterOrEqual": elementwise(_compared(lambda s, d: s.at_least(d, 0), lambda s, d: s.at_most(d, -1))),
    "Identity": lambda step: [step.fact(0)],
    "Less": elementwise(_compared(lambda s, d: s.at_most(d, -1), lambda s, d: s.at_least(d, 0))),
    "LessOrEqual": elementwise(_compared(lambda s, d: s.at_most(d, 0), lambda s, d: s.at_least(d, 1))),
    "Max": elementwise(lambda step, *items: reduce(lambda a, b: larger(step, a, b), items)),
    "Min": elementwise(lambda step, *items: reduce(lambda a, b: smaller(step, a, b), items)),
    "Mod": elementwise(_remainder),
    "Mul": elementwise(_plain(operator.mul)),
    "Neg": elementwise(_plain(operator.neg)),
    "Not": elementwise(_plain(lambda item: not item)),
    "Or": elementwise(_logical(lambda a, b: a or b)),
    "Round": rounding(lambda item: float(np.rint(item))),
    "Sub": elementwise(_plain(operator.sub)),
    "Where": where,
    **dict.fromkeys(
        """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare""".split(),
        reduction,
    ),
}
