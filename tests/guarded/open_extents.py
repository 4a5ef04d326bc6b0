"""Families of graphs whose extents are known only when they run."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.guarded.cases import Draw, Sample, family

op, nn = relax.op, relax.op.nn


@family
def open_elementwise(draw: Draw) -> Sample:
    shape = draw.shape(2)
    axes = draw.one(([(0, "n")], [(1, "m")], [(0, "n"), (1, "m")]))
    return Sample(
        lambda a, b: nn.relu(a * b) + op.exp(a),
        [draw.array(shape), draw.array(shape[1:])],
        lambda a, b: np.maximum(a * b, 0) + np.exp(a),
        open_axes=[axes, [(0, name) for axis, name in axes if axis == 1]],
    )


@family
def open_slice(draw: Draw) -> Sample:
    rows, columns = draw.one((1, 3, 17, 34)), draw.one((9, 33, 1025))
    begin, step = draw.one((0, 1, columns - 1)), draw.one((1, 2, 3))
    return Sample(
        lambda a: op.exp(op.strided_slice(a, [1], [begin], [columns], [step])),
        [draw.array((rows, columns))],
        lambda a: np.exp(a[:, begin::step]),
        open_axes=[[(0, "n")]],
    )


@family
def open_concatenate(draw: Draw) -> Sample:
    rows = draw.one((1, 3, 17))
    first, second = (draw.array((rows, draw.one((1, 7, 17, 33)))) for _ in range(2))
    return Sample(
        lambda a, b: op.exp(op.concat([a, b], 1)),
        [first, second],
        lambda a, b: np.exp(np.concatenate([a, b], 1)),
        open_axes=[[(0, "n")], [(0, "n")]],
    )


@family
def open_pad(draw: Draw) -> Sample:
    shape = draw.shape(2, 9000)
    return Sample(
        lambda a: op.exp(nn.pad(a, [0, 0, 1, 2])),
        [draw.array(shape)],
        lambda a: np.exp(np.pad(a, [(0, 0), (1, 2)])),
        open_axes=[draw.one(([(0, "n")], [(0, "n"), (1, "m")]))],
    )


@family
def open_reduce(draw: Draw) -> Sample:
    shape = draw.shape(2)
    return Sample(
        lambda a: op.exp(op.mean(a, [1], True)),
        [draw.array(shape)],
        lambda a: np.exp(a.mean(1, keepdims=True)),
        open_axes=[draw.one(([(0, "n")], [(0, "n"), (1, "m")]))],
    )


@family
def open_softmax(draw: Draw) -> Sample:
    shape = draw.shape(2)

    def expected(a: np.ndarray) -> np.ndarray:
        e = np.exp(a - a.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return Sample(lambda a: nn.softmax(a, -1), [draw.array(shape)], expected, open_axes=[[(0, "n")]])


@family
def open_take(draw: Draw) -> Sample:
    rows, width, count = draw.one((3, 17)), draw.one((1, 7, 33)), draw.one((1, 3, 17))
    return Sample(
        lambda a, i: op.exp(op.take(a, i, 0)),
        [draw.array((rows, width)), draw.indices((count,), rows)],
        lambda a, i: np.exp(a[i]),
        open_axes=[[(0, "n")], [(0, "k")]],
    )


@family
def open_matmul(draw: Draw) -> Sample:
    rows, k, columns = draw.one((1, 3, 17)), draw.one((1, 7, 33)), draw.one((1, 9, 33))
    return Sample(
        lambda a, b: nn.relu(op.matmul(a, b)),
        [draw.array((rows, k)), draw.array((k, columns))],
        lambda a, b: np.maximum(a @ b, 0),
        1e-3,
        open_axes=[[(0, "n")], []],
    )
