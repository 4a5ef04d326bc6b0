"""Converters of what mixtures of experts are exported with: rows counted by expert, and multiplied by its matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from torch.fx import Node
from tvm import relax, te

from tvm_ext.frontend.torch.arguments import argument, static_size
from tvm_ext.frontend.torch.promotion import relax_dtype


def grouped_product(importer: Any, node: Node) -> Any:
    """Product of each row with the matrix of its group, ``y[s] = x[s] @ weight[g]``.

    Rows are in the order of their groups, ``offs[g]`` is the first row that is not of group g any more; rows after the
    last are zero. As in PyTorch, sums of 16-bit numbers are of 32 bits.
    """
    emit = importer.block_builder.emit
    if len(node.args[0].meta["val"].shape) != 2 or len(node.args[1].meta["val"].shape) != 3:
        raise NotImplementedError("only rows times a matrix for each group are converted, not groups of columns")
    ends = argument(node, 2, "offs")
    if ends is None or argument(node, 3, "bias") is not None:
        raise NotImplementedError("without ends of groups, or with a bias, it is not converted; use torch.bmm, or add")
    rows, weight, ends = (importer.env[operand] for operand in (node.args[0], node.args[1], ends))
    count = rows.ty.shape[0]
    place = emit(relax.op.arange(tvm.tirx.const(0, "int64"), count, tvm.tirx.const(1, "int64"), "int64"))
    place = emit(relax.op.reshape(place, [count, 1]))
    passed = emit(relax.op.greater_equal(place, emit(relax.op.astype(ends, "int64"))))
    group = emit(relax.op.sum(emit(relax.op.astype(passed, "int32")), 1))
    last = static_size(weight, 0) - 1
    bounded = emit(relax.op.minimum(group, relax.const(last, "int32")))
    dtype, wide = str(rows.ty.dtype), "float64" if str(rows.ty.dtype) == "float64" else "float32"

    def multiply(x: te.Tensor, matrices: te.Tensor, groups: te.Tensor) -> te.Tensor:
        term = te.reduce_axis((0, x.shape[1]), "k")

        def element(row: Any, column: Any) -> Any:
            factor = matrices[groups[row], term, column]
            return te.sum(x[row, term].astype(wide) * factor.astype(wide), term)

        return te.compute((x.shape[0], matrices.shape[2]), element, "grouped_product")

    product = importer.block_builder.emit_te(multiply, rows, weight, bounded, primfunc_name_hint="grouped_product")
    product = product if wide == dtype else emit(relax.op.astype(product, dtype))
    inside = emit(relax.op.reshape(emit(relax.op.less_equal(group, relax.const(last, "int32"))), [count, 1]))
    return emit(relax.op.where(inside, product, relax.const(0.0, dtype)))


def histogram(importer: Any, node: Node) -> Any:
    """``torch.histc`` between given ends: how many elements each bin has; the last one is closed."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    if not node.meta["val"].is_floating_point():
        raise NotImplementedError("integers are not counted; convert them to floats before")
    dtype = relax_dtype(node.meta["val"].dtype)
    bins = int(argument(node, 1, "bins", 100))
    low, high = (float(argument(node, place, name, 0)) for place, name in ((2, "min"), (3, "max")))
    if low == high:
        raise NotImplementedError("its ends are the least and the largest of the numbers it counts; give min and max")
    flat = emit(relax.op.reshape(data, [-1]))
    inside = emit(relax.op.greater_equal(flat, relax.const(low, dtype)))
    inside = emit(relax.op.logical_and(inside, emit(relax.op.less_equal(flat, relax.const(high, dtype)))))
    scaled = emit(relax.op.multiply(emit(relax.op.subtract(flat, relax.const(low, dtype))), relax.const(bins, dtype)))
    place = emit(relax.op.floor(emit(relax.op.divide(scaled, relax.const(high - low, dtype)))))
    place = emit(relax.op.minimum(place, relax.const(bins - 1, dtype)))
    numbers = relax.const(np.arange(bins, dtype=dtype).reshape(-1, 1))
    found = emit(relax.op.logical_and(emit(relax.op.equal(place, numbers)), inside))
    return emit(relax.op.astype(emit(relax.op.sum(emit(relax.op.astype(found, "int64")), 1)), dtype))


EXPERTS: Mapping[str, Any] = {
    "_grouped_mm.default": grouped_product,
    "grouped_mm_fallback.default": grouped_product,  # by which transformers replaces it in exported programs
    "histc.default": histogram,
}
"""By name of operator and overload."""
