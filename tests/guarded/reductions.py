"""Families of reductions and of normalisations around them."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.guarded.cases import Draw, Sample, family

op, nn = relax.op, relax.op.nn


def _axes(draw: Draw, rank: int) -> tuple[int, ...]:
    count = int(draw.random.integers(1, rank + 1))
    return tuple(sorted(int(axis) for axis in draw.random.choice(rank, count, replace=False)))


@family
def reduce(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((1, 2, 3, 4)))
    axes, keep = _axes(draw, len(shape)), bool(draw.random.random() < 0.5)
    name = draw.one(("sum", "mean", "max", "min"))
    dtype = draw.one(("float32", "float32", "float64", "int32")) if name != "mean" else "float32"
    return Sample(
        lambda a: getattr(op, name)(a, list(axes), keep),
        [draw.array(shape, dtype)],
        lambda a: getattr(np, name)(a, axis=axes, keepdims=keep),
    )


@family
def reduce_fused(draw: Draw) -> Sample:
    shape = draw.shape(3)
    axes = _axes(draw, 3)
    return Sample(
        lambda a: op.exp(op.mean(op.square(a), list(axes), True)),
        [draw.array(shape)],
        lambda a: np.exp(np.mean(np.square(a), axis=axes, keepdims=True)),
    )


@family
def reduce_of_slice(draw: Draw) -> Sample:
    rows, columns = draw.one((3, 17, 34)), draw.one((9, 33, 1025))
    begin = draw.one((1, columns - 2, columns - 1))
    return Sample(
        lambda a: op.sum(op.strided_slice(a, [1], [begin], [columns]), [0]),
        [draw.array((rows, columns))],
        lambda a: a[:, begin:].sum(0),
    )


@family
def product_of_elements(draw: Draw) -> Sample:
    shape = draw.shape(2, 4000)
    x = 1 + 0.01 * draw.array(shape)
    return Sample(lambda a: op.prod(a, [1]), [x.astype("float32")], lambda a: a.prod(1), 1e-3)


@family
def arg_extreme(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)))
    axis = int(draw.random.integers(len(shape)))
    name = draw.one(("argmax", "argmin"))
    x = draw.random.permutation(int(np.prod(shape))).reshape(shape).astype(draw.one(("float32", "int32")))
    return Sample(lambda a: getattr(op, name)(a, axis), [x], lambda a: getattr(np, name)(a, axis), 0.0)


@family
def two_results(draw: Draw) -> Sample:
    shape = draw.shape(2)
    return Sample(
        lambda a: relax.Tuple([op.max(a, [1]), op.sum(op.exp(a), [1]), a * relax.const(2, "float32")]),
        [draw.array(shape)],
        lambda a: [a.max(1), np.exp(a).sum(1), a * 2],
    )


@family
def variance(draw: Draw) -> Sample:
    shape = draw.shape(3)
    axes = _axes(draw, 3)
    return Sample(
        lambda a: op.variance(a, list(axes), True), [draw.array(shape)], lambda a: a.var(axis=axes, keepdims=True)
    )


@family
def cumulative_sum(draw: Draw) -> Sample:
    shape = draw.shape(2, 9000)
    axis = draw.one((0, 1))
    return Sample(lambda a: op.cumsum(a, axis), [draw.array(shape)], lambda a: a.cumsum(axis))


@family
def large_rows(draw: Draw) -> Sample:
    """More than the L2 cache holds: each row is fetched while the one before is computed with."""
    x = draw.array((draw.one((1025, 4099)), draw.one((257, 1030))))
    return Sample(
        lambda a: nn.softmax(a, -1),
        [x],
        lambda a: np.exp(a - a.max(-1, keepdims=True)) / np.exp(a - a.max(-1, keepdims=True)).sum(-1, keepdims=True),
    )


@family
def softmax(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)))
    axis = int(draw.random.integers(len(shape)))
    logarithmic = bool(draw.random.random() < 0.3)

    def expected(a: np.ndarray) -> np.ndarray:
        e = np.exp(a - a.max(axis, keepdims=True))
        result = e / e.sum(axis, keepdims=True)
        return np.log(result) if logarithmic else result

    call = nn.log_softmax if logarithmic else nn.softmax
    return Sample(lambda a: call(a, axis), [draw.array(shape)], expected)


@family
def softmax_masked(draw: Draw) -> Sample:
    heads, rows, columns = draw.one((1, 3)), draw.one((1, 7, 17)), draw.one((1, 9, 31, 65))

    def expected(a: np.ndarray, m: np.ndarray) -> np.ndarray:
        e = np.exp(a / 4 + m - (a / 4 + m).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return Sample(
        lambda a, m: nn.softmax(a / relax.const(4, "float32") + m, -1),
        [draw.array((heads, rows, columns)), draw.array((rows, columns))],
        expected,
    )


def _normalised(a: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5)


@family
def layer_norm(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)))
    gamma, beta = draw.array(shape[-1:]), draw.array(shape[-1:])
    return Sample(
        lambda a, g, b: nn.layer_norm(a, g, b, axes=[-1]),
        [draw.array(shape), gamma, beta],
        lambda a, g, b: _normalised(a, (-1,)) * g + b,
        2e-3,
    )


@family
def rms_norm(draw: Draw) -> Sample:
    shape = draw.shape(2)
    return Sample(
        lambda a, g: nn.rms_norm(a, g, axes=[-1]),
        [draw.array(shape), draw.array(shape[-1:])],
        lambda a, g: a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5) * g,
        2e-3,
    )


@family
def group_norm(draw: Draw) -> Sample:
    groups = draw.one((1, 2, 3))
    channels = groups * draw.one((1, 3, 8))
    shape = (draw.one((1, 2)), channels, draw.one((1, 7, 17)), draw.one((1, 3, 33)))

    def expected(a: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
        split = a.reshape(shape[0], groups, -1)
        return _normalised(split, (2,)).reshape(shape) * g[:, None, None] + b[:, None, None]

    return Sample(
        lambda a, g, b: nn.group_norm(a, g, b, num_groups=groups, channel_axis=1, axes=[2, 3]),
        [draw.array(shape), draw.array((channels,)), draw.array((channels,))],
        expected,
        2e-3,
    )


@family
def sort_rows(draw: Draw) -> Sample:
    shape = draw.shape(2, 4000)
    axis = draw.one((0, 1))
    return Sample(lambda a: op.sort(a, axis), [draw.array(shape)], lambda a: np.sort(a, axis), 0.0)


@family
def top_k(draw: Draw) -> Sample:
    shape = draw.shape(2, 4000)
    k = min(shape[1], draw.one((1, 3, 7)))
    x = draw.random.permutation(int(np.prod(shape))).reshape(shape).astype("float32")
    return Sample(
        lambda a: op.topk(a, k, 1, ret_type="values", largest=True),
        [x],
        lambda a: -np.sort(-a, 1)[:, :k],
        0.0,
    )
