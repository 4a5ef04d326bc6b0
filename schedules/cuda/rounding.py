"""Tiles of float32 in shared memory are rounded to tf32 as they are filled.

before: ``tile[i, k] = x[i, k]`` of scope ``shared``
after:  the same with the last 13 bits of the mantissa rounded away, to the nearest number, halves away from zero
        (``cvt.rna.tf32.f32``)

``mma`` of tf32 does not look at those bits: without this it would cut them off. Where a condition chooses between an
element and a number, as behind the edge of a tensor, only the element is rounded by the kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

HALF, KEPT = 0x1000, 0xFFFFE000
"""Half of the last place that is kept, and the bits that are."""


def rounded_to_tf32(func: PrimFunc) -> PrimFunc:
    """Round whatever is stored to shared memory of float32."""

    def store(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if not str(node.buffer.scope()).startswith("shared") or str(node.buffer.dtype) != "float32":
            return node
        return tirx.BufferStore(node.buffer, to_tf32(node.value), node.indices, node.span)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.BufferStore, store)])
    return PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)


def to_tf32(value: Any) -> Any:
    """Round a float32; infinities stay, and so do numbers that are none as long as one of their kept bits is set."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(_rounded(np.float32(value.value))), "float32")
    if isinstance(value, tvm.tirx.Select):
        return tvm.tirx.Select(value.condition, to_tf32(value.true_value), to_tf32(value.false_value))
    if getattr(getattr(value, "op", None), "name", "").endswith("if_then_else"):
        condition, chosen, otherwise = value.args
        return tirx.if_then_else(condition, to_tf32(chosen), to_tf32(otherwise))
    bits = tirx.reinterpret("uint32", value)
    half, kept = tirx.const(HALF, "uint32"), tirx.const(KEPT, "uint32")
    rounded = tirx.reinterpret("float32", tirx.bitwise_and(bits + half, kept))
    # A carry out of the mantissa of what is not finite would make another number of it.
    exponent = tirx.const(0x7F800000, "uint32")
    is_finite = tirx.NE(tirx.bitwise_and(bits, exponent), exponent)
    return tvm.tirx.Select(is_finite, rounded, value)


def _rounded(value: np.float32) -> np.float32:
    """Round a number now: what is printed as a number has no address that its bits could be read from."""
    if not np.isfinite(value):
        return value
    return ((value.view(np.uint32) + np.uint32(HALF)) & np.uint32(KEPT)).view(np.float32)
