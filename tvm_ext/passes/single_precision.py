"""Compute with 16-bit floats in single precision, on CPUs.

before: ``y = conv2d(x, w)`` with ``x``, ``w`` and ``y`` of ``float16`` or ``bfloat16``
after:  ``y = astype(conv2d(astype(x, "float32"), w'), "float16")`` with the constant ``w'`` converted here

Sums of 16-bit values would round at every step (the sum of 4096 ones would be 2048), and CPUs convert each operand
anyway; in single precision the kernels are those of float32 networks. A value is still rounded to 16 bits where the
network has it so, which is how other frameworks compute on a CPU. Operators that only move values are left alone, and
those on float16 that sum nothing up; code for arithmetic on bfloat16 can hardly be generated at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.operator_table import has_arithmetic
from tvm_ext.relax_utils import rewriting_pass

HALVES = ("float16", "bfloat16")

NATIVE = frozenset(
    """abs add ceil clip divide equal erf exp floor greater greater_equal less less_equal log max maximum min minimum
    multiply negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.prelu nn.relu
    nn.silu not_equal round rsqrt sigmoid sign sqrt subtract tanh trunc""".split()
)
"""Operators on float16 that sum nothing up: LLVM itself converts their operands, and rounds their results."""

OF_ANY_FLOAT = frozenset(["unique"])
"""Operators that a function of the runtime computes; how many values ``unique`` returns is not known before, and a
conversion of them could not be compiled."""


def single_precision() -> tvm.transform.Pass:
    """Make the pass."""
    return rewriting_pass("tvm_ext.SinglePrecision", SinglePrecisionMutator)


def in_single_precision(call: relax.Call, emit: Callable[[Any], Any]) -> relax.Expr | None:
    """Write an operator on 16-bit floats as one on float32, with conversions around.

    Parameters
    ----------
    call : relax.Call
        Its operands have types.
    emit : callable
        Binds an expression to a variable.

    Returns
    -------
    relax.Expr or None
        The same value; None where there is nothing to convert: no operand is a 16-bit float, the operator computes
        nothing, or it says itself in which type.
    """
    if not isinstance(call.op, tvm.ir.Op) or not call.op.name.startswith("relax.") or not call.args:
        return None
    if any(isinstance(argument, tvm.ir.GlobalVar | relax.ExternFunc) for argument in call.args):
        return None  # a call of a kernel, which takes what it takes
    found = {dtype for argument in call.args for dtype in _dtypes(argument)} & {*HALVES}
    if len(found) != 1 or not has_arithmetic(call.op.name.removeprefix("relax.")):
        return None
    (half,) = found
    name = call.op.name.removeprefix("relax.")
    is_native = name in OF_ANY_FLOAT or (half == "float16" and name in NATIVE)
    if is_native or getattr(call.attrs, "out_dtype", None) is not None:
        return None
    result = emit(relax.Call(call.op, [_single(argument, emit) for argument in call.args], call.attrs))
    rounded = _rounded(result, half, emit)
    # LLVM fails on some vector code that rounds to bfloat16 in the midst of a blocked chain: a name of its own ends it.
    return _bound(rounded, emit) if half == "bfloat16" else rounded


@mutator
class SinglePrecisionMutator(PyExprMutator):
    """Rewrites one module."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace an operator on 16-bit floats."""
        call = super().visit_call_(call)
        changed = in_single_precision(call, self.builder_.emit)
        return call if changed is None else changed


def _dtypes(argument: Any) -> list[str]:
    if isinstance(argument, relax.Tuple):
        return [dtype for field in argument.fields for dtype in _dtypes(field)]
    return [str(argument.ty.dtype)] if isinstance(argument.ty, relax.TensorType) else []


def _single(argument: Any, emit: Callable[[Any], Any]) -> Any:
    if isinstance(argument, relax.Tuple):
        return relax.Tuple([_single(field, emit) for field in argument.fields])
    if not isinstance(argument.ty, relax.TensorType) or str(argument.ty.dtype) not in HALVES:
        return argument
    if isinstance(argument, tvm.ir.GenericConst):
        return relax.const(argument.value.numpy().astype("float32"), "float32")
    return emit(relax.op.astype(argument, "float32"))


def _rounded(result: Any, half: str, emit: Callable[[Any], Any]) -> Any:
    """Round what is in single precision; results of other types, such as truth values and positions, stay."""
    if isinstance(result.ty, relax.TupleType):
        fields = [emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]
        return relax.Tuple([_bound(_rounded(field, half, emit), emit) for field in fields])
    is_single = isinstance(result.ty, relax.TensorType) and str(result.ty.dtype) == "float32"
    return relax.op.astype(result, half) if is_single else result


def _bound(value: Any, emit: Callable[[Any], Any]) -> Any:
    return emit(value) if isinstance(value, relax.Call) else value
