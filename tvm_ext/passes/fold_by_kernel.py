"""Evaluates an operator on constants with the kernel that a compiled model would have, in its plainest form.

TVM's ``FoldConstant`` does so with TVM's kernels, in which a NaN gets lost in a maximum, the largest of bytes that are
all 0 is at place -1, and an integer divided by zero ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.passes.defined_integers import defined_integers
from tvm_ext.passes.exact_reductions import infinite_identities
from tvm_ext.passes.float_arithmetic import propagate_nan, protect_cancellations
from tvm_ext.passes.float_legalizations import FLOAT_LEGALIZATIONS
from tvm_ext.passes.indexing import INDEXING_LEGALIZATIONS
from tvm_ext.passes.resize_corners import RESIZE_LEGALIZATIONS
from tvm_ext.passes.scope_pragmas import drop_scope_pragmas


def kernel_value(call: relax.Call, most: int) -> np.ndarray | None:
    """Evaluate a call of an operator whose operands are constants.

    Parameters
    ----------
    call : relax.Call
        Normalised.
    most : int
        Bytes that the result may take.

    Returns
    -------
    np.ndarray or None
        None if the call is not one kernel with one result of a known size, or that is too large.
    """
    shape = _known_shape(call.ty)
    if shape is None or result_bytes(call.ty) > most or not call.op.has_attr("FLegalize"):
        return None
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps(FLOAT_LEGALIZATIONS | RESIZE_LEGALIZATIONS | INDEXING_LEGALIZATIONS)(
        builder.get()
    )
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [value for value in values if isinstance(value, relax.Call)]
    if len(calls) != 1 or calls[0].op != tvm.ir.Op.get("relax.call_tir") or len(calls[0].args) != 2:
        return None
    global_var, fields = calls[0].args
    if not isinstance(fields, relax.Tuple) or not all(isinstance(f, tvm.ir.GenericConst) for f in fields.fields):
        return None
    return _result(mod[global_var], fields.fields, shape, str(call.ty.dtype))


def kernel_call_value(mod: tvm.IRModule, call: relax.Call, most: int) -> np.ndarray | None:
    """Evaluate a ``call_tir`` whose operands are constants.

    Parameters
    ----------
    mod : tvm.IRModule
        Where the kernel is.
    call : relax.Call
        Normalised.
    most : int
        Bytes that the result may take.

    Returns
    -------
    np.ndarray or None
        None if the call takes anything else, gives more than one tensor, one of an unknown size or one that is too
        large, if the kernel has instructions of the target's processor, which this machine may lack, or if it refuses
        what it is given: then a run says so.
    """
    shape = _known_shape(call.ty)
    if shape is None or result_bytes(call.ty) > most or len(call.args) != 2:
        return None
    operands = getattr(call.args[1], "fields", [])
    if not operands or not all(isinstance(operand, tvm.ir.GenericConst) for operand in operands):
        return None
    kernel = mod[call.args[0]]
    if _has_instructions(kernel):
        return None
    try:
        return _result(kernel, operands, shape, str(call.ty.dtype))
    except (AssertionError, RuntimeError, ValueError, IndexError):
        return None


def _has_instructions(kernel: tirx.PrimFunc) -> bool:
    found: set[str] = set()
    tvm_ffi.structural_walk(kernel.body, [(tvm.ir.Call, lambda call: found.add(str(getattr(call.op, "name", ""))))])
    return not found.isdisjoint(("tirx.call_llvm_intrin", "tirx.call_llvm_pure_intrin"))


def _result(kernel: tirx.PrimFunc, operands: Sequence[Any], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    output = tvm.runtime.empty(shape, dtype)
    _compiled(kernel)(*(operand.value for operand in operands), output)
    return np.asarray(output.numpy())


def result_bytes(ty: Any) -> int:
    """Bytes of a tensor of a type; -1 where they are not known."""
    shape = _known_shape(ty)
    return -1 if shape is None else math.prod(shape) * tvm.DataType(str(ty.dtype)).bits // 8


def _known_shape(ty: Any) -> tuple[int, ...] | None:
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
        return None
    return tuple(int(dim) for dim in shape)


def _compiled(kernel: tvm.tirx.PrimFunc) -> tvm.runtime.Module:
    mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    passes = [
        drop_scope_pragmas(), infinite_identities(), protect_cancellations(), propagate_nan(), defined_integers(),
    ]  # fmt: skip
    with tvm.target.Target("llvm"):
        mod = tvm.transform.Sequential(passes)(mod)
    return tvm.compile(mod, tvm.target.Target("llvm"))
