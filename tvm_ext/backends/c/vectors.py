"""Divides vector loops that are wider than the vectors of the processor, or of a length that C has no vectors of.

LLVM divides such vectors itself. GCC keeps wide ones in memory, and takes them apart element by element; lengths that
are no power of two are errors to it.

before: ``for x in vectorized(16): y[x] = ...``                               of float32, with vectors of 256 bits
after:  ``for part in 0..2: for x in vectorized(8): y[8 * part + x] = ...``
before: ``y[ramp(0, 1, 24)] = shuffle(rows, places)``
after:  ``y[ramp(0, 1, 8)] = shuffle(rows, places[:8])``, and so on
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute


def divide_vectors(body: tirx.Stmt, vector_bits: int) -> tirx.Stmt:
    """Divide the vector loops of a kernel.

    Parameters
    ----------
    body : tirx.Stmt
        Loops that are marked as vectors, before TVM makes vectors of them.
    vector_bits : int
        Of the widest vectors of the processor.
    """

    def divided(loop: Any, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        lanes = vector_bits // _widest(loop.body) if loop.kind == tirx.ForKind.VECTORIZED else 0
        extent = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
        lanes = min(lanes, extent & -extent)  # the largest power of two that divides the extent
        if not lanes or extent == lanes or not _is_zero(loop.min):
            return loop
        if lanes == 1:
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)
        part = tvm.ir.Var(f"{loop.loop_var.name}_part", loop.loop_var.ty)
        inner = tvm.ir.Var(str(loop.loop_var.name), loop.loop_var.ty)
        inside = substitute(loop.body, {loop.loop_var: part * lanes + inner})
        vector = tirx.For(inner, loop.min, tirx.const(lanes, loop.loop_var.ty.dtype), loop.kind, inside)
        count = tirx.const(extent // lanes, loop.loop_var.ty.dtype)
        return tirx.For(part, loop.min, count, tirx.ForKind.UNROLLED, vector)

    return tvm_ffi.structural_mutate(body, ((tirx.For, divided), (tirx.BufferStore, _divided_store)))


def _divided_store(store: Any, mutator: Any) -> Any:
    """Store lanes of other vectors, such as the 24 of three rows of pixels, in parts."""
    store = mutator.default_mutate(store)
    shuffle, indices = store.value, list(store.indices)
    if not isinstance(shuffle, prim.Shuffle) or len(indices) != 1 or not isinstance(indices[0], prim.Ramp):
        return store
    index = indices[0]
    lanes = len(shuffle.indices)
    part = lanes & -lanes  # the largest power of two that divides it
    if part in (1, lanes) or not isinstance(index.stride, tirx.IntImm):
        return store
    parts = []
    for first in range(0, lanes, part):
        base = index.base + index.stride * tirx.const(first, index.base.ty.dtype)
        vector = prim.Shuffle(shuffle.vectors, list(shuffle.indices)[first : first + part])
        parts.append(tirx.BufferStore(store.buffer, vector, [prim.Ramp(base, index.stride, part)]))
    return tirx.SeqStmt(parts)


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 0


def _widest(body: Any) -> int:
    """Bits of the widest elements that a loop stores."""
    bits = [8]
    tvm_ffi.structural_walk(
        body, (tirx.BufferStore, lambda store: bits.append(tvm.DataType(str(store.buffer.dtype)).bits))
    )
    return max(bits)
