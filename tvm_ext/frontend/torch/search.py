"""Converters of binary searches in sorted rows: ``torch.searchsorted`` and ``torch.bucketize``.

As in PyTorch, NaN comes behind all numbers, and what is found in a row that is not sorted is where halving ends.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Node
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.torch.arguments import argument
from tvm_ext.frontend.torch.promotion import dtype_of, relax_dtype


def search_sorted(importer: Any, node: Node) -> Any:
    """``torch.searchsorted(rows, values)``: rows and values have the same leading dimensions, or there is one row."""
    emit = importer.block_builder.emit
    rows = importer.env[node.args[0]]
    sorter = argument(node, 5, "sorter")
    if sorter is not None:
        rows = emit(relax.op.gather_elements(rows, importer.env[sorter], -1))
    right = bool(argument(node, 3, "right", False)) or argument(node, 4, "side") == "right"
    return _searched(importer, node, rows, node.args[0], node.args[1], right)


def bucketize(importer: Any, node: Node) -> Any:
    """``torch.bucketize(values, boundaries)``, a search in one row."""
    rows = importer.env[node.args[1]]
    return _searched(importer, node, rows, node.args[1], node.args[0], bool(argument(node, 3, "right", False)))


def _searched(importer: Any, node: Node, rows: Any, sequence: Node, given: Any, right: bool) -> Any:
    emit = importer.block_builder.emit
    dtype = relax_dtype(
        torch.result_type(sequence.meta["val"], given.meta["val"] if isinstance(given, Node) else given)
    )
    values = importer.env[given] if isinstance(given, Node) else emit(relax.const(given, dtype))
    rows, values = (
        value if str(value.ty.dtype) == dtype else emit(relax.op.astype(value, dtype)) for value in (rows, values)
    )
    shape, alone = list(values.ty.shape), len(rows.ty.shape) == 1
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in (*shape, rows.ty.shape[-1])):
        return emit(relax.op.zeros(shape, relax_dtype(dtype_of(node) or torch.int64)))
    rows = emit(relax.op.reshape(rows, [1, -1] if alone else [-1, rows.ty.shape[-1]]))
    values = emit(relax.op.reshape(values, [1, -1] if alone else [-1, shape[-1]]))
    found = importer.block_builder.emit_te(
        partial(_places, right=right, dtype=relax_dtype(dtype_of(node) or torch.int64)),
        rows,
        values,
        primfunc_name_hint="search_sorted",
    )
    return emit(relax.op.reshape(found, shape))


def _places(rows: te.Tensor, values: te.Tensor, right: bool, dtype: str) -> te.Tensor:
    """Describe the kernel: for each value of ``values[i]`` its place in ``rows[i]``; values go to the threads."""
    count, length = values.shape[1], rows.shape[1]
    # Not the opposite comparison: with NaN both are false.
    stops = operator.gt if right else operator.ge

    def kernel(sequence: Any, wanted: Any, found: Any) -> Any:
        with IRBuilder() as ib:
            sequence, wanted, found = (T.buffer_proxy(buffer) for buffer in (sequence, wanted, found))
            with T.parallel(0, values.shape[0] * count) as place:
                bounds = T.buffer_proxy(T.decl_buffer([2], "int64", scope="local"))
                first = place // count * length
                bounds[0] = tirx.const(0, "int64")
                bounds[1] = length.astype("int64")
                with T.While(bounds[0] < bounds[1]):
                    middle = bounds[0] + (bounds[1] - bounds[0]) // 2
                    with T.If(stops(sequence[first + middle], wanted[place])):
                        with T.Then():
                            bounds[1] = middle
                        with T.Else():
                            bounds[0] = middle + 1
                found[place] = bounds[0].astype(dtype)
            return ib.get()

    return te.extern(
        [list(values.shape)], [rows, values], lambda ins, outs: kernel(*ins, *outs), dtype=dtype, name="search_sorted"
    )


SEARCHES: Mapping[str, Callable[[Any, Node], Any]] = {
    "bucketize.Scalar": bucketize,
    "bucketize.Tensor": bucketize,
    "searchsorted.Scalar": search_sorted,
    "searchsorted.Tensor": search_sorted,
}
"""By name of operator and overload."""
