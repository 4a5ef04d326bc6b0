"""Take denormal numbers for zero: in the constants of a module, and in the arithmetic of its kernels.

A denormal is smaller than the smallest number with a full significand (1.2e-38 for float32). Many processors compute
with them a hundred times more slowly, and trained networks hold them: weights that shrank towards zero, and what
sigmoids and exponentials make of large negative numbers.

before: ``kernel(..): compute; parallel { compute }; compute``
after:  ``kernel(..): set; compute; restore; parallel { set; compute; restore }; set; compute; restore``

The processor's mode is one of a thread, so each task of a parallel loop sets it, and puts back what it found: neither
the caller nor other code in the threads of the pool ever sees it. The first parallel loop of a calling thread makes its
pool, whose threads begin with the mode of the thread that makes them and would keep it: so the mode is put back before
each such loop. Kernels that only move and compare values are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.prim import expr as prim
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.tir_flops import CONTROL_REGISTER
from tvm_ext.passes.vector_code import has_blocks, lower_to_loops
from tvm_ext.relax_utils import read_only
from tvm_ext.schedules.simd.vector import element_type

MXCSR_FLUSH = 0x8040
"""Bits of x86's control register: results that would be denormal are zero (15), denormal operands are zero (6)."""

FPCR_FLUSH = 1 << 24
"""Bit of AArch64's control register that says the same of operands and results."""

LAUNCH_POINT = "pragma_parallel_launch_point"
"""Attribute of a statement that each thread runs once; a parallel loop inside is shared out among them."""

_ARITHMETIC = (prim.Add, prim.Sub, prim.Mul, prim.Div)

_ROUNDING = frozenset(["ceil", "floor", "nearbyint", "round", "trunc"])
"""Calls that count as arithmetic, too: the next integer above a denormal is 1 where it is a number, 0 where it is zero.

TVM has them in different namespaces, of which the names here say nothing.
"""


