"""Give kernels that were written by hand the 64-bit extents and indices that Relax and its operators have.

TVMScript writes ``T.Buffer((16,), "float32")`` with an extent of type int32, Relax a shape of int64. Kernels called one
by one do not mind; merged with their neighbours they would disagree about the type of one tensor.

before: ``def kernel(a: T.Buffer((16,), "float32"), ...): for i in range(16): ...``, everything int32
after:  ``def kernel(a: T.Buffer((T.int64(16),), "float32"), ...): for i in range(T.int64(16)): ...``

Where an index is used as a value it is cast back, so that a kernel computes what it did. A kernel that a merged one
could not hold is marked opaque, and stays alone: one that has been scheduled, one that is not made of blocks, one whose
parameters ask for strides, offsets or alignments of their own, and one whose extents cannot be widened.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import OPAQUE

_ARITHMETIC = (prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max)
_COMPARISONS = (prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE)
_KNOWN_STATEMENTS = (
    *(tirx.For, tirx.BufferStore, tirx.SeqStmt, tirx.IfThenElse, tirx.Evaluate, tirx.Bind, tirx.While, tirx.AssertStmt),
    *(s_tir.SBlock, s_tir.SBlockRealize),
)


def wide_indices() -> tvm.transform.Pass:
    """Make the pass; it runs before kernels are merged, on those that Relax functions call by ``call_tir``."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WideIndices")
    def _wide_indices(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        called: dict[str, Any] = {}

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Call) and getattr(expr.op, "name", "").startswith("relax.call_tir"):
                called[expr.args[0].name_hint] = expr.args[0]

        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                relax.analysis.post_order_visit(func, visit)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var in called.values():
            func = mod.functions.get(global_var)
            if isinstance(func, tirx.PrimFunc):
                kernel = fusible(func)
                if not kernel.same_as(func):
                    updated.update_func(global_var, kernel)
        return updated

    return _wide_indices


