"""What ``torch.einsum`` of two operands becomes: a product of matrices with their axes, where it is one.

before: ``torch.einsum("bhcq,bhck->bhqk", q, k)``
after:  ``torch.matmul(q.permute(0, 1, 3, 2), k)``

PyTorch's own products have one axis that counts them, with reshapes on all sides, and the operands in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tvm_ext.frontend.index_products import Product, product_of, without_lone


def decomposition(others: Callable[..., Any]) -> Callable[..., Any]:
    """Make the decomposition; ``others`` is asked where a sum is no product of two matrices."""

    def einsum(equation: str, tensors: Sequence[torch.Tensor], *, path: Sequence[int] | None = None) -> torch.Tensor:
        before, arrow, result = equation.replace(" ", "").partition("->")
        subscripts = before.split(",")
        fits = arrow and len(subscripts) == len(tensors) == 2 and "." not in equation
        extents = _extents(subscripts, tensors) if fits else None
        kept = [without_lone(indices, subscripts, result) for indices in subscripts] if fits else []
        product = None if extents is None else product_of(kept[0], kept[1], result)
        if product is None or extents is None:
            composed: torch.Tensor = others(equation, tensors, path=path)
            return composed
        operands = [_summed(*item) for item in zip(tensors, subscripts, kept, strict=True)]
        return _product(operands, kept, result, product, extents)

    return einsum


def _product(
    operands: Sequence[torch.Tensor], subscripts: Sequence[str], result: str, product: Product, extents: dict[str, Any]
) -> torch.Tensor:
    def arranged(tensor: torch.Tensor, indices: str, *groups: str) -> torch.Tensor:
        """Put axes into the order of groups, each of which becomes one axis."""
        ordered = _permuted(tensor, indices, product.batch + "".join(groups))
        if all(len(group) == 1 for group in groups):
            return ordered
        counts = [math.prod(extents[index] for index in group) for group in groups]
        return ordered.reshape([*(extents[index] for index in product.batch), *counts])

    left = arranged(operands[0], subscripts[0], product.rows, product.depth)
    right = arranged(operands[1], subscripts[1], product.depth, product.columns)
    found = torch.matmul(left, right)
    made = product.batch + product.rows + product.columns
    if len(product.rows) != 1 or len(product.columns) != 1:
        found = found.reshape([extents[index] for index in made])
    return _permuted(found, made, result)


def _summed(tensor: torch.Tensor, indices: str, kept: str) -> torch.Tensor:
    axes = [axis for axis, index in enumerate(indices) if index not in kept]
    return tensor.sum(axes) if axes else tensor


def _permuted(tensor: torch.Tensor, given: str, wanted: str) -> torch.Tensor:
    return tensor if given == wanted else tensor.permute([given.index(index) for index in wanted])


def _extents(subscripts: Sequence[str], tensors: Sequence[torch.Tensor]) -> dict[str, Any] | None:
    """Give the extents by index; None where one is not known to be the same in both operands."""
    extents: dict[str, Any] = {}
    for indices, tensor in zip(subscripts, tensors, strict=True):
        if tensor.dim() != len(indices):
            return None
        for index, extent in zip(indices, tensor.shape, strict=True):
            if not statically_known_true(extents.setdefault(index, extent) == extent):
                return None
    return extents
