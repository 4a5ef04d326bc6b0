"""What operators are taken apart into while PyTorch traces: those that ``torch.export`` takes apart, and a few more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions
from torch.export import exported_program
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tvm_ext.frontend.torch.attention import decomposition
from tvm_ext.frontend.torch.decompositions import DECOMPOSITIONS, instance_norm
from tvm_ext.frontend.torch.einsum import decomposition as einsum_parts
from tvm_ext.frontend.torch.sampling import KEPT
from tvm_ext.torch_compile.tensors import as_number

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]

NORMALIZATIONS = (
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten.native_batch_norm,
    aten.native_group_norm,
    aten.native_layer_norm,
)
"""Converters give their first result; gradients are computed from the others, too."""


@lru_cache(maxsize=2)
def decompositions(has_gradients: bool) -> Table:
    """Collect what operators are taken apart into.

    Parameters
    ----------
    has_gradients : bool
        Whether gradients are taken of what is traced.
    """
    table = _exported()[1] if not has_gradients else {**_exported()[0], **_exported()[1]}
    of_batches = get_decompositions([aten._native_batch_norm_legit_functional, aten._native_batch_norm_legit])
    whole = {**table, **of_batches, **_OWN}
    if not has_gradients:
        return whole
    del whole[aten._scaled_dot_product_flash_attention_for_cpu.default]  # gradients need its second result, too
    return {**whole, **get_decompositions(NORMALIZATIONS)}


@contextmanager
def operators_with_converters(has_gradients: bool) -> Iterator[None]:
    """Trace with composite operators that have converters, or with what these are made of where gradients are taken."""
    if has_gradients:
        with sdpa_kernel(SDPBackend.MATH), _InOrderOfQuery():  # whose parts have converters
            yield
        return
    composite = dict(_exported()[0])
    composite[aten.einsum.default] = _laid_out_as(composite[aten.einsum.default])
    composite[aten.instance_norm.default] = instance_norm(composite[aten.instance_norm.default])
    own = aten.scaled_dot_product_attention.default
    composite[own] = _like_the_kernel(decomposition(composite[own]))
    with exported_program._override_composite_implicit_decomp(composite):
        yield


@lru_cache(maxsize=1)
def _exported() -> tuple[Table, Table]:
    """Collect what ``torch.export`` takes composite operators apart into, and what others."""
    table = torch.export.default_decompositions()
    for operator in KEPT:
        table.pop(operator)
    composite, others = exported_program._split_decomp_table_to_cia_and_python_decomp(table)
    return composite, others


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Take apart what ``nn.MultiheadAttention`` calls where no gradients are needed."""
    if query is not key or key is not value:
        return NotImplemented
    batch, length = query.shape[:2]
    parts = F.linear(query, qkv_weight, qkv_bias).reshape(batch, length, 3, num_head, embed_dim // num_head)
    q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = mask[:, None, None, :] if mask_type == 1 else mask
        scores = scores.masked_fill(hidden.bool(), -math.inf)
    weights = scores.softmax(-1)
    joined = (weights @ v).transpose(1, 2).reshape(batch, length, embed_dim)
    if average_attn_weights:
        weights = weights.mean(1)
    return F.linear(joined, proj_weight, proj_bias), weights if need_weights else None


def attention_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the kernel apart that ``F.scaled_dot_product_attention`` calls on a CPU, where it is called by its own name.

    PyTorch's own table has the result in an order of axes that the operator itself never gives: that of the query. Code
    behind the graph may depend on it, as ``view`` does.
    """
    output, sums = aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        dropout_mask=None,
        scale=1 / math.sqrt(int(query.size(-1))) if scale is None else scale,
        enable_gqa=query.size(1) != key.size(1),
    )
    return _in_order_of(query, output), sums


def _like_the_kernel(parts: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Lay the results of ``F.scaled_dot_product_attention`` out as PyTorch's kernel does.

    Code behind the graph may depend on it, as ``view`` does.
    """

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _as_the_kernel_does(parts(*args, **kwargs), *args, **kwargs)

    return attention


def _laid_out_as(einsum: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Lay the results of ``torch.einsum`` out as PyTorch's own products are."""
    parts = einsum_parts(einsum)

    def laid_out(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _in_order_of(einsum(*args, **kwargs), parts(*args, **kwargs))

    return laid_out


def _in_order_of(query: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    strides = [as_number(stride) for stride in query.stride()]
    order = sorted(range(query.dim()), key=lambda axis: (-strides[axis], axis))
    back = sorted(range(query.dim()), key=order.__getitem__)
    return output.permute(order).contiguous().permute(back)


class _InOrderOfQuery(TorchFunctionMode):
    """Lays the results of attention out as PyTorch's kernel does, where its parts take the place of that kernel."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, and lay out what attention gives."""
        result = function(*args, **(kwargs or {}))
        if function is not F.scaled_dot_product_attention:
            return result
        return _as_the_kernel_does(result, *args, **(kwargs or {}))


def _as_the_kernel_does(
    result: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    *_args: Any,
    **_kwargs: Any,
) -> torch.Tensor:
    """Lay the result of attention out like the query, where PyTorch has one kernel for it."""
    has_kernel = (
        query.dim() == key.dim() == value.dim() == 4
        and query.size(-1) == key.size(-1) == value.size(-1)
        and all(as_number(operand.stride(-1)) == 1 for operand in (query, key, value))
        and not dropout_p
        and not (attn_mask is not None and attn_mask.requires_grad)
    )
    return _in_order_of(query, result) if has_kernel else result


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Take apart what ``nn.TransformerEncoderLayer`` calls where no gradients are needed."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        result: torch.Tensor = attention(x, x, x, embed_dim, num_heads, *weights, mask, False, False, mask_type)[0]
        return result

    def transformed(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def normal_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def normal_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attended(normal_1(src))
        return src + transformed(normal_2(src))
    src = normal_1(src + attended(src))
    return normal_2(src + transformed(src))


def variance_and_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Take ``torch.var_mean`` of real numbers apart."""
    if x.is_complex():
        return NotImplemented
    axes = list(dim) if dim else list(range(x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    mean = x.mean(axes, keepdim=True)
    squares = (x - mean).square().sum(axes, keepdim=True)
    divisor = count - (1 if correction is None else correction)
    variance = squares / divisor if divisor > 0 else squares * math.inf  # a quotient by 0
    return tuple(value if keepdim else value.squeeze(tuple(axes)) for value in (variance, mean))


_OWN: Table = {
    **DECOMPOSITIONS,
    aten._native_multi_head_attention.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention_on_cpu,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten.var_mean.correction: variance_and_mean,
}