def fusible(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Widen the extents of a kernel, or mark it opaque to fusion; the kernel itself where there is nothing to do."""
    attributes = func.attrs or {}
    if "tirx.is_scheduled" not in attributes and _is_of_blocks(func):
        wide = widen(func)
        if wide is not None and all(map(_is_plain, wide.params)):
            return wide
    return func if int(attributes.get("op_pattern", -1)) == OPAQUE else func.with_attr("op_pattern", OPAQUE)


def widen(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Give a kernel extents, loops and indices of int64; itself where it has them, None where that is not possible."""
    if not _has_narrow(func):
        return func
    foreign: list[Any] = []

    def look(statement: Any) -> None:
        is_thread = isinstance(statement, tirx.For) and statement.thread_binding is not None
        if not isinstance(statement, _KNOWN_STATEMENTS) or is_thread:
            foreign.append(statement)

    tvm_ffi.structural_walk(func.body, (tirx.Stmt, look))
    return None if foreign else _Widener().function(func)


class _Widener:
    def __init__(self) -> None:
        self._replaced: dict[Any, Any] = {}
        self._callbacks = [
            (tvm.ir.Var, self._variable),
            (tirx.For, self._loop),
            (s_tir.SBlock, self._block),
            (s_tir.SBlockRealize, self._realize),
            (tirx.BufferStore, self._store),
            (tvm.ir.TensorLoad, self._load),
            (tvm.ir.TensorRegion, self._region),
            (_COMPARISONS, self._comparison),
        ]

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        scalars = [parameter for parameter in func.params if _is_narrow(parameter)]
        for parameter in func.params:
            if tirx.is_buffer_var(parameter):
                for extent in parameter.ty.shape:
                    # An extent that is an argument too has the type that its caller gives it.
                    if any(scalar in scalars for scalar in _variables(extent)):
                        return None
                self._buffer(parameter, is_parameter=True)
        body = self._mutated(func.body)
        parameters = [self._replaced.get(parameter, parameter) for parameter in func.params]
        return tirx.PrimFunc(parameters, body, func.ret_type, func.attrs, func.span)

    # ---- what defines a name

    def _index(self, variable: Any) -> Any:
        """Give a variable of int64 for one of int32 that numbers elements; its readers find a cast of the new one."""
        if not _is_narrow(variable):
            return variable
        new = tirx.Var(variable.name, "int64")
        self._replaced[variable] = prim.Cast("int32", new)
        return new

    def _buffer(self, buffer: Any, is_parameter: bool = False) -> Any:
        kind = buffer.ty
        if is_parameter:  # its extents, strides and offset are defined by where it stands
            for given in (*kind.shape, *kind.strides, kind.elem_offset):
                for variable in _variables(given):
                    if variable not in self._replaced:
                        self._index(variable)
        self._replaced[buffer] = tirx.decl_buffer(
            [self._wide(extent) for extent in kind.shape],
            str(kind.dtype),
            buffer.name,
            strides=[self._wide(stride) for stride in kind.strides],
            elem_offset=None if kind.elem_offset is None else self._wide(kind.elem_offset),
            scope=kind.storage_scope,
            data_alignment=kind.data_alignment,
            offset_factor=kind.offset_factor,
            layout=kind.layout,
        )
        return self._replaced[buffer]

    # ---- statements

    def _loop(self, loop: Any, mutator: Any) -> Any:
        start, extent = (self._wide(part) for part in (loop.min, loop.extent))
        step = None if loop.step is None else self._wide(loop.step)
        variable = self._index(loop.loop_var)
        body = mutator.mutate(loop.body)
        return tirx.For(variable, start, extent, loop.kind, body, None, loop.annotations, step, loop.span)

    def _block(self, block: Any, mutator: Any) -> Any:
        axes = []
        for axis in block.iter_vars:
            domain = tvm.ir.Range.from_min_extent(self._wide(axis.dom.min), self._wide(axis.dom.extent))
            axes.append(tirx.IterVar(domain, self._index(axis.var), axis.iter_type, axis.thread_tag))
        allocated = [self._buffer(buffer) for buffer in block.alloc_buffers]
        matched = []
        for match in block.match_buffers:
            source = mutator.mutate(match.source)
            matched.append(s_tir.MatchBufferRegion(self._buffer(match.buffer, is_parameter=True), source))
        return s_tir.SBlock(
            axes,
            [mutator.mutate(region) for region in block.reads],
            [mutator.mutate(region) for region in block.writes],
            block.name_hint,
            mutator.mutate(block.body),
            None if block.init is None else mutator.mutate(block.init),
            allocated,
            matched,
            block.annotations,
            block.span,
        )

    def _realize(self, realize: Any, mutator: Any) -> Any:
        values = [
            self._wide(value) if _is_narrow(axis.var) else mutator.mutate(value)
            for value, axis in zip(realize.iter_values, realize.block.iter_vars, strict=True)
        ]
        predicate = mutator.mutate(realize.predicate)
        return s_tir.SBlockRealize(values, predicate, mutator.mutate(realize.block), realize.span)

    def _store(self, store: Any, mutator: Any) -> Any:
        indices = [self._wide(index) for index in store.indices]
        return tirx.BufferStore(mutator.mutate(store.buffer), mutator.mutate(store.value), indices, store.span)

    # ---- expressions

    def _variable(self, variable: Any, _mutator: Any) -> Any:
        return self._replaced.get(variable, variable)

    def _load(self, load: Any, mutator: Any) -> Any:
        return tirx.BufferLoad(mutator.mutate(load.source), [self._wide(index) for index in load.indices], load.span)

    def _region(self, region: Any, mutator: Any) -> Any:
        ranges = [tvm.ir.Range.from_min_extent(self._wide(part.min), self._wide(part.extent)) for part in region.region]
        return tvm.ir.TensorRegion(mutator.mutate(region.source), ranges, region.ty, region.span)

    def _comparison(self, comparison: Any, mutator: Any) -> Any:
        if _is_narrow(comparison.a) and any(variable in self._replaced for variable in _variables(comparison)):
            return type(comparison)(self._wide(comparison.a), self._wide(comparison.b))
        return mutator.default_mutate(comparison)

    def _wide(self, expression: Any) -> Any:
        """Compute an index in int64; what is computed from data stays as it is, and is cast."""
        if not _is_narrow(expression):
            return self._mutated(expression)
        if isinstance(expression, prim.IntImm):
            return tirx.const(int(expression), "int64")
        if isinstance(expression, _ARITHMETIC):
            return type(expression)(self._wide(expression.a), self._wide(expression.b))
        if expression in self._replaced:
            return self._replaced[expression].value
        return prim.Cast("int64", self._mutated(expression))

    def _mutated(self, expression: Any) -> Any:
        return tvm_ffi.structural_mutate(expression, self._callbacks)


def _is_narrow(expression: Any) -> bool:
    kind = expression.ty
    return isinstance(kind, tvm.ir.PrimType) and str(kind.dtype) == "int32"


def _variables(expression: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, found.append))
    return found


def _is_of_blocks(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize) and "s_tir" in (func.attrs or {})


def _has_narrow(func: tirx.PrimFunc) -> bool:
    """Whether an extent, a loop or an axis is of int32."""

    def narrow(found: bool) -> Any:
        return tvm_ffi.VisitInterrupt(True) if found else None

    rules = [
        (tvm.ir.Var, lambda v: narrow(tirx.is_buffer_var(v) and any(map(_is_narrow, v.ty.shape)))),
        (tirx.For, lambda loop: narrow(_is_narrow(loop.loop_var))),
        (tirx.IterVar, lambda axis: narrow(_is_narrow(axis.var))),
    ]
    return tvm_ffi.structural_walk(func, rules) is not None


def _is_plain(parameter: Any) -> bool:
    """Whether a parameter is a scalar, or a tensor as Relax makes them: dense, from the beginning of its memory."""
    if not tirx.is_buffer_var(parameter):
        return True
    usual = tirx.decl_buffer(parameter.ty.shape, str(parameter.ty.dtype), parameter.name, layout=parameter.ty.layout)
    return bool(tvm_ffi.structural_equal(parameter.ty, usual.ty))
