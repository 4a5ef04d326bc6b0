"""The operators of terms: shape, arithmetic and meaning of each, as rows.

Reductions keep the axes they reduce with extent 1. Counts follow :class:`tvm_ext.graph.flops.Flops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import erf as scalar_erf
from math import prod
from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = "tuple[int, ...]"
Array: TypeAlias = np.ndarray


class ShapeError(Exception):
    """Operands do not fit together; a rewriting that meets it is no match."""


@dataclass(frozen=True)
class OperatorRow:
    """What an operator of terms is.

    Attributes
    ----------
    operands : int
        How many it has.
    shape : callable
        ``(shapes, attributes) -> shape``; raises :class:`ShapeError`.
    evaluate : callable
        ``(arrays, attributes) -> array``, in numpy: its meaning.
    flops : callable
        ``(shapes, result shape) -> operations``.
    attributes : tuple of str
        Names of its attributes.
    commutes, associates : bool
        Whether operands may change places, and parentheses may move.
    """

    operands: int
    shape: Callable[[Sequence[Shape], Mapping[str, Any]], Shape]
    evaluate: Callable[[Sequence[Array], Mapping[str, Any]], Array]
    flops: Callable[[Sequence[Shape], Shape], int]
    attributes: tuple[str, ...] = ()
    commutes: bool = False
    associates: bool = False


def broadcast(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    """Shape of an element-wise result."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"shapes {shapes} do not broadcast") from None


def _unary(function: Callable[[Array], Array], cost: int = 1) -> OperatorRow:
    return OperatorRow(
        1,
        lambda shapes, _: shapes[0],
        lambda arrays, _: function(arrays[0]),
        lambda _, result: cost * prod(result),
    )


def _binary(function: Callable[[Array, Array], Array], commutes: bool = False) -> OperatorRow:
    return OperatorRow(
        2,
        broadcast,
        lambda arrays, _: function(arrays[0], arrays[1]),
        lambda _, result: prod(result),
        commutes=commutes,
        associates=commutes,
    )


def _reduced(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    axes = attributes["axes"]
    if any(axis >= len(shapes[0]) for axis in axes):
        raise ShapeError(f"axes {axes} of a tensor of rank {len(shapes[0])}")
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shapes[0]))


def _reduction(function: Callable[..., Array], for_result: int = 0) -> OperatorRow:
    return OperatorRow(
        1,
        _reduced,
        lambda arrays, attributes: function(arrays[0], axis=tuple(attributes["axes"]), keepdims=True),
        lambda shapes, result: prod(shapes[0]) + for_result * prod(result),
        ("axes",),
    )


