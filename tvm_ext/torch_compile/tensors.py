"""Tensors of PyTorch as tensors of TVM and back, through DLPack, in the same memory wherever kernels can use that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import tvm_ffi

from tvm_ext.artifact.arguments import compact
from tvm_ext.inputs import ALIGNMENT


def to_tvm(tensor: torch.Tensor, any_element: bool = False) -> Any:
    """Give TVM a tensor: its own memory if that is contiguous and begins where kernels can read it, else a copy.

    With ``any_element`` they can read it everywhere, else at multiples of 64 bytes.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if tensor.data_ptr() % (tensor.element_size() if any_element else ALIGNMENT):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return compact(tvm_ffi.from_dlpack(tensor))


def of_extent(extent: int) -> Any:
    """Make a tensor that has an extent and is never read."""
    return tvm_ffi.from_dlpack(torch.empty(extent, dtype=torch.int8))


def to_torch(result: Any, shares: bool) -> torch.Tensor:
    """Take a result of TVM: its memory, or a copy of it if others have it, too.

    PyTorch cannot resize memory of others; what is empty is copied, as it may be the ``out=`` of another operator.
    """
    tensor: torch.Tensor = torch.from_dlpack(result)
    return tensor.clone() if shares or not tensor.numel() else tensor


def as_number(extent: int | torch.SymInt) -> int:
    """Return an extent or a stride; of one that is open the number of the call that is traced, without a condition."""
    return extent if isinstance(extent, int) else int(extent.node.hint)


def with_order(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Lay a tensor out in memory as PyTorch would have, which views of it and later operators may rely on.

    Parameters
    ----------
    tensor : torch.Tensor
        Contiguous.
    order : sequence of int, optional
        Its axes from the one with the longest steps to the one with the shortest; None for their own order.
    """
    if order is None or tensor.numel() == 0:
        return tensor
    strides, step = [0] * tensor.dim(), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= tensor.shape[axis]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
