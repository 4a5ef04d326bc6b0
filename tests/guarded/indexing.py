"""Families of operators whose addresses come from a tensor."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.guarded.cases import Draw, Sample, family

op, nn = relax.op, relax.op.nn


@family
def take(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)), 9000)
    axis = int(draw.random.integers(len(shape)))
    indices = draw.indices(draw.shape(draw.one((1, 2)), 60), shape[axis])
    dtype = draw.one(("float32", "float16", "int64", "int8"))
    return Sample(
        lambda a, i: op.take(a, i, axis),
        [draw.array(shape, dtype), indices],
        lambda a, i: np.take(a, i, axis),
        0.0,
    )


@family
def take_fused(draw: Draw) -> Sample:
    shape = draw.shape(2, 9000)
    axis = draw.one((0, 1))
    return Sample(
        lambda a, i: op.exp(op.take(a, i, axis)) + relax.const(1, "float32"),
        [draw.array(shape), draw.indices((draw.one((1, 3, 7, 17, 33)),), shape[axis])],
        lambda a, i: np.exp(np.take(a, i, axis)) + 1,
    )


@family
def gather_elements(draw: Draw) -> Sample:
    shape = draw.shape(2, 9000)
    axis = draw.one((0, 1))
    wanted = list(shape)
    wanted[axis] = draw.one((1, 3, 7, 17))
    return Sample(
        lambda a, i: op.gather_elements(a, i, axis),
        [draw.array(shape), draw.indices(wanted, shape[axis], "int64")],
        lambda a, i: np.take_along_axis(a, i, axis),
        0.0,
    )


@family
def gather_nd(draw: Draw) -> Sample:
    shape = draw.shape(3, 9000)
    count = draw.one((1, 3, 7, 17))
    indices = np.stack([draw.indices((count,), extent, "int64") for extent in shape[:2]], -1)
    return Sample(
        lambda a, i: op.gather_nd(a, i),
        [draw.array(shape), indices],
        lambda a, i: a[i[:, 0], i[:, 1]],
        0.0,
    )


@family
def scatter_elements(draw: Draw) -> Sample:
    shape = draw.shape(2, 9000)
    axis = draw.one((0, 1))
    indices = np.argsort(draw.random.random(shape), axis).astype("int64")

    def expected(a: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
        result = a.copy()
        np.put_along_axis(result, i, u, axis)
        return result

    return Sample(
        lambda a, i, u: op.scatter_elements(a, i, u, axis),
        [draw.array(shape), indices, draw.array(shape)],
        expected,
        0.0,
    )


@family
def scatter_nd(draw: Draw) -> Sample:
    rows, columns = draw.one((1, 3, 7, 17)), draw.one((1, 5, 9, 33))
    count = min(rows, draw.one((1, 2, 5)))
    indices = draw.random.permutation(rows)[:count].reshape(count, 1).astype("int64")

    def expected(a: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
        result = a.copy()
        result[i[:, 0]] = u
        return result

    return Sample(
        lambda a, i, u: op.scatter_nd(a, i, u),
        [draw.array((rows, columns)), indices, draw.array((count, columns))],
        expected,
        0.0,
    )


@family
def one_hot(draw: Draw) -> Sample:
    depth = draw.one((1, 3, 9, 17))
    indices = draw.indices(draw.shape(draw.one((1, 2)), 300), depth)
    return Sample(
        lambda i: op.one_hot(i, relax.prim_value(1.0), relax.prim_value(0.0), depth, -1),
        [indices],
        lambda i: np.eye(depth, dtype="float32")[i],
        0.0,
    )


@family
def grid_sample(draw: Draw) -> Sample:
    shape = (1, draw.one((1, 3, 17)), draw.one((3, 7)), draw.one((1, 5, 9)))
    grid = (1, 2, draw.one((1, 5, 7)), draw.one((1, 5, 9)))
    x = (1.5 * draw.array(grid)).astype("float32")
    padding = draw.one(("zeros", "border"))
    return Sample(
        lambda a, g: relax.op.image.grid_sample(a, g, method="bilinear", layout="NCHW", padding_mode=padding),
        [draw.array(shape), x],
    )


@family
def embedding_sum(draw: Draw) -> Sample:
    words, width, length = draw.one((3, 17, 65)), draw.one((1, 7, 16, 33)), draw.one((1, 3, 9))
    return Sample(
        lambda a, i: op.sum(op.take(a, i, 0), [1]),
        [draw.array((words, width)), draw.indices((2, length), words)],
        lambda a, i: a[i].sum(1),
    )
