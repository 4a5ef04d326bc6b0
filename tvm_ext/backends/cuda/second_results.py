"""A kernel whose result another kernel only converts stores it in both types itself.

before: ``y = call_tir(norm, (x,), float32); z = call_tir(cast, (y,), float16)``        and others read y
after:  ``y, z = call_tir(norm_and_float16, (x,), (float32, float16))``

With products in 16 bits a sum that goes on in float32 is read in both types: behind a normalisation, a residual block.
Kernels are changed behind their schedules, so that no rule need know of it: beside each store of a final value there is
one of the same value, converted. What adds up in its result, or hands the address of it on, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.schedules.simd.vector import lanes_of

FIRST_RESULT = "tvm_ext.first_result"
"""Attribute of such a kernel: the name of the one that it was before."""


def second_results() -> tvm.transform.Pass:
    """Make the pass; it runs on scheduled kernels."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SecondResults")
    def _second_results(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and rewriter.begin(func):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(func))
        made = rewriter.builder_.get()
        return made if not rewriter.changed else relax.transform.DeadCodeElimination()(made)

    return _second_results


@dataclass(frozen=True)
class _Pair:
    """A result, and the variable of what it is converted to."""

    kernel: Any
    converted: relax.Var


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.changed = False
        self._mod = mod
        self._kernels: dict[tuple[str, str], Any] = {}
        self._conversions: dict[str, bool] = {}
        self._pairs: dict[relax.Var, _Pair] = {}
        self._done: dict[relax.Var, relax.Var] = {}

    def begin(self, func: relax.Function) -> bool:
        """Find the pairs of one function; without any it stays as it is."""
        bindings = Bindings()
        bindings.visit_expr(func)
        self._pairs = {}
        for var, value in bindings.values.items():
            source = self._converts(value)
            if source is None or source in self._pairs or source not in bindings.values:
                continue
            block = bindings.blocks.get(source)
            if block is None or bindings.blocks.get(var) != block:
                continue
            kernel = self._kernel(bindings.values[source], str(var.ty.dtype))
            if kernel is not None:
                self._pairs[source] = _Pair(kernel, var)
        self._done = {}
        self.changed |= bool(self._pairs)
        return bool(self._pairs)

    def _converts(self, value: Any) -> relax.Var | None:
        """Give what a call converts, if it does nothing else."""
        if not calls(value, "relax.call_tir") or len(value.args) != 2 or len(value.args[1].fields) != 1:
            return None
        name, operand = str(value.args[0].name_hint), value.args[1].fields[0]
        if name not in self._conversions:
            self._conversions[name] = is_conversion(self._mod[value.args[0]])
        return operand if self._conversions[name] and isinstance(operand, relax.Var) else None

    def _kernel(self, call: Any, dtype: str) -> Any:
        """Give the kernel that stores the result of a call in another type, too; None where there is none."""
        if not calls(call, "relax.call_tir") or not isinstance(call.ty_args[0], relax.TensorType):
            return None
        name = str(call.args[0].name_hint)
        if (name, dtype) not in self._kernels:
            func = self._mod[call.args[0]]
            made = with_second_result(func, len(call.args[1].fields), dtype)
            if made is not None:
                made = made.with_attr(FIRST_RESULT, name).without_attr("global_symbol")
                made = self.builder_.add_func(made, f"{name}_and_{dtype}")
            self._kernels[name, dtype] = made
        return self._kernels[name, dtype]

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Make both results where the first was made."""
        if binding.var in self._done:
            self.set_var_remap(binding.var, self._done[binding.var])
            return
        if binding.var not in self._pairs:
            super().visit_var_binding_(binding)
            return
        pair, call = self._pairs[binding.var], self.visit_expr(binding.value)
        types = relax.TupleType([call.ty_args[0], pair.converted.ty])
        both = self.builder_.emit(relax.Call(call.op, [pair.kernel, *call.args[1:]], call.attrs, [types], call.span))
        for place, var in enumerate((binding.var, pair.converted)):
            inner = isinstance(var, relax.DataflowVar)
            one = relax.TupleGetItem(both, place)
            emitted = self.builder_.emit(one) if inner else self.builder_.emit_output(one)
            if place == 0:
                self.set_var_remap(var, emitted)
            else:
                self._done[var] = emitted


def is_conversion(func: Any) -> bool:
    """Whether a scheduled kernel of one operand and one result stores each element of it in another type."""
    if not isinstance(func, tirx.PrimFunc) or len(func.params) != 2 or not all(map(tirx.is_buffer_var, func.params)):
        return False
    source, result = func.params
    found: list[bool] = []

    def note(store: Any) -> None:
        value = store.value
        found.append(
            store.buffer.same_as(result)
            and isinstance(value, prim.Cast)
            and isinstance(value.value, tvm.ir.TensorLoad)
            and value.value.source.same_as(source)
            and tvm_ffi.structural_equal(list(value.value.indices), list(store.indices))
        )

    tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, note)])
    same = tvm_ffi.structural_equal(list(source.shape), list(result.shape))
    return bool(same and found and all(found))


def with_second_result(func: Any, place: int, dtype: str) -> tirx.PrimFunc | None:
    """Store the result that is parameter ``place`` of a kernel in another type as well, as the parameter behind it.

    None if the kernel reads the result, or does anything else with it than to store to it.
    """
    if not isinstance(func, tirx.PrimFunc) or len(func.params) <= place or not tirx.is_buffer_var(func.params[place]):
        return None
    result = func.params[place]
    if not _only_stores(func.body, result):
        return None
    kind = result.ty
    second = tirx.decl_buffer(kind.shape, dtype, f"{result.name}_{dtype}", layout=kind.layout)

    def store(node: Any, _mutator: Any) -> Any:
        if not node.buffer.same_as(result):
            return node
        lanes = lanes_of(node.value)
        value = prim.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", node.value)
        return tirx.SeqStmt([node, tirx.BufferStore(second, value, node.indices, node.span)])

    def block(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        more = [tirx.BufferRegion(second, region.region) for region in node.writes if region.source.same_as(result)]
        return s_tir.SBlock(
            node.iter_vars, node.reads, [*node.writes, *more], node.name_hint, node.body, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    body = tvm_ffi.structural_mutate(func.body, [(tirx.BufferStore, store), (s_tir.SBlock, block)])
    params = [*func.params[: place + 1], second, *func.params[place + 1 :]]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def _only_stores(body: Any, result: Any) -> bool:
    """Whether a tensor is stored to, and neither read, nor seen as another one, nor handed on."""
    stores: list[Any] = []
    others: list[bool] = []

    def matches(block: Any) -> None:
        others.extend(True for match in block.match_buffers if match.source.source.same_as(result))

    def handed(call: Any) -> None:
        others.extend(True for argument in call.args if argument.same_as(result))

    def read(load: Any) -> None:
        others.extend([True] * load.source.same_as(result))

    tvm_ffi.structural_walk(
        body,
        [
            (tirx.BufferStore, lambda store: stores.append(store) if store.buffer.same_as(result) else None),
            (tvm.ir.TensorLoad, read), (tvm.ir.Call, handed), (s_tir.SBlock, matches),
        ],
    )  # fmt: skip
    return bool(stores) and not others
