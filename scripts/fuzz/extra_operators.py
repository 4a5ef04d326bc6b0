"""Operators that NNSmith lacks, described in its own terms: the constraints on shapes, and the type that results."""

from __future__ import annotations

import random
from typing import Any

from nnsmith.abstract.arith import nnsmith_add, nnsmith_div, nnsmith_eq, nnsmith_ge, nnsmith_le, nnsmith_mul
from nnsmith.abstract.dtype import DType
from nnsmith.abstract.op import AbsTensor, MatMul, UnaryOpBase, mark_materialize, rank_from, rank_range

FLOATS = [(DType.float32,), (DType.float64,)]
ANY = [(DType.float32,), (DType.float64,), (DType.int32,), (DType.int64,), (DType.bool,)]


@mark_materialize("fuzz")
class Product(MatMul):
    """A matrix product of two tensors of the graph."""

    in_dtypes = [(dtype, dtype) for dtype in (DType.float32, DType.float32, DType.float64, DType.int32)]
    out_dtypes = [(dtype,) for dtype in (DType.float32, DType.float64, DType.int32)]


@mark_materialize("fuzz")
class Dense(UnaryOpBase):
    """A matrix product with weights."""

    in_dtypes = [(DType.float32,)]
    out_dtypes = [(DType.float32,)]

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.inp_ranks = [rank_range(1, 4)]
        self.out_ranks = [rank_range(1, 4)]

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        return [
            nnsmith_eq(input_shapes[0].shape[-1], self.inputs),
            nnsmith_ge(self.inputs, 1),
            nnsmith_ge(self.outputs, 1),
            nnsmith_le(self.outputs, 300),
        ]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        return [AbsTensor([*input_shapes[0].shape[:-1], self.outputs], input_shapes[0].dtype)]

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(out_abs_tensor[0].ndims, DType.float32)]


@mark_materialize("fuzz")
class TransposedConvolution(UnaryOpBase):
    """A transposed 2-D convolution."""

    in_dtypes = [(DType.float32,)]
    out_dtypes = [(DType.float32,)]

    def __init__(self, inputs: Any, outputs: Any, kernel_h: Any, kernel_w: Any, stride: Any) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.kernel_h, self.kernel_w, self.stride = kernel_h, kernel_w, stride
        self.inp_ranks = [(4,)]
        self.out_ranks = [(4,)]

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        found = [nnsmith_eq(input_shapes[0].shape[1], self.inputs), nnsmith_le(self.stride, 3)]
        found += [nnsmith_ge(value, 1) for value in (self.outputs, self.kernel_h, self.kernel_w, self.stride)]
        limits = ((self.kernel_h, 7), (self.kernel_w, 7), (self.outputs, 64))
        return found + [nnsmith_le(value, limit) for value, limit in limits]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        batch, _, height, width = input_shapes[0].shape
        sides = [
            nnsmith_add(nnsmith_mul(nnsmith_add(side, -1), self.stride), kernel)
            for side, kernel in ((height, self.kernel_h), (width, self.kernel_w))
        ]
        return [AbsTensor([batch, self.outputs, *sides], input_shapes[0].dtype)]

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(4, DType.float32)]


@mark_materialize("fuzz")
class GlobalPool(UnaryOpBase):
    """A mean or maximum over all that is not batch or channel."""

    in_dtypes = FLOATS[:1]
    out_dtypes = FLOATS[:1]

    def __init__(self) -> None:
        super().__init__()
        self.inp_ranks = [(4,)]
        self.out_ranks = [(4,)]

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        return [nnsmith_ge(side, 1) for side in input_shapes[0].shape[2:]]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        return [AbsTensor([*input_shapes[0].shape[:2], 1, 1], input_shapes[0].dtype)]

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(4, DType.float32)]


@mark_materialize("fuzz")
class Lookup(UnaryOpBase):
    """Rows along an axis, chosen by constant indices."""

    in_dtypes = ANY
    out_dtypes = ANY

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count
        self.inp_ranks = [rank_from(1)]
        self.out_ranks = [rank_from(1)]

    def _axis(self, rank: int) -> int:
        return int(self.extra_attrs.setdefault("axis", random.randint(0, rank - 1)))

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        axis = self._axis(input_shapes[0].ndims)
        return [nnsmith_ge(self.count, 1), nnsmith_le(self.count, 70), nnsmith_ge(input_shapes[0].shape[axis], 1)]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        shape = list(input_shapes[0].shape)
        shape[self._axis(len(shape))] = self.count
        return [AbsTensor(shape, input_shapes[0].dtype)]

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(out_abs_tensor[0].ndims, out_abs_tensor[0].dtype)]


@mark_materialize("fuzz")
class Halves(UnaryOpBase):
    """A tensor split in two along an axis; the second part is one element longer where the axis is odd."""

    in_dtypes = ANY
    out_dtypes = [(dtype, dtype) for (dtype,) in ANY]

    def __init__(self) -> None:
        super().__init__()
        self.inp_ranks = [rank_from(1)]
        self.out_ranks = [rank_from(1), rank_from(1)]

    def _axis(self, rank: int) -> int:
        return int(self.extra_attrs.setdefault("axis", random.randint(0, rank - 1)))

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        return [nnsmith_ge(input_shapes[0].shape[self._axis(input_shapes[0].ndims)], 2)]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        axis = self._axis(input_shapes[0].ndims)
        side = input_shapes[0].shape[axis]
        first = nnsmith_div(side, 2)
        found = []
        for part in (first, side - first):
            shape = list(input_shapes[0].shape)
            shape[axis] = part
            found.append(AbsTensor(shape, input_shapes[0].dtype))
        return found

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(out_abs_tensor[0].ndims, out_abs_tensor[0].dtype)]


@mark_materialize("fuzz")
class Recurrence(UnaryOpBase):
    """A recurrent layer over [time, batch, features], all steps of its output."""

    in_dtypes = [(DType.float32,)]
    out_dtypes = [(DType.float32,)]

    def __init__(self, inputs: Any, hidden: Any) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.inp_ranks = [(3,)]
        self.out_ranks = [(4,)]

    def requires(self, input_shapes: list[AbsTensor]) -> list[Any]:
        shape = input_shapes[0].shape
        return [
            nnsmith_eq(shape[2], self.inputs),
            nnsmith_le(shape[0], 9),
            nnsmith_ge(self.hidden, 1),
            nnsmith_le(self.hidden, 40),
            *(nnsmith_ge(side, 1) for side in shape),
        ]

    def type_transfer(self, input_shapes: list[AbsTensor]) -> list[AbsTensor]:
        time, batch, _ = input_shapes[0].shape
        return [AbsTensor([time, 1, batch, self.hidden], input_shapes[0].dtype)]

    def deduct_inp_ranks_and_dtype(self, out_abs_tensor: list[AbsTensor]) -> list[tuple[int, DType]]:
        return [(3, DType.float32)]
