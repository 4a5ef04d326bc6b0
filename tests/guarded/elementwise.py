"""Families of data-parallel operators: arithmetic, slices, transposes, concatenations, padding, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tests.guarded.cases import FLOATS, INTEGERS, Draw, Sample, family

op, nn = relax.op, relax.op.nn


@family
def unary(draw: Draw) -> Sample:
    name, expected = draw.one(
        [
            ("exp", np.exp), ("tanh", np.tanh), ("negative", np.negative), ("abs", np.abs), ("floor", np.floor),
            ("sin", np.sin), ("sign", np.sign), ("square", np.square), ("ceil", np.ceil), ("cos", np.cos),
        ]
    )  # fmt: skip
    x = draw.array(draw.shape(draw.one((1, 2, 3))), draw.one(FLOATS))
    return Sample(lambda a: getattr(op, name)(a), [x], expected, 5e-3 if x.dtype == np.float16 else 1e-4)


@family
def activation(draw: Draw) -> Sample:
    x = draw.array(draw.shape(draw.one((1, 2, 3))))
    name = draw.one(("gelu", "silu", "relu", "leakyrelu", "softplus"))
    return Sample(lambda a: getattr(nn, name)(a), [x])


@family
def log_like(draw: Draw) -> Sample:
    x = np.abs(draw.array(draw.shape(2), draw.one(("float32", "float64")))) + 0.1
    name, expected = draw.one([("log", np.log), ("sqrt", np.sqrt), ("rsqrt", lambda a: 1 / np.sqrt(a))])
    return Sample(lambda a: getattr(op, name)(nn.relu(a)), [x], expected)


@family
def broadcast_binary(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)))
    other = tuple(extent if draw.random.random() < 0.5 else 1 for extent in shape)[draw.one((0, 1)) :]
    dtype = draw.one((*FLOATS, *INTEGERS))
    name, expected = draw.one([("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum)])
    return Sample(
        lambda a, b: getattr(op, name)(a, b),
        [draw.array(shape, dtype), draw.array(other, dtype)],
        expected,
        5e-3 if dtype == "float16" else 1e-4,
    )


@family
def integer_division(draw: Draw) -> Sample:
    shape, dtype = draw.shape(2), draw.one(("int32", "int64", "int8"))
    divisor = np.abs(draw.array(shape, dtype)) + 1
    name, expected = draw.one([("floor_divide", np.floor_divide), ("floor_mod", np.mod)])
    return Sample(
        lambda a, b: getattr(op, name)(a, b), [draw.array(shape, dtype), divisor.astype(dtype)], expected, 0.0
    )


@family
def choose(draw: Draw) -> Sample:
    shape, dtype = draw.shape(2), draw.one(("float32", "int64", "float16"))
    row = (1, shape[1])
    return Sample(
        lambda c, a, b: op.where(c, a, b),
        [draw.array(shape, "bool"), draw.array(shape, dtype), draw.array(row, dtype)],
        np.where,
        0.0,
    )


@family
def logic(draw: Draw) -> Sample:
    shape = draw.shape(2)
    return Sample(
        lambda a, b, c: op.logical_or(op.logical_and(op.greater(a, b), c), op.logical_not(c)),
        [draw.array(shape), draw.array(shape[1:]), draw.array(shape, "bool")],
        lambda a, b, c: ((a > b) & c) | ~c,
        0.0,
    )


@family
def cast(draw: Draw) -> Sample:
    before, after = draw.one(FLOATS + INTEGERS + ("bool",)), draw.one(FLOATS + INTEGERS)
    x = draw.array(draw.shape(2), before)
    x = np.abs(x) if after.startswith("u") and before != "bool" else x
    return Sample(lambda a: op.astype(a, after), [x], lambda a: a.astype(after), 0.0)


@family
def chain(draw: Draw) -> Sample:
    shape = draw.shape(4)
    per_channel = (shape[1], 1, 1)
    return Sample(
        lambda a, b, c: nn.relu(a * b + c) + op.tanh(a),
        [draw.array(shape), draw.array(per_channel), draw.array(shape[2:])],
        lambda a, b, c: np.maximum(a * b + c, 0) + np.tanh(a),
    )


@family
def strided_slice(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)), 300_000)
    axis = int(draw.random.integers(len(shape)))
    begin = int(draw.random.integers(shape[axis]))
    end = int(draw.random.integers(begin + 1, shape[axis] + 1))
    stride = draw.one((1, 2, 3, 5))
    backwards = draw.random.random() < 0.3
    where = [slice(None)] * len(shape)
    where[axis] = slice(begin, end, stride)
    low, high, step = (begin, end, stride)
    if backwards:
        where[axis] = slice(end - 1, begin - 1 if begin else None, -stride)
        low, high, step = end - 1, begin - 1 if begin else -shape[axis] - 1, -stride
    wrap = draw.one([(lambda a: a, lambda a: a), (nn.relu, lambda a: np.maximum(a, 0)), (op.exp, np.exp)])
    dtype = draw.one(("float32", "float32", "int8", "int64", "float16")) if wrap[0] is not op.exp else "float32"
    return Sample(
        lambda a: wrap[0](op.strided_slice(a, [axis], [low], [high], [step])),
        [draw.array(shape, dtype)],
        lambda a: wrap[1](a[tuple(where)]),
    )


@family
def last_columns(draw: Draw) -> Sample:
    rows, columns = draw.one(EXTENTS_TALL), draw.one((30_000, 4099, 1025, 257))
    count = draw.one((1, 1, 2, 3))
    dtype = draw.one(("float32", "int8", "float64", "int64"))
    return Sample(
        lambda a: op.add(op.strided_slice(a, [1], [columns - count], [columns]), relax.const(1, dtype)),
        [draw.array((rows, columns), dtype)],
        lambda a: a[:, -count:] + np.array(1, dtype),
    )


@family
def last_column(draw: Draw) -> Sample:
    """The last column of a tall matrix: a gather whose remainder would read far behind the end."""
    return Sample(
        lambda a: nn.relu(op.strided_slice(a, [1], [29_999], [30_000])),
        [draw.array((34, 30_000))],
        lambda a: np.maximum(a[:, 29_999:], 0),
        0.0,
    )


EXTENTS_TALL = (2, 3, 7, 17, 34, 65)


@family
def transpose(draw: Draw) -> Sample:
    rank = draw.one((2, 3, 4))
    axes = [int(axis) for axis in draw.random.permutation(rank)]
    x = draw.array(draw.shape(rank), draw.one((*FLOATS, "int8", "int32", "int64")))
    return Sample(lambda a: op.permute_dims(a, axes), [x], lambda a: np.transpose(a, axes), 0.0)


@family
def large_transpose(draw: Draw) -> Sample:
    """Rows of more than a page, stored past the caches: blocks go through a buffer."""
    x = draw.array((draw.one((1025, 1031)), draw.one((1100, 2050))))
    return Sample(lambda a: op.permute_dims(a, [1, 0]), [x], np.transpose, 0.0)


@family
def transpose_fused(draw: Draw) -> Sample:
    shape = draw.shape(3)
    axes = draw.one(([0, 2, 1], [2, 1, 0], [1, 2, 0]))
    other = tuple(shape[axis] for axis in axes)
    return Sample(
        lambda a, b: nn.relu(op.permute_dims(a, axes)) + b,
        [draw.array(shape), draw.array(other[-1:])],
        lambda a, b: np.maximum(np.transpose(a, axes), 0) + b,
    )


@family
def reshape_transpose(draw: Draw) -> Sample:
    batch, channels, group, width = draw.one(SMALL_), draw.one(SMALL_), draw.one((2, 3, 4)), draw.one((1, 7, 33))
    shape = (batch, channels * group, width)

    def expected(a: np.ndarray) -> np.ndarray:
        return a.reshape(batch, group, channels, width).transpose(0, 2, 1, 3).reshape(shape) + 1

    return Sample(
        lambda a: (
            op.reshape(op.permute_dims(op.reshape(a, (batch, group, channels, width)), [0, 2, 1, 3]), shape)
            + relax.const(1, "float32")
        ),
        [draw.array(shape)],
        expected,
    )


SMALL_ = (1, 2, 3, 5, 7, 17)


@family
def flip(draw: Draw) -> Sample:
    shape = draw.shape(2)
    axis = draw.one((0, 1))
    return Sample(lambda a: op.exp(op.flip(a, axis)), [draw.array(shape)], lambda a: np.exp(np.flip(a, axis)), 1e-4)


@family
def concatenate(draw: Draw) -> Sample:
    shape = list(draw.shape(draw.one((2, 3)), 9000))
    axis = int(draw.random.integers(len(shape)))
    parts = []
    for _ in range(draw.one((2, 3, 4))):
        shape[axis] = draw.one((1, 2, 3, 7, 17, 33))
        parts.append(draw.array(shape, "float32"))
    return Sample(
        lambda *a: nn.relu(op.concat(list(a), axis)), parts, lambda *a: np.maximum(np.concatenate(a, axis), 0), 0.0
    )


@family
def detections(draw: Draw) -> Sample:
    """What a detector ends with: boxes and scores of two sizes, channels last, joined and turned around."""
    sizes = [draw.one((13, 26, 52)), draw.one((7, 26))]
    channels = (4, 1, 1)
    parts = [draw.array((1, size, size, 4), "float32") for size in sizes for _ in channels]

    def joined(*tensors: Any) -> Any:
        scales = []
        for at, size in enumerate(sizes):
            first = [op.permute_dims(tensor, [0, 3, 1, 2]) for tensor in tensors[3 * at : 3 * at + 3]]
            used = [op.strided_slice(x, [1], [0], [count]) for x, count in zip(first, channels, strict=True)]
            scales.append(op.reshape(op.concat(used, 1), (1, 6, size * size)))
        return op.permute_dims(op.concat(scales, 2), [0, 2, 1])

    def expected(*arrays: Any) -> Any:
        used = [array[..., :count].reshape(-1, count) for array, count in zip(arrays, channels * 2, strict=True)]
        return np.concatenate([np.concatenate(used[at : at + 3], 1) for at in (0, 3)])[None]

    return Sample(joined, parts, expected, 0.0)


@family
def split(draw: Draw) -> Sample:
    shape = list(draw.shape(2, 9000))
    parts = draw.one((2, 3))
    shape[1] *= parts
    return Sample(
        lambda a: (lambda s: relax.Tuple([op.exp(s[number]) for number in range(parts)]))(op.split(a, parts, 1)),
        [draw.array(shape)],
        lambda a: [np.exp(part) for part in np.split(a, parts, 1)],
    )


@family
def pad(draw: Draw) -> Sample:
    shape = draw.shape(draw.one((2, 3)), 9000)
    widths = [(int(draw.random.integers(4)), int(draw.random.integers(4))) for _ in shape]
    flat = [width for pair in widths for width in pair]
    return Sample(
        lambda a: nn.relu(nn.pad(a, flat, pad_value=0.5)),
        [draw.array(shape)],
        lambda a: np.maximum(np.pad(a, widths, constant_values=0.5), 0),
        0.0,
    )


@family
def pad_reflect(draw: Draw) -> Sample:
    shape = (draw.one((1, 3)), draw.one((1, 3, 17)), draw.one((7, 9, 17)), draw.one((7, 9, 33)))
    widths = [(0, 0), (0, 0), (draw.one((0, 1, 3)), draw.one((0, 2))), (draw.one((0, 1, 3)), draw.one((0, 2)))]
    flat = [width for pair in widths for width in pair]
    return Sample(
        lambda a: op.exp(nn.pad(a, flat, pad_mode="reflect")),
        [draw.array(shape)],
        lambda a: np.exp(np.pad(a, widths, mode="reflect")),
    )


@family
def tile_repeat(draw: Draw) -> Sample:
    shape = draw.shape(2, 2000)
    if draw.random.random() < 0.5:
        return Sample(lambda a: op.tile(a, (2, 3)), [draw.array(shape)], lambda a: np.tile(a, (2, 3)), 0.0)
    axis = draw.one((0, 1))
    return Sample(lambda a: op.repeat(a, 3, axis), [draw.array(shape)], lambda a: np.repeat(a, 3, axis), 0.0)


@family
def broadcast_to(draw: Draw) -> Sample:
    shape = draw.shape(3)
    source = (shape[0], 1, shape[2]) if draw.random.random() < 0.5 else (1, shape[1], 1)
    return Sample(
        lambda a: op.exp(op.broadcast_to(a, shape)), [draw.array(source)], lambda a: np.exp(np.broadcast_to(a, shape))
    )


@family
def triangle(draw: Draw) -> Sample:
    shift = draw.one((-3, -1, 0, 1, 5))
    name = draw.one(("tril", "triu"))
    return Sample(
        lambda a: getattr(op, name)(a, shift), [draw.array(draw.shape(2))], lambda a: getattr(np, name)(a, shift), 0.0
    )


@family
def resize(draw: Draw) -> Sample:
    shape = (1, draw.one((1, 3, 17)), draw.one((1, 3, 7, 17)), draw.one((1, 5, 8, 33)))
    size = (draw.one((1, 5, 14, 33)), draw.one((1, 7, 16, 65)))
    method = draw.one(("nearest_neighbor", "linear", "cubic"))
    mode = draw.one(("half_pixel", "align_corners", "asymmetric"))
    rounding = "round" if mode == "half_pixel" else "floor"
    return Sample(
        lambda a: relax.op.image.resize2d(
            a, size, layout="NCHW", method=method, coordinate_transformation_mode=mode, rounding_method=rounding
        ),
        [draw.array(shape)],
    )
