"""Scaled dot-product attention as one kernel: scores, what is done to them, softmax, weighted sum of the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import te, tirx, topi
from tvm.ir import Expr

from tvm_ext.schedules.annotations import BATCH_AXES_ATTRIBUTE, KERNEL_ATTRIBUTE, OUT_AXES_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS, PAIR, rounded
from tvm_ext.schedules.compute.matmul import (
    Access,
    MatmulShape,
    columns_of,
    flatten,
    multiply,
    multiply_pairs,
    round_up,
    rows_of,
    store,
    unflatten,
)
from tvm_ext.schedules.compute.views import View, viewed

ELEMENTWISE: dict[str, Callable[..., te.Tensor]] = {
    "relax.add": topi.add,
    "relax.subtract": topi.subtract,
    "relax.multiply": topi.multiply,
    "relax.divide": topi.divide,
    "relax.maximum": topi.maximum,
    "relax.minimum": topi.minimum,
    "relax.where": topi.where,
}
"""What may be done to the scores before the softmax."""

SCORES = -1
"""In the arguments of a step: the scores as they are by then."""

Step = tuple[str, tuple[int | float, ...]]
"""An operator of :data:`ELEMENTWISE` and its arguments: :data:`SCORES`, the number of a tensor, or a float."""


def attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    others: Sequence[te.Tensor],
    shapes: Sequence[Sequence[int]],
    axes: Sequence[Sequence[int]],
    steps: Sequence[Step],
    out_axes: Sequence[int],
    tile: Sequence[int],
    lanes: int,
    copy_rows: bool,
    rounds: bool = False,
    zeros: bool = False,
    views: Sequence[View] = ((), (), ()),
    viewed_shapes: Sequence[Sequence[int]] = ((), (), ()),
) -> te.Tensor:
    """Compute ``softmax(steps(query key)) value``.

    Parameters
    ----------
    query, key, value : te.Tensor
        Operands in memory; axis ``axes[n][i]`` of operand ``n`` is its logical axis ``i``.
    others : sequence of te.Tensor
        What the steps take besides the scores: masks, biases.
    shapes : sequence of three sequences of int
        Logical shapes ``(..., M, K)``, ``(..., K, T)`` and ``(..., T, N)``.
    steps : sequence of Step
        What is done to the scores, of shape ``(..., M, T)``, in this order.
    tile : sequence of three int
        Rows of a tile, chunks of scores side by side, chunks of results side by side.
    out_axes, lanes, copy_rows
        See :func:`tvm_ext.schedules.compute.matmul.matmul`; the rows are those of the query.
    rounds : bool
        Whether the operands of both products, of float32, are rounded to bfloat16 and multiplied in pairs; the sums and
        the softmax stay in float32.
    zeros : bool
        Whether the results are zero where the softmax is NaN: of a query, say, that a mask hides all keys of.
    views, viewed_shapes : sequence of three
        What the operands are of the tensors in memory (:mod:`tvm_ext.schedules.compute.views`), and their shapes then.

    Returns
    -------
    te.Tensor
        The transposed result.
    """
    query, key, value = map(viewed, (query, key, value), viewed_shapes, views)
    first = MatmulShape(tuple(map(int, shapes[0])), tuple(map(int, shapes[1])))
    second = MatmulShape(first.out, tuple(map(int, shapes[2])))
    tile_rows, score_chunks, value_chunks = map(int, tile)
    out_axes = [int(axis) for axis in out_axes]
    rows, columns = round_up(first.rows, tile_rows), first.columns
    chunks = round_up(-(-columns // lanes), score_chunks)
    product = _product(
        rows_of(query, first, axes[0], rows, copy_rows or rounds, PAIR if rounds else 1),
        columns_of(key, first, axes[1], chunks, lanes, rounds),
        (first.batch, rows, chunks, lanes),
        first,
        {KERNEL_ATTRIBUTE: "scores"},
        rounds,
    )
    scores = te.compute(
        first.out,
        lambda *index: product[
            flatten(index[: first.batch_axes], first.out[: first.batch_axes]),
            flatten(index[first.batch_axes : -1], first.out[first.batch_axes : -1]),
            index[-1] // lanes,
            index[-1] % lanes,
        ],
        name="scores_in_order",
    )
    for name, arguments in steps:
        given = [_argument(argument, scores, others, str(query.dtype)) for argument in arguments]
        scores = ELEMENTWISE[str(name)](*given)

    def logit(b: tirx.Var, m: tirx.Var, n: tirx.Var) -> Expr:
        index = [
            *unflatten(b, first.out[: first.batch_axes]),
            *unflatten(m, first.out[first.batch_axes : -1]),
            n,
        ]
        value = scores(*index)
        # Rows that fill up the last tile have no place in the masks.
        return value if rows == first.rows else tirx.if_then_else(m < first.rows, value, tirx.const(0, scores.dtype))

    logits = te.compute((first.batch, rows, columns), logit, name="logits", attrs={KERNEL_ATTRIBUTE: "logits"})
    n = te.reduce_axis((0, columns), "n")
    largest = te.compute((first.batch, rows), lambda b, m: te.max(logits[b, m, n], n), name="largest")
    weights = te.compute(
        (first.batch, rows, columns), lambda b, m, n: tirx.exp(logits[b, m, n] - largest[b, m]), name="weights"
    )
    n = te.reduce_axis((0, columns), "n")
    total = te.compute((first.batch, rows), lambda b, m: te.sum(weights[b, m, n], n), name="total")
    chunks = round_up(-(-second.columns // lanes), value_chunks)
    factors = _pair_weights(weights) if rounds else weights
    result = _product(
        lambda b, m, k: factors[b, m, k],
        columns_of(value, second, axes[2], chunks, lanes, rounds),
        (second.batch, rows, chunks, lanes),
        second,
        {
            KERNEL_ATTRIBUTE: "attention",
            OUT_AXES_ATTRIBUTE: out_axes,
            BATCH_AXES_ATTRIBUTE: second.batch_axes,
            TILE_ATTRIBUTE: [tile_rows, score_chunks, value_chunks],
        },
        rounds,
    )

    def weighted(b: tirx.Var, m: tirx.Var, n: tirx.Var) -> Expr:
        mean = result[b, m, n // lanes, n % lanes] / total[b, m]
        return tirx.Select(tirx.isnan(total[b, m]), tirx.const(0, mean.ty.dtype), mean) if zeros else mean

    return store(second, out_axes, weighted)


def _product(
    left: Access,
    right: Access,
    extents: Sequence[int],
    shape: MatmulShape,
    attributes: dict[str, object],
    rounds: bool,
) -> te.Tensor:
    if rounds:
        return multiply_pairs(left, right, extents, shape, attributes)
    return multiply(left, right, extents, shape.reduction, attributes)


def _pair_weights(weights: te.Tensor) -> te.Tensor:
    """Round what the values are weighted with to bfloat16, rows filled up with zeros to whole pairs."""
    batch, rows, columns = (int(extent) for extent in weights.shape)

    def element(b: tirx.Var, m: tirx.Var, n: tirx.Var) -> Expr:
        bits = rounded(weights[b, m, n])
        return bits if columns % PAIR == 0 else tirx.if_then_else(n < columns, bits, tirx.const(0, BITS))

    shape = batch, rows, round_up(columns, PAIR)
    return te.compute(shape, element, name="pair_weights", attrs={KERNEL_ATTRIBUTE: "pair_weights"})


def _argument(argument: object, scores: te.Tensor, others: Sequence[te.Tensor], dtype: str) -> object:
    if isinstance(argument, float | tvm.tirx.FloatImm):
        return te.compute((), lambda: tirx.const(float(argument), dtype), name="number")
    return scores if int(argument) == SCORES else others[int(argument)]  # type: ignore[call-overload]
