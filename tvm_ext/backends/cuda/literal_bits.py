"""Literals whose bits are read as a float, or as an integer, are written so that C++ takes them.

before: ``T.reinterpret("float32", T.int32(-2147483648))``, in C++ ``*(float *)(&(-2147483648))``, which has no address
after:  ``T.call_pure_extern("float32", "__int_as_float", T.int32(-2147483648))``
before: ``T.reinterpret("int32", T.float32(1))``
after:  ``T.int32(1065353216)``

The first hides a zero in a divisor from TVM (:mod:`tvm_ext.passes.float_arithmetic`), which must not see it later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

_TO_FLOAT = {"int32": "__int_as_float", "uint32": "__uint_as_float"}


def literal_bits() -> tvm.transform.Pass:
    """Make the pass."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.LiteralBits")
    def _literals(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return tvm_ffi.structural_mutate(func, [(tvm.ir.Call, _call)])

    return _literals


def has_no_address(literal: Any) -> bool:
    """Whether TVM prints an expression as a literal alone; those of other types are conversions, kept in a variable."""
    return isinstance(literal, prim.IntImm | prim.FloatImm) and str(literal.ty.dtype) in (*_TO_FLOAT, "float32")


def _call(call: Any, mutator: Any) -> Any:
    call = mutator.default_mutate(call)
    if getattr(call.op, "name", "") != "tirx.reinterpret" or not has_no_address(call.args[0]):
        return call
    literal, dtype = call.args[0], str(call.ty.dtype)
    source = str(literal.ty.dtype)
    if source == "float32" and dtype in _TO_FLOAT:
        return tirx.IntImm(dtype, int(np.float32(literal.value).view(dtype)))
    return tirx.call_pure_extern(dtype, _TO_FLOAT[source], literal) if dtype == "float32" else call
