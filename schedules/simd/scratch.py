"""Buffers that a kernel keeps for itself, made long enough for whole vectors.

A masked store keeps LLVM from holding a buffer in registers. In a buffer that ends with a whole vector the last store
needs no mask: what it writes beyond the data is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute

PADDING = 64
"""Elements to a multiple of which buffers are lengthened: the most that a vector has."""


class Scratch(dict[Any, int]):
    """The buffers that were lengthened, with the number of elements in use.

    Attributes
    ----------
    allocated : list of buffer
        All that the kernel allocates, lengthened or not.
    """

    def __init__(self, sizes: Mapping[Any, int], allocated: list[Any]) -> None:
        super().__init__(sizes)
        self.allocated = allocated

    def holds(self, buffer: Any) -> bool:
        """Whether the kernel allocates a buffer itself."""
        return any(buffer.same_as(own) for own in self.allocated)


def pad_scratch(func: tvm.tirx.PrimFunc) -> tuple[tvm.tirx.PrimFunc, Scratch]:
    """Lengthen the flat buffers that belong to one thread; return them with the number of elements in use."""
    padded: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}
    for allocation in _private_allocations(func):
        buffer = allocation.buffer
        shape = buffer.ty.shape
        if len(shape) != 1 or not isinstance(shape[0], prim.IntImm) or int(shape[0]) < 2:
            continue
        size = int(shape[0])
        longer = tirx.decl_buffer(
            (-(-size // PADDING) * PADDING,), str(buffer.ty.dtype), buffer.name, scope=buffer.scope()
        )
        padded[buffer], sizes[longer] = longer, size
    if padded:
        func = substitute(func, padded)
    allocated: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, lambda allocation: allocated.append(allocation.buffer)))
    return func, Scratch(sizes, allocated)


def _private_allocations(func: tvm.tirx.PrimFunc) -> list[Any]:
    """Find the allocations inside parallel loops, or all of them where no loop is parallel."""
    regions: list[Any] = []

    def note(loop: Any) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            regions.append(loop.body)

    tvm_ffi.structural_walk(func.body, (tirx.For, note))
    found: list[Any] = []
    for region in regions or [func.body]:
        tvm_ffi.structural_walk(region, (tirx.AllocBuffer, lambda allocation: found.append(allocation)))
    return found
