"""What operators that TVM's importer has no converter for become in PyTorch's own terms, before they are converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

from tvm_ext.frontend.torch import fake_quantized


def mode(data: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``torch.mode``: in order, the end of the first of the longest runs of equal values."""
    if not data.dim():
        return data.clone(), torch.zeros_like(data, dtype=torch.int64)
    ordered, places = torch.sort(data, dim=dim, stable=True)
    length = data.shape[dim]
    differs = ordered.narrow(dim, 1, length - 1) != ordered.narrow(dim, 0, length - 1)
    differs = torch.cat([torch.ones_like(ordered.narrow(dim, 0, 1), dtype=torch.bool), differs], dim)
    shape = [1] * data.dim()
    shape[dim] = length
    numbers = torch.arange(length, device=data.device).reshape(shape)
    begins = torch.cummax(torch.where(differs, numbers, 0), dim)[0]
    at = torch.argmax(numbers - begins, dim, keepdim=True)
    found = torch.gather(ordered, dim, at), torch.gather(places, dim, at)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Decompose places repeated by a tensor, if how many they are is told: the first sum that is beyond each."""
    if output_size is None:
        return NotImplemented
    sums = torch.cumsum(repeats, 0)
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(sums, places, right=True).to(repeats.dtype)


def soft_margin_loss(data: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """Decompose ``log(1 + exp(-y x))`` so that no exponential is beyond the largest number; in float32 for halves."""
    dtype = torch.promote_types(data.dtype, target.dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    margin = data.to(wide) * target.to(wide)
    loss = torch.clamp(-margin, min=0) + torch.log1p(torch.exp(-margin.abs()))
    return (loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()).to(dtype)


def roll(data: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Decompose ``torch.roll`` along known extents into two slices that are joined, which are fused to what reads them.

    PyTorch's own decomposition gathers.
    """
    if not dims or not all(type(extent) is int for extent in (*shifts, *(data.shape[dim] for dim in dims))):
        return _GATHERED_ROLL(data, shifts, dims)
    rolled = data.clone()
    for shift, axis in zip(shifts, dims, strict=True):
        dim = axis % data.dim()
        extent = data.shape[dim]
        last = shift % extent if extent else 0
        if last:
            parts = rolled.narrow(dim, extent - last, last), rolled.narrow(dim, 0, extent - last)
            rolled = torch.cat(parts, dim)
    return rolled


def mish(data: torch.Tensor) -> torch.Tensor:
    """Decompose ``x tanh(log(1 + exp(x)))`` without a logarithm: a quotient of polynomials of ``exp(x)``.

    Which is 1 long before the exponential is beyond the largest number.
    """
    wide = data.to(torch.float64 if data.dtype == torch.float64 else torch.float32)
    power = torch.exp(torch.clamp(wide, max=20))
    terms = power * (power + 2)
    return (wide * (terms / (terms + 2))).to(data.dtype)


def instance_norm(others: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make the decomposition of ``F.instance_norm``: groups of one channel, where it takes a sample's statistics.

    PyTorch's own has batch and channels in one axis, with reshapes on both sides. ``others`` is asked for other forms.
    """

    def decomposition(
        data: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        use_input_stats: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> torch.Tensor:
        has_own = use_input_stats and running_mean is None and running_var is None
        alike = all(given is None or given.dtype == data.dtype for given in (weight, bias))
        if has_own and alike and type(data.shape[1]) is int and data.shape[1]:
            return torch.nn.functional.group_norm(data.contiguous(), data.shape[1], weight, bias, eps)
        return others(data, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled)

    return decomposition


_GATHERED_ROLL = get_decompositions([torch.ops.aten.roll.default])[torch.ops.aten.roll.default]


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    **fake_quantized.DECOMPOSITIONS,
    torch.ops.aten.mish.default: mish,
    torch.ops.aten.mode.default: mode,
    torch.ops.aten.repeat_interleave.Tensor: repeat_interleave,
    torch.ops.aten.roll.default: roll,
    torch.ops.aten.soft_margin_loss.default: soft_margin_loss,
}
"""By operator."""
