"""Evaluates an operator on constants with the kernel that a compiled model would have, in its plainest form.

TVM's ``FoldConstant`` does so with TVM's kernels, in which a NaN gets lost in a maximum, the largest of bytes that are
all 0 is at place -1, and an integer divided by zero ends the process.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from tvm_ext.passes.defined_integers import defined_integers
from tvm_ext.passes.exact_reductions import infinite_identities
from tvm_ext.passes.float_arithmetic import FLOAT_LEGALIZATIONS, propagate_nan, protect_cancellations
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
    shape = _known_shape(call)
    if shape is None or not call.op.has_attr("FLegalize"):
        return None
    if math.prod(shape) * tvm.DataType(str(call.ty.dtype)).bits > 8 * most:
        return None
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps(FLOAT_LEGALIZATIONS | RESIZE_LEGALIZATIONS)(builder.get())
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [value for value in values if isinstance(value, relax.Call)]
    if len(calls) != 1 or calls[0].op != tvm.ir.Op.get("relax.call_tir") or len(calls[0].args) != 2:
        return None
    global_var, fields = calls[0].args
    operands = list(fields.fields) if isinstance(fields, relax.Tuple) else []
    if not operands or not all(isinstance(operand, tvm.ir.GenericConst) for operand in operands):
        return None
    function = _compiled(mod[global_var])
    output = tvm.runtime.empty(shape, str(call.ty.dtype))
    function(*(operand.value for operand in operands), output)
    return np.asarray(output.numpy())


def _known_shape(call: relax.Call) -> tuple[int, ...] | None:
    shape = call.ty.shape if isinstance(call.ty, relax.TensorType) else None
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
