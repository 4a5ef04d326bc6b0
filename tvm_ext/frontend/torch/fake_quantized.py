"""Rounding to the numbers that a quantised type has, in floats: what training that is aware of quantisation exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def with_numbers(
    data: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``fake_quantize_per_tensor_affine`` with numbers, as PyTorch does: by a reciprocal in float32."""
    step = np.float32(scale)
    return _rounded(data, float(step), float(np.float32(1) / step), float(zero_point), (quant_min, quant_max))


def with_tensors(
    data: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    fake_quant_enabled: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``fake_quantize_per_tensor_affine`` with tensors of one element, and one that switches it off."""
    found, inside = _by_tensors(data, scale.reshape(()), zero_point.reshape(()), (quant_min, quant_max))
    enabled = fake_quant_enabled.reshape(()) != 0
    return torch.where(enabled, found, data), inside | ~enabled


def by_channels(
    data: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``fake_quantize_per_channel_affine``: a scale and a zero point for each place along an axis."""
    shape = [1] * data.dim()
    shape[axis] = -1
    return _by_tensors(data, scale.reshape(shape), zero_point.reshape(shape), (quant_min, quant_max))


def _by_tensors(
    data: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, ends: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    step = scale.to(torch.float32)
    return _rounded(data, step, torch.reciprocal(step), zero_point.to(torch.float32), ends)


def _rounded(
    data: torch.Tensor, step: Any, reciprocal: Any, middle: Any, ends: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.round(data.to(torch.float32) * reciprocal) + middle
    found = (torch.clamp(numbers, *ends) - middle) * step
    return found.to(data.dtype), (numbers >= ends[0]) & (numbers <= ends[1])


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.fake_quantize_per_tensor_affine_cachemask.default: with_numbers,
    torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: with_tensors,
    torch.ops.aten.fake_quantize_per_channel_affine_cachemask.default: by_channels,
}
"""By operator."""
