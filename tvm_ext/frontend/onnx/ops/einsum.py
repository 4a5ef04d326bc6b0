"""``Einsum``: of two operands a product of matrices, for which there are schedules.

before: ``Einsum("bqhd,bkhd->bhqk", q, k)``
after:  ``matmul(permute_dims(q, (0, 2, 1, 3)), permute_dims(k, (0, 2, 3, 1)))``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.index_products import Product, product_of, without_lone
from tvm_ext.frontend.onnx.ops.base import Converter, Node, emit
from tvm_ext.relax_utils import open_shape, same_extents

_SINCE = 12


class Einsum(Converter):
    """Sums of products by Einstein's convention."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the product, or the sum as it is written."""
        equation = node.text("equation")
        operands = [emit(bb, operand) for operand in inputs]
        before, arrow, result = equation.replace(" ", "").partition("->")
        subscripts = before.split(",")
        if arrow and len(subscripts) == len(operands) == 2 and "." not in equation:
            extents = _extents(subscripts, operands)
            kept = [without_lone(indices, subscripts, result) for indices in subscripts]
            product = None if extents is None else product_of(kept[0], kept[1], result)
            if product is not None and extents is not None:
                operands = [_summed(bb, *item) for item in zip(operands, subscripts, kept, strict=True)]
                return _written(bb, operands, kept, result, product, extents)
        given = onnx_frontend.onnx_input(operands)
        return onnx_frontend.Einsum.get_converter(_SINCE)(bb, given, {"equation": equation.encode()}, node.parameters)


def _summed(bb: relax.BlockBuilder, operand: Any, indices: str, kept: str) -> Any:
    axes = [axis for axis, index in enumerate(indices) if index not in kept]
    return bb.emit(relax.op.sum(operand, axes)) if axes else operand


def _extents(subscripts: Sequence[str], operands: Sequence[Any]) -> dict[str, Any] | None:
    """Give the extents by index; None where one is not the same in both operands."""
    extents: dict[str, Any] = {}
    for indices, operand in zip(subscripts, operands, strict=True):
        shape = open_shape(operand)
        if shape is None or len(shape) != len(indices):
            return None
        for index, extent in zip(indices, shape, strict=True):
            if not same_extents([extents.setdefault(index, extent)], [extent]):
                return None
    return extents


def _written(
    bb: relax.BlockBuilder,
    operands: Sequence[Any],
    subscripts: Sequence[str],
    result: str,
    product: Product,
    extents: Mapping[str, Any],
) -> Any:
    """Bring both operands into the form of matrices, multiply, and bring the result into its own."""
    batch, rows, columns, depth = product.batch, product.rows, product.columns, product.depth
    left = _arranged(bb, operands[0], subscripts[0], batch, [rows, depth], extents)
    right = _arranged(bb, operands[1], subscripts[1], batch, [depth, columns], extents)
    found = bb.emit(relax.op.matmul(left, right))
    made = batch + rows + columns
    if len(rows) != 1 or len(columns) != 1:
        found = bb.emit(relax.op.reshape(found, [extents[index] for index in made]))
    order = [made.index(index) for index in result]
    return found if order == sorted(order) else relax.op.permute_dims(found, order)


def _arranged(
    bb: relax.BlockBuilder,
    operand: Any,
    subscripts: str,
    batch: str,
    groups: Sequence[str],
    extents: Mapping[str, Any],
) -> Any:
    """Put axes into the order of ``batch`` and of groups, each of which becomes one axis."""
    order = [subscripts.index(index) for index in batch + "".join(groups)]
    if order != sorted(order):
        operand = bb.emit(relax.op.permute_dims(operand, order))
    if any(len(group) != 1 for group in groups):
        whole = [_count([extents[index] for index in group]) for group in groups]
        operand = bb.emit(relax.op.reshape(operand, [*(extents[index] for index in batch), *whole]))
    return operand


def _count(extents: Sequence[Any]) -> Any:
    total: Any = tirx.const(1, "int64")
    for extent in extents:
        total = total * extent
    return tvm.sym.Analyzer().simplify(total)


CONVERTERS: dict[tuple[str, str], type] = {("", "Einsum"): Einsum}
