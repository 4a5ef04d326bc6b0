"""Converters of products of matrices and vectors that are scaled and added to something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument
from tvm_ext.frontend.torch.promotion import relax_dtype


def product_with_vector(importer: Any, node: Node) -> Any:
    """``torch.addmv``: ``beta * x + alpha * (matrix @ vector)``."""
    matrix, vector = (importer.env[operand] for operand in node.args[1:3])
    return _added(importer, node, importer.block_builder.emit(relax.op.matmul(matrix, vector)))


def sum_of_products(importer: Any, node: Node) -> Any:
    """``torch.addbmm``: ``beta * x + alpha * (left @ right).sum(0)``."""
    emit = importer.block_builder.emit
    left, right = (importer.env[operand] for operand in node.args[1:3])
    return _added(importer, node, emit(relax.op.sum(emit(relax.op.matmul(left, right)), 0)))


def _added(importer: Any, node: Node, product: Any) -> Any:
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    alpha, beta = argument(node, 4, "alpha", 1), argument(node, 3, "beta", 1)
    if alpha != 1:
        product = emit(relax.op.multiply(product, relax.const(alpha, dtype)))
    if beta == 0:  # a NaN in what is not added does not count
        return product
    added = importer.env[node.args[0]]
    if beta != 1:
        added = emit(relax.op.multiply(added, relax.const(beta, dtype)))
    return emit(relax.op.add(added, product))


PRODUCTS: Mapping[str, Callable[[Any, Node], Any]] = {
    "addbmm.default": sum_of_products,
    "addmv.default": product_with_vector,
}
"""By name of operator and overload."""
