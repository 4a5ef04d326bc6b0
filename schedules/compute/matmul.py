"""Matrix products over a packed right operand, for constants (packed at compile time) and for computed operands.

The columns of the right operand are cut into chunks of one vector; the elements of a chunk that one step of the
reduction needs lie together: ``(K, N)`` becomes ``(ceil(N / v), K, v)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import BATCH_AXES_ATTRIBUTE, KERNEL_ATTRIBUTE, OUT_AXES_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS, PAIR, WORDS, half, rounded, widened, word

Access = Callable[..., Expr]
"""From an index to the element there."""


@dataclass(frozen=True)
class MatmulShape:
    """Extents of ``out[..., m, n] = sum(data[..., m, k] * weight[..., k, n])`` with broadcast batch axes.

    Attributes
    ----------
    data, weight : tuple of int
        Logical shapes, ``(..., M, K)`` and ``(..., K, N)``; at least two axes each.
    """

    data: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def out(self) -> tuple[int, ...]:
        """Logical shape of the result, ``(..., M, N)``."""
        return (*np.broadcast_shapes(self.data[:-2], self.weight[:-2]), self.data[-2], self.weight[-1])

    @property
    def batch_axes(self) -> int:
        """How many of the first axes of ``out`` are batch axes: none when all rows meet the same weight."""
        return 0 if prod(self.weight[:-2]) == 1 else len(self.out) - 2

    @property
    def batch(self) -> int:
        """Number of separate products."""
        return prod(self.out[: self.batch_axes])

    @property
    def rows(self) -> int:
        """Rows of one product."""
        return prod(self.out[self.batch_axes : -1])

    @property
    def columns(self) -> int:
        """Columns of one product."""
        return self.weight[-1]

    @property
    def reduction(self) -> int:
        """Length of the sums."""
        return self.data[-1]


def pack_columns(matrix: np.ndarray, lanes: int, chunks: int) -> np.ndarray:
    """Pack ``(..., K, N)`` to ``(..., chunks, K, lanes)``; columns beyond ``N`` are zero."""
    *batch, reduction, columns = matrix.shape
    if chunks * lanes < columns:
        raise ValueError(f"{chunks} chunks of {lanes} cannot hold {columns} columns")
    padded = np.zeros((*batch, reduction, chunks * lanes), matrix.dtype)
    padded[..., :columns] = matrix
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, reduction, chunks, lanes), -2, -3))


def uniform_rows(shape: MatmulShape, data_axes: Sequence[int]) -> bool:
    """Whether the rows of one product are contiguous and lie at equal distances, read through a transpose.

    Parameters
    ----------
    data_axes : sequence of int
        For each logical axis of the data, which axis it is in memory.
    """
    strides = _strides(shape.data, data_axes)
    if shape.data[-1] > 1 and strides[-1] != 1:
        return False
    first = max(0, shape.batch_axes - (len(shape.out) - len(shape.data))) if shape.batch_axes else 0
    axes = [axis for axis in range(first, len(shape.data) - 1) if shape.data[axis] > 1]
    return all(strides[outer] == strides[inner] * shape.data[inner] for outer, inner in pairwise(axes))


def row_stride(shape: MatmulShape, data_axes: Sequence[int]) -> int:
    """Give the distance in elements between two rows of the data; 0 when there is one row."""
    strides = _strides(shape.data, data_axes)
    steps = [stride for stride, extent in zip(strides[:-1], shape.data[:-1], strict=True) if extent > 1]
    return steps[-1] if steps else 0


def matmul(
    data: te.Tensor,
    weight: te.Tensor,
    data_shape: Sequence[int],
    weight_shape: Sequence[int],
    data_axes: Sequence[int],
    weight_axes: Sequence[int],
    out_axes: Sequence[int],
    tile: Sequence[int],
    lanes: int,
    copy_rows: bool,
) -> te.Tensor:
    """Multiply matrices.

    Parameters
    ----------
    data : te.Tensor
        The left operand in memory; its axis ``data_axes[i]`` is the logical axis ``i`` of ``(..., M, K)``.
    weight : te.Tensor
        The right operand: packed as :func:`pack_columns` does, ``(..., chunks, K, lanes)``, when ``weight_axes`` is
        empty; otherwise in memory as the data is, and packed here. Packed columns of ``uint16`` are bfloat16 in pairs,
        ``(..., chunks, ceil(K / 2), lanes, 2)``: the rows are then rounded, too, as they are copied, unless they are
        bfloat16 already, of an even ``K``.
    data_shape, weight_shape : sequence of int
        Logical shapes ``(..., M, K)`` and ``(..., K, N)``.
    out_axes : sequence of int
        Axis ``i`` of the result is the logical axis ``out_axes[i]`` of ``(..., M, N)``.
    tile : sequence of two int
        Rows and column chunks to compute are rounded up to multiples of these; those beyond the result are dropped.
    lanes : int
        Columns in a chunk.
    copy_rows : bool
        Read the data from a copy with rows that are contiguous, at equal distances and of a rounded number.

    Returns
    -------
    te.Tensor
        The transposed product.
    """
    shape = MatmulShape(tuple(map(int, data_shape)), tuple(map(int, weight_shape)))
    out_axes = [int(axis) for axis in out_axes]
    tile_rows, tile_chunks = map(int, tile)
    rows = round_up(shape.rows, tile_rows)
    chunks = round_up(-(-shape.columns // lanes), tile_chunks)
    right = columns_of(weight, shape, weight_axes, chunks, lanes)
    extents = shape.batch, rows, chunks, lanes
    attributes = {
        KERNEL_ATTRIBUTE: "matmul",
        OUT_AXES_ATTRIBUTE: out_axes,
        BATCH_AXES_ATTRIBUTE: shape.batch_axes,
        TILE_ATTRIBUTE: [tile_rows, tile_chunks],
    }
    if str(weight.dtype) == BITS:
        copies = str(data.dtype) != BITS
        left = rows_of(data, shape, data_axes, rows, copies, PAIR if copies else 1)
        product = multiply_pairs(left, right, extents, shape, attributes)
    else:
        left = rows_of(data, shape, data_axes, rows, copy_rows)
        product = multiply(left, right, extents, shape.reduction, attributes)
    return store(shape, out_axes, lambda b, m, n: product[b, m, n // lanes, n % lanes])


def multiply(
    left: Access, right: Access, extents: Sequence[int], reduction: int, attributes: dict[str, object]
) -> te.Tensor:
    """Sum ``left(b, m, k) * right(b, p, k, j)`` over ``k < reduction`` in a block named as its kind of kernel."""
    k = te.reduce_axis((0, reduction), "k")
    return te.compute(
        tuple(extents),
        lambda b, m, p, j: te.sum(left(b, m, k) * right(b, p, k, j), k),
        name=str(attributes[KERNEL_ATTRIBUTE]),
        attrs=attributes,
    )


def multiply_pairs(
    left: Access, right: Access, extents: Sequence[int], shape: MatmulShape, attributes: dict[str, object]
) -> te.Tensor:
    """Sum ``left(b, m, k) * right(b, p, k // 2, j, k % 2)`` of bfloat16 in float32, over all pairs of places ``k``."""
    pair = te.reduce_axis((0, round_up(shape.reduction, PAIR) // PAIR), "k")
    place = te.reduce_axis((0, PAIR), "place")
    return te.compute(
        tuple(extents),
        lambda b, m, p, j: te.sum(
            widened(left(b, m, pair * PAIR + place)) * widened(right(b, p, pair, j, place)), [pair, place]
        ),
        name=str(attributes[KERNEL_ATTRIBUTE]),
        attrs=attributes,
    )


def store(shape: MatmulShape, out_axes: Sequence[int], element: Access) -> te.Tensor:
    """Store ``element(batch, row, column)`` as a tensor whose axis ``i`` is the logical axis ``out_axes[i]``."""

    def stored(*index: tirx.Var) -> Expr:
        logical: list[Expr] = [0] * len(out_axes)
        for axis, variable in zip(out_axes, index, strict=True):
            logical[axis] = variable
        batch = flatten(logical[: shape.batch_axes], shape.out[: shape.batch_axes])
        row = flatten(logical[shape.batch_axes : -1], shape.out[shape.batch_axes : -1])
        return element(batch, row, logical[-1])

    return te.compute([shape.out[axis] for axis in out_axes], stored, name="store")


def rows_of(
    data: te.Tensor, shape: MatmulShape, axes: Sequence[int], rows: int, copy: bool, multiple: int = 1
) -> Access:
    """Make the access ``(b, m, k) -> element`` of the left operand; a copy has ``rows`` rows, those beyond it zero.

    With ``multiple`` the copy is of bfloat16, and is filled up with zeros to such a multiple along the reduction.
    """

    def read(batch: Expr, row: Expr, k: Expr) -> Expr:
        index = _out_index(shape, batch, row)
        return data(*_in_memory([*_aligned(index, shape.data[:-1]), k], axes))

    if not copy:
        return read

    reduction = round_up(shape.reduction, multiple)

    def element(b: tirx.Var, m: tirx.Var, k: tirx.Var) -> Expr:
        value = read(b, m, k) if multiple == 1 else rounded(read(b, m, k))
        inside = [m < shape.rows] if rows > shape.rows else []
        inside += [k < shape.reduction] if reduction > shape.reduction else []
        zero = tirx.const(0, data.dtype if multiple == 1 else BITS)
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    return te.compute((shape.batch, rows, reduction), element, name="pack_rows", attrs={KERNEL_ATTRIBUTE: "pack_rows"})


def columns_of(
    weight: te.Tensor, shape: MatmulShape, axes: Sequence[int], chunks: int, lanes: int, paired: bool = False
) -> Access:
    """Make the access ``(b, p, k, j) -> element`` of the right operand.

    With ``paired`` an operand that is packed here is rounded to bfloat16 in pairs, accessed by
    ``(b, p, k // 2, j, k % 2)``.
    """
    batch_shape = shape.weight[:-2]

    def batch_index(batch: Expr) -> list[Expr]:
        return _aligned(unflatten(batch, shape.out[: shape.batch_axes]), batch_shape)

    if not axes:
        return lambda b, p, k, j, *place: weight(*batch_index(b), p, k, j, *place)

    def element(b: tirx.Var, p: tirx.Var, k: tirx.Var, j: tirx.Var) -> Expr:
        column = p * lanes + j
        value = weight(*_in_memory([*unflatten(b, batch_shape), k, column], axes))
        if chunks * lanes == shape.columns:
            return value
        return tirx.if_then_else(column < shape.columns, value, tirx.const(0, weight.dtype))

    packed = te.compute(
        (prod(batch_shape), chunks, shape.reduction, lanes),
        element,
        name="pack_columns",
        attrs={KERNEL_ATTRIBUTE: "pack_columns"},
    )
    if not paired:
        return lambda b, p, k, j: packed(flatten(batch_index(b), batch_shape), p, k, j)

    def second(b: tirx.Var, p: tirx.Var, pair: tirx.Var, j: tirx.Var) -> Expr:
        place = pair * PAIR + 1
        if shape.reduction % PAIR == 0:
            return packed[b, p, place, j]
        return tirx.if_then_else(place < shape.reduction, packed[b, p, place, j], tirx.const(0, packed.dtype))

    words = te.compute(
        (prod(batch_shape), chunks, round_up(shape.reduction, PAIR) // PAIR, lanes),
        lambda b, p, pair, j: word(packed[b, p, pair * PAIR, j], second(b, p, pair, j)),
        name="pair_columns",
        attrs={KERNEL_ATTRIBUTE: "pair_columns"},
    )
    assert str(words.dtype) == WORDS
    return lambda b, p, pair, j, place: half(words(flatten(batch_index(b), batch_shape), p, pair, j), place)


def _out_index(shape: MatmulShape, batch: Expr, row: Expr) -> list[Expr]:
    """Give the logical index of the result, without the column."""
    extents = shape.out
    return [
        *unflatten(batch, extents[: shape.batch_axes]),
        *unflatten(row, extents[shape.batch_axes : -1]),
    ]


def _aligned(index: Sequence[Expr], extents: Sequence[int]) -> list[Expr]:
    """Broadcast: the last entries of ``index``, zero along axes of extent 1."""
    known = [0] * (len(extents) - len(index)) + list(index[max(0, len(index) - len(extents)) :])
    return [0 if extent == 1 else entry for entry, extent in zip(known, extents, strict=True)]


def _in_memory(index: Sequence[Expr], axes: Sequence[int]) -> list[Expr]:
    """Order a logical index as the axes lie in memory."""
    result: list[Expr] = [0] * len(axes)
    for axis, entry in zip(axes, index, strict=True):
        result[int(axis)] = entry
    return result


def _strides(extents: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Give the distance in memory, in elements, of each logical axis."""
    in_memory = _in_memory(extents, axes)
    return [prod(in_memory[int(axis) + 1 :]) for axis in axes]


def round_up(number: int, multiple: int) -> int:
    """Give the least multiple that is not below ``number``."""
    return -(-number // multiple) * multiple


def unflatten(index: Expr, extents: Sequence[int]) -> list[Expr]:
    """Give the row-major index of position ``index`` of a tensor; axes of extent 1 get a plain 0."""
    result: list[Expr] = []
    inner = [extent for extent in extents if extent > 1]
    for extent in reversed(extents):
        if extent == 1:
            result.append(0)
            continue
        inner.pop()
        result.append(index % extent if inner else index)
        index = index // extent
    return result[::-1]


def flatten(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Give the position of a row-major index of a tensor."""
    position: Expr = 0
    for entry, extent in zip(index, extents, strict=True):
        if extent > 1:
            position = position * extent + entry
    return position
