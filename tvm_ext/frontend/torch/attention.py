"""Attention of PyTorch as two products and a softmax, in the form that the kernels of attention are found in.

before: ``F.scaled_dot_product_attention(q, k, v, is_causal=True)``
after:  ``softmax(where(later, -inf, bmm(q, k.T) * scale)) @ v``, heads and batches one axis

PyTorch's own decomposition multiplies both operands by the root of the scale, and replaces weights of rows of which
everything is masked, found by their scores. Here the mask tells which rows these are, and their results are replaced.
A row of a causal mask keeps its first key.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def decomposition(others: Callable[..., Any]) -> Callable[..., Any]:
    """Make the decomposition; ``others`` is asked where there is dropout, or heads are shared."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa and _shares_heads(query, key, value):
            key, value = (
                operand.repeat_interleave(query.shape[-3] // operand.shape[-3], -3) for operand in (key, value)
            )
        operands = (query, key, value)
        empty = any(type(extent) is int and not extent for operand in operands for extent in operand.shape)
        both = attn_mask is not None and is_causal
        other = both or dropout_p or empty or query.dim() < 3 or type(query.shape[-1]) is not int
        if other or not _same_leading(operands):
            return others(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )  # fmt: skip
        rows, columns = query.shape[-2], key.shape[-2]
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if attn_mask is not None:
            return _masked(query, key, value, attn_mask, factor)
        left, right, weighted = (operand.reshape(-1, *operand.shape[-2:]) for operand in operands)
        scores = torch.bmm(left, right.transpose(1, 2)) * factor
        if is_causal:
            later = torch.ones(rows, columns, dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        result = torch.bmm(torch.softmax(scores, -1), weighted)
        result = result.reshape(*query.shape[:-1], value.shape[-1])
        if _heads_stay_inside(query, value):
            result = result.transpose(1, 2).contiguous().transpose(1, 2)
        return result

    return attention


def _shares_heads(*operands: torch.Tensor) -> bool:
    """Whether each head of keys and of values is that of as many heads of queries, none of their numbers being open."""
    if any(operand.dim() < 4 for operand in operands):
        return False
    most, *others = (operand.shape[-3] for operand in operands)
    return isinstance(most, int) and all(isinstance(number, int) and number and most % number == 0 for number in others)


def _masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, factor: float
) -> torch.Tensor:
    """Take attention with a mask apart: of truth values, or to be added. Rows without a key are zeros."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * factor
    if mask.dtype == torch.bool:
        keys = mask
        scores = torch.where(mask, scores, -math.inf)
    else:
        keys = mask != -math.inf
        scores = scores + mask
    kept = keys.any(-1, keepdim=True)
    kept = kept.reshape(*[1] * (query.dim() - kept.dim()), *kept.shape)
    result = torch.matmul(torch.softmax(scores, -1), value)
    if not _heads_stay_inside(query, value):
        return torch.where(kept, result, 0.0)
    # In the order that the result is wanted in, so that the transpose stands behind the product.
    return torch.where(kept.transpose(1, 2), result.transpose(1, 2), 0.0).contiguous().transpose(1, 2)


def _heads_stay_inside(query: torch.Tensor, value: torch.Tensor) -> bool:
    return _has_heads_inside(query) and query.shape[-1] == value.shape[-1]


def _has_heads_inside(query: torch.Tensor) -> bool:
    """Whether the heads of a row lie side by side in memory: (batch, heads, rows, size) out of (batch, rows, features).

    PyTorch's kernel returns what lies like the query. A program was traced with that: where it makes the heads features
    again, ``contiguous()`` found nothing to do and is not in the program, and the ``view`` behind it needs the order.
    """
    return query.dim() == 4 and statically_known_true(query.stride(1) < query.stride(2))


def _same_leading(operands: Sequence[torch.Tensor]) -> bool:
    """Whether batches and heads are the same, whatever the extents that are open."""
    first, *rest = (operand.shape[:-2] for operand in operands)
    return all(
        len(other) == len(first) and all(map(statically_known_true, map(operator.eq, first, other))) for other in rest
    )