def _matmul_shape(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    first, second = shapes
    if len(first) < 2 or len(second) < 2 or first[-1] != second[-2]:
        raise ShapeError(f"matrices {first} and {second} cannot be multiplied")
    return (*broadcast((first[:-2], second[:-2]), {}), first[-2], second[-1])


def _product(first: Array, second: Array) -> Array:
    """Multiply in the precision of the first one, to which the second is converted a few rows at a time."""
    if first.dtype == second.dtype or second.ndim != 2:
        return np.matmul(first, second.astype(first.dtype, copy=False))
    step = max(1, 65536 // second.shape[1])
    starts = range(0, len(second), step)
    return sum(np.matmul(first[..., k : k + step], second[k : k + step].astype(first.dtype)) for k in starts)


def _transposed(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    if len(attributes["perm"]) != len(shapes[0]):
        raise ShapeError(f"permutation {attributes['perm']} of a tensor of rank {len(shapes[0])}")
    return tuple(shapes[0][axis] for axis in attributes["perm"])


def _reshaped(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    if prod(shapes[0]) != prod(attributes["shape"]):
        raise ShapeError(f"{shapes[0]} cannot be reshaped to {attributes['shape']}")
    return tuple(attributes["shape"])


def _as_shape(shape: Callable[[int], Shape]) -> OperatorRow:
    return OperatorRow(
        1,
        lambda shapes, _: shape(prod(shapes[0])),
        lambda arrays, _: np.reshape(arrays[0], shape(arrays[0].size)),
        lambda *_: 0,
    )


def _sliced(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    axis, begin, end = attributes["part"]
    if axis >= len(shapes[0]) or end > shapes[0][axis]:
        raise ShapeError(f"part {attributes['part']} of a tensor {shapes[0]}")
    return (*shapes[0][:axis], end - begin, *shapes[0][axis + 1 :])


def _slice(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    axis, begin, end = attributes["part"]
    return np.take(arrays[0], np.arange(begin, end), axis)


def _concatenated(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    axis = attributes["axis"]
    first, second = shapes
    if len(first) != len(second) or axis >= len(first):
        raise ShapeError(f"{first} and {second} cannot be joined along axis {axis}")
    if any(one != other for i, (one, other) in enumerate(zip(first, second, strict=True)) if i != axis):
        raise ShapeError(f"{first} and {second} cannot be joined along axis {axis}")
    return (*first[:axis], first[axis] + second[axis], *first[axis + 1 :])


def _convolved(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    strides, padding, dilation, groups = attributes["window"]
    if len(shapes[0]) != 4 or len(shapes[1]) != 4 or shapes[0][1] != shapes[1][1] * groups:
        raise ShapeError(f"a convolution of {shapes[0]} by {shapes[1]} in {groups} groups")
    (n, _, *sizes), (filters, _, *kernel) = shapes
    rest = (
        (sizes[axis] + padding[axis] + padding[axis + 2] - (kernel[axis] - 1) * dilation[axis] - 1) // strides[axis] + 1
        for axis in (0, 1)
    )
    return (n, filters, *rest)


def _convolution(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    data, weight = arrays
    strides, padding, dilation, groups = attributes["window"]
    result = np.zeros(_convolved([data.shape, weight.shape], attributes), data.dtype)
    padded = np.pad(data, ((0, 0), (0, 0), (padding[0], padding[2]), (padding[1], padding[3])))
    rows, columns = result.shape[2:]
    filters, depth = weight.shape[0] // groups, weight.shape[1]
    for group in range(groups):
        part = slice(group * filters, (group + 1) * filters)
        for y in range(weight.shape[2]):
            for x in range(weight.shape[3]):
                seen = padded[
                    :,
                    group * depth : (group + 1) * depth,
                    y * dilation[0] : y * dilation[0] + (rows - 1) * strides[0] + 1 : strides[0],
                    x * dilation[1] : x * dilation[1] + (columns - 1) * strides[1] + 1 : strides[1],
                ]
                result[:, part] += np.einsum("nchw,oc->nohw", seen, weight[part, :, y, x])
    return result


def _normalised(shapes: Sequence[Shape], attributes: Mapping[str, Any]) -> Shape:
    _reduced(shapes, attributes)
    return shapes[0]


def _softmax(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    axes = tuple(attributes["axes"])
    powers = np.exp(arrays[0] - arrays[0].max(axis=axes, keepdims=True))
    return powers / powers.sum(axis=axes, keepdims=True)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


_erf = np.vectorize(scalar_erf, otypes=[float])

OPERATORS: dict[str, OperatorRow] = {
    "add": _binary(np.add, commutes=True),
    "subtract": _binary(np.subtract),
    "multiply": _binary(np.multiply, commutes=True),
    "divide": _binary(np.divide),
    "power": _binary(np.power),
    "maximum": _binary(np.maximum, commutes=True),
    "minimum": _binary(np.minimum, commutes=True),
    "left_shift": _binary(lambda x, bits: np.left_shift(x, bits.astype(int))),
    "negative": _unary(np.negative),
    "reciprocal": _unary(np.reciprocal),
    "square": _unary(np.square),
    "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(lambda x: 1.0 / np.sqrt(x)),
    "abs": _unary(np.abs),
    "sign": _unary(np.sign),
    "exp": _unary(np.exp),
    "log": _unary(np.log),
    "sigmoid": _unary(_sigmoid),
    "tanh": _unary(np.tanh),
    "erf": _unary(_erf),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "silu": _unary(lambda x: x * _sigmoid(x), 2),
    "floor": _unary(np.floor),
    "ceil": _unary(np.ceil),
    "round": _unary(np.round),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean, for_result=1),
    "prod": _reduction(np.prod),
    "max": _reduction(np.max),
    "min": _reduction(np.min),
    "softmax": OperatorRow(1, _normalised, _softmax, lambda _, result: 5 * prod(result), ("axes",)),
    "matmul": OperatorRow(
        2,
        _matmul_shape,
        lambda arrays, _: _product(arrays[0], arrays[1]),
        lambda shapes, result: 2 * prod(result) * shapes[0][-1],
    ),
    "conv": OperatorRow(
        2,
        _convolved,
        _convolution,
        lambda shapes, result: 2 * prod(result) * prod(shapes[1][1:]),
        ("window",),
    ),
    "transpose": OperatorRow(
        1,
        _transposed,
        lambda arrays, attributes: np.transpose(arrays[0], attributes["perm"]),
        lambda *_: 0,
        ("perm",),
    ),
    "reshape": OperatorRow(
        1,
        _reshaped,
        lambda arrays, attributes: np.reshape(arrays[0], attributes["shape"]),
        lambda *_: 0,
        ("shape",),
    ),
    # A tensor along one axis as a column or a row of a matrix, or as one number for each filter of a convolution.
    "column": _as_shape(lambda count: (count, 1)),
    "row": _as_shape(lambda count: (1, count)),
    "filters": _as_shape(lambda count: (count, 1, 1, 1)),
    "slice": OperatorRow(1, _sliced, _slice, lambda *_: 0, ("part",)),
    "concat": OperatorRow(
        2,
        _concatenated,
        lambda arrays, attributes: np.concatenate(arrays, attributes["axis"]),
        lambda *_: 0,
        ("axis",),
    ),
}
REDUCTIONS = frozenset({"sum", "mean", "prod", "max", "min"})
# Reductions whose result depends on how many elements there are.
COUNTING = frozenset({"sum", "prod"})