def flush_constants() -> tvm.transform.Pass:
    """Make the pass that puts zeros, of the same sign, in place of denormals among constants."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FlushConstants")
    def _flush_constants(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Constants(mod)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _flush_constants


def flush_kernels() -> tvm.transform.Pass:
    """Make the pass for kernels; it does nothing on processors without a mode that it knows."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FlushKernels")
    def _flush_kernels(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mode = _mode(tvm.target.Target.current(allow_none=True))
        kernels = {
            global_var: func
            for global_var, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and computes_in_floats(func)
        }
        if mode is None or not kernels:
            return mod
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        # Those that hold vector code have been lowered before.
        lowered = lower_to_loops()(tvm.IRModule({var: func for var, func in kernels.items() if has_blocks(func)}))
        for global_var, func in kernels.items():
            func = _with_ramps(lowered[global_var]) if has_blocks(func) else func
            updated.update_func(global_var, _flushed(func, mode))
        return updated

    return _flush_kernels


def _with_ramps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write the addresses of tensor intrinsics as ramps; TVM cannot simplify ``broadcast(0) + ramp`` twice."""

    def joined(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(one, prim.Broadcast) and isinstance(other, prim.Ramp):
                return prim.Ramp(one.value + other.base, other.stride, other.lanes)
        return node

    return tvm_ffi.structural_mutate(func, [(prim.Add, joined)])


def computes_in_floats(func: tirx.PrimFunc) -> bool:
    """Whether a kernel adds, multiplies or divides floating-point numbers, and not only moves and compares them."""

    def arithmetic(value: Any) -> Any:
        is_float = element_type(value).startswith(("float", "bfloat"))
        return tvm_ffi.VisitInterrupt(True) if is_float else None

    def rounding(value: Any) -> Any:
        is_rounding = isinstance(value.op, tvm.ir.Op) and value.op.name.rpartition(".")[2] in _ROUNDING
        return tvm_ffi.VisitInterrupt(True) if is_rounding else None

    return tvm_ffi.structural_walk(func.body, [(_ARITHMETIC, arithmetic), (tvm.ir.Call, rounding)]) is not None


def _mode(target: tvm.target.Target | None) -> Callable[[Any], tuple[list[Any], list[Any]]] | None:
    """Find how the processor of a target is told: a function from a buffer of two words to (set, restore)."""
    if target is None:
        return None
    triple = str(target.attrs.get("mtriple", "")) or str(tvm.target.codegen.llvm_get_system_triple())
    architecture = triple.partition("-")[0]
    if architecture in ("x86_64", "amd64"):
        return _x86
    return _aarch64 if architecture in ("aarch64", "arm64") else None


def _x86(words: Any) -> tuple[list[Any], list[Any]]:
    def instruction(name: str, index: int) -> Any:
        address = tirx.address_of(words[index])
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.sse.{name}", address))

    changed = tirx.BufferStore(words, words[0] | tirx.const(MXCSR_FLUSH, "int32"), [1])
    return [instruction("stmxcsr", 0), changed, instruction("ldmxcsr", 1)], [instruction("ldmxcsr", 0)]


def _aarch64(words: Any) -> tuple[list[Any], list[Any]]:
    found = tirx.BufferStore(words, tirx.call_llvm_intrin("int64", "llvm.aarch64.get.fpcr"), [0])

    def put(value: Any) -> Any:
        return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.aarch64.set.fpcr", value))

    return [found, put(words[0] | tirx.const(FPCR_FLUSH, "int64"))], [put(words[0])]


def _flushed(func: tirx.PrimFunc, mode: Callable[[Any], tuple[list[Any], list[Any]]]) -> tirx.PrimFunc:
    """Surround the body of a kernel without blocks, and what each thread does of its parallel loops."""

    def words() -> Any:
        return tirx.decl_buffer((2,), "int32" if mode is _x86 else "int64", CONTROL_REGISTER)

    def surrounded(body: Any, words: Any) -> Any:
        before, after = mode(words)
        return tirx.SeqStmt([tirx.AllocBuffer(words), *before, body, *after])

    found = words()

    def launched(body: Any, node: Any, value: Any) -> Any:
        before, after = mode(found)
        return tirx.SeqStmt([*after, tirx.AttrStmt(node, LAUNCH_POINT, value, surrounded(body, words())), *before])

    def loop(statement: Any, mutator: Any) -> Any:
        if statement.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(statement)
        return launched(statement, tirx.const(0), tirx.const(1))

    def attribute(statement: Any, mutator: Any) -> Any:
        if statement.attr_key != LAUNCH_POINT:
            return mutator.default_mutate(statement)
        return launched(statement.body, statement.node, statement.value)

    changed = tvm_ffi.structural_mutate(func, [(tirx.For, loop), (tirx.AttrStmt, attribute)])
    return changed.with_body(surrounded(changed.body, found))


AT_ONCE = 1 << 15
"""Numbers that are looked at together, so that they stay in a core's cache."""


def has_denormals(values: np.ndarray) -> bool:
    """Whether there are numbers in an array of float32 or float64 that are too small for a full significand."""
    bits = np.dtype(f"uint{8 * values.itemsize}")
    # Without its sign a denormal is less than the smallest number with a full significand; zero less one is large.
    least = np.array(np.finfo(values.dtype).tiny).view(bits) * bits.type(2) - bits.type(1)
    flat = np.ascontiguousarray(values).reshape(-1).view(bits)
    parts = (flat[start : start + AT_ONCE] for start in range(0, flat.size, AT_ONCE))
    return any(bool(((part << bits.type(1)) - bits.type(1) < least).any()) for part in parts)


@mutator
class _Constants(PyExprMutator):
    def visit_generic_const_(self, op: Any) -> Any:
        """Replace a constant that holds denormals."""
        return _without_denormals(op, 0.0)

    def visit_call_(self, op: Any) -> Any:
        """Leave scales above zero: a value of zero is quantised to the zero point, and TVM divides by no zero."""
        if getattr(op.op, "name", "") == "relax.quantize" and isinstance(op.args[1], tvm.ir.GenericConst):
            scale = _without_denormals(op.args[1], float(np.finfo("float32").tiny))
            op = relax.Call(op.op, [op.args[0], scale, op.args[2]], op.attrs)
        return super().visit_call_(op)


def _without_denormals(constant: Any, least: float) -> Any:
    """Put ``least``, with their sign, for the denormals of a constant."""
    dtype = str(constant.ty.dtype) if isinstance(constant.ty, relax.TensorType) else ""
    if dtype not in ("float32", "float64"):
        return constant
    values = read_only(constant.value)
    if not has_denormals(values):
        return constant
    small = np.abs(values) < np.finfo(dtype).tiny
    return relax.const(np.where(small, np.copysign(np.array(least, dtype), values), values), dtype)
