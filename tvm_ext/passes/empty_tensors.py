"""Computes here what follows from tensors without elements, so that no kernel is made for them.

before: ``y = exp(x)`` with ``x: Tensor((0, 3))``        after: the constant ``y: Tensor((0, 3))``
before: ``y = sum(x, axis=1)`` with ``x: Tensor((4, 0))``        after: the constant ``y = [0, 0, 0, 0]``
before: ``y = concat((x, z), axis=0)`` with ``x: Tensor((0, 3))``        after: ``y = z``
before: ``y = exp(x)`` with ``x: Tensor((n, 0))``        after: ``y = zeros((n, 0))``

A reduction over nothing is its neutral element, and a mean over nothing is NaN, as in NumPy and ONNX. What has no
elements is not reshaped any more: in a shape that ``relax.op.reshape`` is given, 0 is the operand's extent there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import open_shape, rewriting_pass, static_shape

# Operator -> what each element of its result is when it reduces over nothing.
_ZERO = ("sum", "matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "einsum")
NEUTRAL: dict[str, float] = {
    **{f"relax.{name}": 0.0 for name in _ZERO},
    "relax.prod": 1.0,
    "relax.max": -np.inf,
    "relax.min": np.inf,
    "relax.mean": np.nan,
    "relax.variance": np.nan,
    "relax.std": np.nan,
}


def empty_tensors() -> tvm.transform.Pass:
    """Make the pass; tensors that may have elements, as their extents are not known yet, are left alone."""
    return rewriting_pass("tvm_ext.EmptyTensors", _EmptyTensorMutator)


@mutator
class _EmptyTensorMutator(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace an operator whose result has no elements, or that reduces over nothing."""
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or not call.op.get_attr("FPurity"):
            return call
        results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        if results and all(_is_empty(result) for result in results):
            constants = [_constant(result, 0.0) for result in results]
            return relax.Tuple(constants) if isinstance(call.ty, relax.TupleType) else constants[0]
        if call.op.name == "relax.concat":
            return _without_empty_parts(call)
        if call.op.name in NEUTRAL and any(_is_empty(argument.ty) for argument in _tensors(call.args)):
            return _constant(call.ty, NEUTRAL[call.op.name]) if open_shape(call) is not None else call
        return call


def _tensors(arguments: Sequence[relax.Expr]) -> list[relax.Expr]:
    parts = [part for item in arguments for part in (item.fields if isinstance(item, relax.Tuple) else [item])]
    return [part for part in parts if isinstance(getattr(part, "ty", None), relax.TensorType)]


def _is_empty(tensor: relax.Type) -> bool:
    shape = open_shape(tensor) if isinstance(tensor, relax.TensorType) else None
    return shape is not None and any(isinstance(extent, int) and extent == 0 for extent in shape)


def _constant(tensor: relax.Type, value: float) -> relax.Expr:
    shape, dtype = static_shape(tensor), str(tensor.dtype)
    if "float" not in dtype and not np.isfinite(value):
        limits = np.iinfo(dtype)
        value = limits.max if value > 0 else limits.min
    if shape is None:
        return relax.op.full(tensor.shape, relax.const(value, dtype), dtype)
    if dtype == "bfloat16":
        return relax.op.astype(relax.const(np.full(shape, value, "float32")), dtype)
    return relax.const(np.full(shape, value, dtype), dtype)


def _without_empty_parts(call: relax.Call) -> relax.Expr:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple):
        return call
    kept = [part for part in parts.fields if not _is_empty(part.ty)]
    if not kept or len(kept) == len(parts.fields):
        return call
    return kept[0] if len(kept) == 1 else relax.op.concat(kept, axis=call.attrs.axis)


def allocate_empty_constants() -> tvm.transform.Pass:
    """Make the pass that allocates constants without elements at run time; TVM cannot load a library that holds one.

    It runs where calls pass their destinations and tensors are allocated by ``R.builtin.alloc_tensor``.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AllocateEmptyConstants")
    def _allocate(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _EmptyConstantMutator(mod)
        for global_var, function in mod.functions_items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _allocate


@mutator
class _EmptyConstantMutator(PyExprMutator):
    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        """Replace a constant without elements."""
        if not _is_empty(constant.ty):
            return constant
        shape, dtype = constant.ty.shape, str(constant.ty.dtype)
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, dtype, 0))
