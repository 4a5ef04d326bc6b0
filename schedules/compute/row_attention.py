"""Scaled dot-product attention, as it is written down: every row of scores is complete before its softmax is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE, OPERAND_ATTRIBUTE, OUT_AXES_ATTRIBUTE
from tvm_ext.schedules.compute.attention import ELEMENTWISE, SCORES, Step

ROW_ATTENTION = "row_attention"
"""What the block of the second product says of itself."""


def row_attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    others: Sequence[te.Tensor],
    axes: Sequence[Sequence[int]],
    steps: Sequence[Step],
    out_axes: Sequence[int],
    operand: str,
    fixed: Sequence[Sequence[tuple[int, int]]] = ((), (), ()),
) -> te.Tensor:
    """Compute ``softmax(steps(query key)) value``, with sums in float32.

    Parameters
    ----------
    query, key, value : te.Tensor
        Operands in memory; axis ``axes[n][i]`` of operand ``n`` is its logical axis ``i``. Logical shapes are
        ``(..., M, K)``, ``(..., K, T)`` and ``(..., T, N)``, with the same leading axes.
    others : sequence of te.Tensor
        What the steps take besides the scores: masks, biases.
    steps : sequence of Step
        What is done to the scores, of shape ``(..., M, T)`` and float32, in this order.
    out_axes : sequence of int
        For each axis of the result in memory, which logical axis it is.
    operand : str
        Type that the operands of both products are rounded to.
    fixed : sequence of pairs of int
        Of each operand, axes that no logical one is, and the index at which they are read.

    Returns
    -------
    te.Tensor
        Of the type of ``query``.
    """
    places = [[int(axis) for axis in order] for order in axes]
    order = [int(axis) for axis in out_axes]
    batch = [query.shape[axis] for axis in places[0][:-2]]
    rows, depth = (query.shape[axis] for axis in places[0][-2:])
    length, columns = (value.shape[axis] for axis in places[2][-2:])
    k = te.reduce_axis((0, depth), "k")
    scores = te.compute(
        (*batch, rows, length),
        lambda *index: te.sum(
            _element(query, places[0], fixed[0], [*index[:-1], k], operand)
            * _element(key, places[1], fixed[1], [*index[:-2], k, index[-1]], operand),
            k,
        ),
        name="scores",
    )
    for name, arguments in steps:
        scores = ELEMENTWISE[str(name)](*(_argument(argument, scores, others) for argument in arguments))
    logits = te.compute(scores.shape, lambda *index: scores(*index), name="logits")
    n = te.reduce_axis((0, length), "n")
    largest = te.compute((*batch, rows), lambda *index: te.max(logits(*index, n), n), name="largest")
    weights = te.compute(logits.shape, lambda *index: tirx.exp(logits(*index) - largest(*index[:-1])), name="weights")
    n = te.reduce_axis((0, length), "n")
    total = te.compute((*batch, rows), lambda *index: te.sum(weights(*index, n), n), name="total")
    n = te.reduce_axis((0, length), "n")
    result = te.compute(
        (*batch, rows, columns),
        lambda *index: te.sum(
            weights(*index[:-1], n).astype(operand).astype("float32")
            * _element(value, places[2], fixed[2], [*index[:-2], n, index[-1]], operand),
            n,
        ),
        name="result",
        attrs={KERNEL_ATTRIBUTE: ROW_ATTENTION, OPERAND_ATTRIBUTE: operand, OUT_AXES_ATTRIBUTE: order},
    )
    logical = (*batch, rows, columns)

    def store(*index: tirx.Var) -> Any:
        at = [index[order.index(axis)] for axis in range(len(order))]
        return (result(*at) / total(*at[:-1])).astype(query.dtype)

    return te.compute([logical[axis] for axis in order], store, name="store")


def _element(
    tensor: te.Tensor, axes: Sequence[int], fixed: Sequence[tuple[int, int]], index: Sequence[Any], operand: str
) -> Any:
    """Load an element by its logical index, rounded to ``operand``."""
    places = {int(axis): tirx.const(int(place), tensor.shape[int(axis)].ty.dtype) for axis, place in fixed}
    value = tensor(*(places[axis] if axis in places else index[axes.index(axis)] for axis in range(len(tensor.shape))))
    return (value if str(tensor.dtype) == operand else value.astype(operand)).astype("float32")


def _argument(argument: object, scores: te.Tensor, others: Sequence[te.Tensor]) -> te.Tensor:
    if isinstance(argument, float | tirx.FloatImm):
        return te.compute((), lambda: tirx.const(float(argument), "float32"), name="number")
    if int(argument) == SCORES:  # type: ignore[call-overload]
        return scores
    other = others[int(argument)]  # type: ignore[call-overload]
    if str(other.dtype) in ("float32", "bool"):
        return other
    return te.compute(other.shape, lambda *index: other(*index).astype("float32"), name="single")
