"""Writes conversions of bfloat16 inside named values, and roundings to it, as arithmetic on their bits.

before: ``value = float32(x[i])``
after:  ``value = reinterpret<float32>(uint32(reinterpret<uint16>(x[i])) << 16)``

TVM keeps bfloat16 as 16-bit integers, and changes the conversions accordingly, but not those in the value that a name
is given to: there the bits would be converted as the number that they are as an integer. Elsewhere it computes in
float32, and takes ``float32(bfloat16(v))`` for ``v``: what is there to be rounded would not be.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import constant_like, element_type, lanes_of, wide_type

_SHIFT, _HALF, _UPPER = 16, 0x7FFF, 0xFFFF0000


def named_bfloat16() -> tvm.transform.Pass:
    """Make the pass; it runs after everything that names values."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.NamedBfloat16")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        def statement(node: Any, mutator: Any) -> Any:
            return mutator.default_mutate(tirx.Bind(node.var, tvm_ffi.structural_mutate(node.value, _CONVERSIONS)))

        def let(node: Any, mutator: Any) -> Any:
            value = tvm_ffi.structural_mutate(node.value, _CONVERSIONS)
            return mutator.default_mutate(prim.Let(node.var, value, node.body))

        return tvm_ffi.structural_mutate(func, [(tirx.Bind, statement), (prim.Let, let), (prim.Cast, _round)])

    return _rewrite


def _round(node: Any, mutator: Any) -> Any:
    if _widens(node) and isinstance(node.value, prim.Cast) and element_type(node.value.value) == "float32":
        return _rounded(mutator.mutate(node.value.value))
    return mutator.default_mutate(node)


def _convert(node: Any, mutator: Any) -> Any:
    if _widens(node) and not (isinstance(node.value, prim.Cast) and element_type(node.value.value) == "float32"):
        return _widened(mutator.mutate(node.value))
    return _round(node, mutator)


def _widens(node: Any) -> bool:
    return element_type(node) == "float32" and element_type(node.value) == "bfloat16"


_CONVERSIONS = [(prim.Cast, _convert)]


def _widened(value: Any) -> Any:
    """Give the float32 of which a bfloat16 is the upper half."""
    lanes = lanes_of(value)
    bits = prim.Cast(wide_type("uint32", lanes), tirx.reinterpret(wide_type("uint16", lanes), value))
    return tirx.reinterpret(wide_type("float32", lanes), bits << constant_like(_SHIFT, bits))


def _rounded(value: Any) -> Any:
    """Give the nearest float32 that is a bfloat16, of two as near the even one."""
    lanes = lanes_of(value)
    bits = tirx.reinterpret(wide_type("uint32", lanes), value)
    is_odd = (bits >> constant_like(_SHIFT, bits)) & constant_like(1, bits)
    nearest = (bits + is_odd + constant_like(_HALF, bits)) & constant_like(_UPPER, bits)
    return tirx.reinterpret(wide_type("float32", lanes), nearest)
