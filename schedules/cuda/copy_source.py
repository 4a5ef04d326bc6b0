"""What an asynchronous copy reads, as a pointer and an offset: in TVM's CUDA an offset in bytes has 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.schedules.cuda.blocks import element_bytes
from tvm_ext.schedules.cuda.open_extents import is_open, product
from tvm_ext.schedules.cuda.statements import number

OFFSET_BYTES = 1 << 31
"""What an offset of 32 bits with a sign does not reach."""


def within_offsets(buffer: Any) -> bool:
    """Whether offsets reach all of a buffer, whatever its open extents are."""
    elements = product(buffer.shape)
    return not is_open(elements) and elements * element_bytes(buffer.dtype) <= OFFSET_BYTES


def pointer_to(buffer: Any, indices: Sequence[Any]) -> tuple[Any, Any]:
    """Give a pointer to an element, and no offset."""
    return tirx.address_of(tirx.BufferLoad(buffer, list(indices))), number(0)
