"""Vectors of 8 or 16 equal bytes become words, as TVM prints more arguments for them than CUDA's types take.

before: ``T.Broadcast(T.int8(0), 16)``, in C++ ``make_int4(0, 0, ... sixteen of them)``
after:  ``T.reinterpret("int8x16", T.Broadcast(T.int32(0), 4))``
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import element_type, lanes_of, wide_type

BYTES = ("int8", "uint8")
WORD = 4
"""Bytes of a word; vectors as short as that are printed right."""


def holds_byte_vectors(func: tirx.PrimFunc) -> bool:
    """Whether a scheduled kernel has a loop over a vector of bytes that holds a constant byte."""
    found: list[bool] = []

    def note(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED and isinstance(loop.extent, tirx.IntImm) and int(loop.extent) > WORD:
            tvm_ffi.structural_walk(
                loop.body, [(tirx.IntImm, lambda number: found.append(element_type(number) in BYTES))]
            )

    tvm_ffi.structural_walk(func.body, [(tirx.For, note)])
    return any(found)


def words_of_bytes(body: Any) -> Any:
    """Write vectors of equal bytes as words, in a function whose loops over vectors are vectors already."""

    def broadcast(vector: Any, mutator: Any) -> Any:
        value, lanes = vector.value, lanes_of(vector)
        if element_type(vector) not in BYTES or lanes <= WORD or not isinstance(value, tirx.IntImm):
            return mutator.default_mutate(vector)
        byte = int(value) % 256
        word = int.from_bytes(bytes([byte] * WORD), "little", signed=True)
        words = prim.Broadcast(tirx.IntImm("int32", word), lanes // WORD)
        return tirx.reinterpret(wide_type(element_type(vector), lanes), words)

    return tvm_ffi.structural_mutate(body, [(prim.Broadcast, broadcast)])
