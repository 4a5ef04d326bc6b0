"""Backward transfer functions: what the shapes of an operator's outputs say of inputs that nothing is known of.

Each takes a :class:`~tvm_ext.shapes.transfer.Step` and the facts of the outputs, and gives shapes by input position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm_ext.shapes.lattice import NOT_CONSTANT, Element, Fact, Shape, is_extreme
from tvm_ext.shapes.transfer import Step
from tvm_ext.shapes.transfer_shapes import SAME_SHAPE

Backward = Callable[[Step, Sequence[Fact]], Mapping[int, Shape]]


def _same(step: Step, outputs: Sequence[Fact]) -> Mapping[int, Shape]:
    return {0: outputs[0].shape}


def _transposed(step: Step, outputs: Sequence[Fact]) -> Mapping[int, Shape]:
    dims = outputs[0].shape
    if not isinstance(dims, tuple):
        return {}
    order = step.attribute("perm", None) or list(range(len(dims)))[::-1]
    before: list[Element] = [NOT_CONSTANT] * len(dims)
    for place, axis in enumerate(order):
        before[axis] = dims[place]
    return {0: tuple(before)}


def _multiplied(step: Step, outputs: Sequence[Fact]) -> Mapping[int, Shape]:
    """Find the left operand of a product with a matrix of weights."""
    dims, weight = outputs[0].shape, step.dims(1)
    if not isinstance(dims, tuple) or weight is None or len(weight) != 2 or not dims:
        return {}
    return {0: (*dims[:-1], weight[0])}


def _broadcast(step: Step, outputs: Sequence[Fact]) -> Mapping[int, Shape]:
    """Find an operand where the others are scalars: each dimension is its own then."""
    dims = outputs[0].shape
    if not isinstance(dims, tuple):
        return {}
    unknown = [position for position in range(len(step.operator.inputs)) if step.dims(position) is None]
    others = [step.dims(position) for position in range(len(step.operator.inputs)) if position not in unknown]
    if len(unknown) != 1 or any(other is None or any(dim != 1 for dim in other) for other in others):
        return {}
    return {unknown[0]: dims} if all(len(other or ()) <= len(dims) for other in others) and not any(others) else {}


def _gathered(step: Step, outputs: Sequence[Fact]) -> Mapping[int, Shape]:
    """Find the indices of a look-up in a table."""
    dims, table = outputs[0].shape, step.dims(0)
    if not isinstance(dims, tuple) or table is None or step.attribute("axis", 0) != 0:
        return {}
    kept = len(dims) - (len(table) - 1)
    return {1: dims[:kept]} if kept >= 0 and not any(map(is_extreme, dims[:kept])) else {}


BACKWARD: Mapping[str, Backward] = {
    **dict.fromkeys((name for name in SAME_SHAPE if name not in ("EyeLike",)), _same),
    **dict.fromkeys(("Add", "Div", "Mul", "Pow", "Sub"), _broadcast),
    "Gather": _gathered,
    "MatMul": _multiplied,
    "Transpose": _transposed,
}
"""By operator; one without says nothing backward."""
