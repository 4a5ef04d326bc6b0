"""Operators along a dimension, of tensors that have none: PyTorch takes these for vectors of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from tvm import relax

NOT_OF_SCALARS = (
    "argmax.default",
    "argmin.default",
    "argsort.default",
    "argsort.stable",
    "flip.default",
    "gather.default",
    "index_select.default",
    "linalg_vector_norm.default",
    "mean.dim",
    "median.dim",
    "sort.default",
    "sort.stable",
    "sum.dim_IntList",
    "topk.default",
    "unfold.default",
    "var.correction",
)
"""By name of operator and overload, those that Relax refuses or converters do not expect without dimensions."""


def as_vectors(converter: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Convert a node whose first tensor has no dimensions as one of vectors, and take the dimension off again."""
    data = node.args[0].meta["val"] if isinstance(node.args[0], Node) else None
    if not isinstance(data, torch.Tensor) or data.dim():
        return converter(node)
    emit = importer.block_builder.emit
    before = {operand: importer.env[operand] for operand in node.all_input_nodes}
    for operand, value in before.items():
        if isinstance(operand.meta["val"], torch.Tensor) and not operand.meta["val"].dim():
            importer.env[operand] = emit(relax.op.reshape(value, [1]))
    try:
        result = converter(node)
    finally:
        importer.env.update(before)
    expected = node.meta["val"]
    if isinstance(expected, torch.Tensor):
        return emit(relax.op.reshape(result, list(expected.shape)))
    parts = [emit(relax.op.reshape(emit(result[k]), list(part.shape))) for k, part in enumerate(expected)]
    return emit(relax.Tuple(parts))
