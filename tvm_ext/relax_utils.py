"""Small things that many passes do with expressions: shapes, constants, kinds of kernel, substitution, plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

ELEMENTWISE, BROADCAST, INJECTIVE, OUT_ELEMENTWISE, OPAQUE = 0, 1, 2, 4, 8
"""Kinds of kernel as ``relax.transform.FuseOps`` reads them from the attribute ``op_pattern``."""

FUNCTION_OPERATIONS = 10
"""Operations of vectors that an exponential, a hyperbolic tangent or a division counts as."""

STEP_OPERATIONS = "tvm_ext.step_operations"
"""Attribute of a kernel whose first operand has steps and sequences in front: operations of vectors for one of each."""

INDEPENDENT_IMAGES = "tvm_ext.independent_images"
"""Attribute of a function that gives for some images of a batch what it gives for all: the name of their number."""

_TAKEN = ("Primitive", "Codegen")
"""Attributes of functions that stand for one kernel, or that another compiler takes."""

LOWER, UPPER = "tir_var_lower_bound", "tir_var_upper_bound"
"""Attributes of a function: bounds of symbolic variables by name, both included, as TVM's memory planner reads them."""


def static_shape(tensor: Any) -> tuple[int, ...] | None:
    """Return the shape of an expression, or of its type, if it is a tensor with all extents known; None otherwise."""
    shape = getattr(tensor if isinstance(tensor, relax.TensorType) else tensor.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    extents = list(shape.values)  # iterating over the shape itself takes four times as long
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent.value) for extent in extents)


def open_shape(tensor: Any) -> tuple[Any, ...] | None:
    """Return the shape of an expression or type: numbers, and expressions of extents that are open; None if unknown."""
    shape = getattr(tensor if isinstance(tensor, relax.TensorType) else tensor.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return tuple(int(extent) if isinstance(extent, tvm.tirx.IntImm) else extent for extent in shape)


def same_extents(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether extents, as :func:`open_shape` gives them, are the same whatever the sizes at run time."""
    if len(first) != len(second):
        return False
    analyzer = tvm.sym.Analyzer()
    return all(
        one == other if isinstance(one, int) and isinstance(other, int) else analyzer.can_prove_equal(one, other)
        for one, other in zip(first, second, strict=True)
    )


def slice_begins(call: relax.Call, shape: Sequence[Any]) -> tuple[int, ...] | None:
    """Give the first place of a ``strided_slice`` along each axis of what it is of, a tensor of ``shape``.

    None where it has steps, or bounds that are not known when compiling.
    """
    if not all(isinstance(argument, relax.Tuple) for argument in call.args[1:]):
        return None
    numbers = [[getattr(field, "value", field) for field in argument.fields] for argument in call.args[1:]]
    if not all(isinstance(number, int) for given in numbers for number in given):
        return None
    axes, first, _, *steps = numbers
    if any(step != 1 for step in (steps[0] if steps else [])):
        return None
    begins = [0] * len(shape)
    for axis, begin in zip(axes, first, strict=True):
        extent = shape[axis]
        if not isinstance(extent, int):
            return None
        begins[axis] = min(max(begin + extent if begin < 0 else begin, 0), extent)
    return tuple(begins)


def constant(expr: Any) -> np.ndarray | None:
    """Return the value of a constant tensor, not to be written to; None for anything else."""
    is_tensor = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)
    return read_only(expr.value) if is_tensor else None


def read_only(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """Return a tensor's elements as an array without copying them, where NumPy has the type itself."""
    if str(tensor.dtype) in _NUMPY_TYPES and tensor.device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
        array = np.from_dlpack(tensor)
        array.flags.writeable = False
        return array
    return tensor.numpy()


_NUMPY_TYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())


def scalar(expr: Any) -> float | int | None:
    """Return the one element of a constant, None for anything else."""
    array = constant(expr)
    return array.item() if array is not None and array.size == 1 else None


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """Put values, by variable, in the place of variables of an expression or statement, buffers included."""
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda variable: values.get(variable, variable)))


def called_by_name(func: Any) -> list[str]:
    """List the kernels that a TIR function calls by their names, as segments of open extents do."""
    found: list[str] = []

    def visit(call: Any) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.tvm_call_cpacked":
            found.append(str(call.args[0].value))

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, visit))
    return found


def plain(value: Any) -> Any:
    """Convert TVM's containers, as in the export of a target, to what JSON knows."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


def rewritten(mod: tvm.IRModule, rewriter: Any) -> tvm.IRModule:
    """Rewrite each function of a graph, but those that stand for one kernel or belong to another compiler.

    Parameters
    ----------
    mod : tvm.IRModule
        Functions to rewrite.
    rewriter : PyExprMutator
        Made for this module. Where it has a method ``begin``, that is given each function before it is visited, and
        says whether to visit it.
    """
    begin = getattr(rewriter, "begin", lambda function: True)
    for global_var, function in mod.functions_items():
        if not isinstance(function, relax.Function) or any(key in (function.attrs or {}) for key in _TAKEN):
            continue
        if begin(function):
            rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
    return rewriter.builder_.finalize()


def rewriting_pass(name: str, rewriter_of: Callable[[tvm.IRModule], Any]) -> tvm.transform.Pass:
    """Make a pass of a rewriter, as :func:`rewritten` takes it.

    Parameters
    ----------
    name : str
        Of the pass.
    rewriter_of : callable
        Gives the ``PyExprMutator`` for a module.
    """

    @tvm.transform.module_pass(opt_level=0, name=name)
    def _rewriting(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return rewritten(mod, rewriter_of(mod))

    return _rewriting
