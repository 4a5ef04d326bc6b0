"""Let kernels write where a concatenation would copy their results, also where those lie scattered in it.

before: ``a = f(x); b = g(x); y = concat((a, b), axis=2)``
after:  ``y0 = f_into_rows(x); y = g_into_rows(x, y0)``, the second in place: each writes its rows of ``y``

A concatenation along the outermost axis needs none of this: there the operands are stretches of the result, which the
arena puts where they belong (:mod:`tvm_ext.memory.relax.order`). Rows of an image in blocks of channels, or channels of
several images, are no stretches; the kernel itself has to know the larger tensor. Runs on scheduled kernels: neither
loops nor vectors change, only the indices of what is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.memory import OrderOptions, plan_order
from tvm_ext.memory.relax.graph import ALIGNMENT, LIVENESS, is_plannable, memory_graph
from tvm_ext.memory.relax.kernel_access import Joined, kernel_access
from tvm_ext.relax_utils import static_shape

MOST_TRIALS = 12
"""Concatenations that are tried one by one where all of them together need more memory."""


def scattered_joins() -> tvm.transform.Pass:
    """Make the pass; it belongs behind scheduling and before the order is chosen.

    A result has its memory from the first part on, instead of a part its own: where that needs more memory at the peak,
    the concatenation stays.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ScatteredJoins")
    def _scattered_joins(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        for global_var, func in mod.functions_items():
            if isinstance(func, relax.Function) and is_plannable(func):
                found = _candidates(mod, func)
                mod = _chosen(mod, global_var, found) if found else mod
        return mod

    return _scattered_joins


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A concatenation that can go: its variable, and what its operands' kernels become."""

    var: Any
    parts: tuple[tuple[Any, Any, tirx.PrimFunc], ...]  # variable, name of the kernel, kernel that writes into the whole


def _chosen(mod: tvm.IRModule, global_var: Any, found: Sequence[_Candidate]) -> tvm.IRModule:
    """Take all candidates, or, where that needs more memory, those that by themselves do not."""
    name, before = global_var.name_hint, _peak(mod, global_var.name_hint)
    if before is None:
        return mod
    whole = _joined(mod, global_var, found)
    after = _peak(whole, name)
    if after is not None and after <= before:
        return whole
    for candidate in found[:MOST_TRIALS] if len(found) > 1 else ():
        tried = _joined(mod, global_var, [candidate])
        after = _peak(tried, name)
        if after is not None and after <= before:
            mod, before = tried, after
    return mod


def _peak(mod: tvm.IRModule, function: str) -> int | None:
    """Plan the memory of a function in a quick order; None where sizes are open."""
    graph = memory_graph(mod, function).graph
    if any(not isinstance(tensor.nbytes, int) for tensor in graph.tensors.values()):
        return None
    return plan_order(graph, OrderOptions(method="greedy", liveness=LIVENESS)).peak


def _candidates(mod: tvm.IRModule, func: relax.Function) -> list[_Candidate]:
    """List the concatenations whose operands are each made by a kernel for nothing else, the largest first."""
    found, uses = [], _uses(func)
    joins: dict[Any, Joined | None] = {}
    for block in func.body.blocks:
        made = {binding.var: binding.value for binding in block.bindings}
        for binding in block.bindings:
            kernel = _kernel(mod, binding.value)
            if kernel is None:
                continue
            name = binding.value.args[0]
            if name not in joins:
                joins[name] = kernel_access(kernel).joined
            joined = joins[name]
            if joined is not None and len(joined.starts) > 1:
                parts = _parts(mod, binding, joined, made, uses)
                if parts is not None:
                    found.append((_bytes(binding.var), _Candidate(binding.var, parts)))
    largest_first = [candidate for _, candidate in sorted(found, key=lambda item: -item[0])]
    # Of one inside another the outer one goes: the kernel of the inner one writes its part.
    inner = {var for candidate in largest_first for var, _, _ in candidate.parts}
    return [candidate for candidate in largest_first if candidate.var not in inner]


def _parts(
    mod: tvm.IRModule, binding: Any, joined: Joined, made: Mapping[Any, Any], uses: Counter[Any]
) -> tuple[tuple[Any, Any, tirx.PrimFunc], ...] | None:
    shape = static_shape(binding.var)
    if shape is None or _are_stretches(shape, binding.var, joined):
        return None
    parts = []
    for operand, start in zip(binding.value.args[1].fields, joined.starts, strict=True):
        call = made.get(operand) if isinstance(operand, relax.Var) else None
        kernel = _kernel(mod, call)
        if call is None or kernel is None or uses[operand] != 1:
            return None
        into = written_into(kernel, joined.axis, start, shape)
        if into is None:
            return None
        parts.append((operand, call.args[0].name_hint, into))
    return tuple(parts)


def _are_stretches(shape: Sequence[int], var: Any, joined: Joined) -> bool:
    """Whether the arena itself can put every operand where it belongs."""
    inner = 1
    for extent in shape[joined.axis + 1 :]:
        inner *= extent
    bits = tvm.DataType(str(var.ty.dtype)).bits
    offsets = [start * inner * bits // 8 for start in joined.starts]
    return all(extent == 1 for extent in shape[: joined.axis]) and not any(offset % ALIGNMENT for offset in offsets)


def _kernel(mod: tvm.IRModule, value: Any) -> tirx.PrimFunc | None:
    """Give the kernel that a plain call of one result calls, its parameters being the operands and the result."""
    if getattr(getattr(value, "op", None), "name", "") != "relax.call_tir" or len(value.args) != 2:
        return None
    kernel = mod[value.args[0]]
    is_plain = isinstance(kernel, tirx.PrimFunc) and isinstance(value.args[1], relax.Tuple)
    if not is_plain or isinstance(value.ty, tvm.ir.TupleType) or static_shape(value) is None:
        return None
    return kernel if len(kernel.params) == len(value.args[1].fields) + 1 else None


def _uses(func: relax.Function) -> Counter[Any]:
    """Count how often each variable is read."""
    uses: Counter[Any] = Counter()
    tvm_ffi.structural_walk(func.body, [(relax.Var, lambda variable: uses.update([variable]))])
    for block in func.body.blocks:
        uses.subtract(binding.var for binding in block.bindings)
    return uses


def _bytes(var: Any) -> int:
    size = tvm.DataType(str(var.ty.dtype)).bits
    for extent in static_shape(var) or ():
        size *= extent
    return size // 8


def written_into(func: tirx.PrimFunc, axis: int, start: int, shape: Sequence[int]) -> tirx.PrimFunc | None:
    """Make the kernel that writes its result into a part of a larger tensor and leaves the rest of that as it is.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        With its result as the last parameter.
    axis, start : int
        Where the result begins.
    shape : sequence of int
        Of the larger tensor.

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None where the result is used in another way than by its elements: its address, a view of it.
    """
    old = func.params[-1]
    if not all(map(tirx.is_buffer_var, func.params)) or len(old.ty.shape) != len(shape) or old.ty.strides:
        return None
    extents = [tirx.const(extent, str(size.ty.dtype)) for extent, size in zip(shape, old.ty.shape, strict=True)]
    new = tirx.decl_buffer(extents, str(old.ty.dtype), old.name)
    is_element_wise = True

    def moved(indices: Sequence[Any], mutator: Any) -> list[Any]:
        kept = [mutator.mutate(index) for index in indices]
        return [*kept[:axis], kept[axis] + start, *kept[axis + 1 :]]

    def store(statement: Any, mutator: Any) -> Any:
        if not statement.buffer.same_as(old):
            return mutator.default_mutate(statement)
        indices = moved(statement.indices, mutator)
        return tirx.BufferStore(new, mutator.mutate(statement.value), indices, statement.span)

    def load(expression: Any, mutator: Any) -> Any:
        if not expression.source.same_as(old):
            return mutator.default_mutate(expression)
        return tirx.BufferLoad(new, moved(expression.indices, mutator), expression.span)

    def region(declared: Any, mutator: Any) -> Any:
        if not declared.source.same_as(old):
            return mutator.default_mutate(declared)
        starts = moved([part.min for part in declared.region], mutator)
        ranges = [
            tvm.ir.Range.from_min_extent(first, mutator.mutate(part.extent))
            for first, part in zip(starts, declared.region, strict=True)
        ]
        return tvm.ir.TensorRegion(new, ranges, declared.ty, declared.span)

    def call(expression: Any) -> None:
        nonlocal is_element_wise
        if getattr(expression.op, "name", "").endswith(("address_of", "access_ptr")) and _mentions(expression, old):
            is_element_wise = False

    def block(found: Any) -> None:
        nonlocal is_element_wise
        is_element_wise = is_element_wise and not any(_mentions(view.source, old) for view in found.match_buffers)

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, call), (s_tir.SBlock, block)])
    if not is_element_wise:
        return None
    handlers = [(tirx.BufferStore, store), (tvm.ir.TensorLoad, load), (tvm.ir.TensorRegion, region)]
    body = tvm_ffi.structural_mutate(func.body, handlers)
    if _mentions(body, old):
        return None
    return tirx.PrimFunc([*func.params[:-1], new], body, func.ret_type, func.attrs).without_attr("global_symbol")


def _mentions(node: Any, variable: Any) -> bool:
    found = tvm_ffi.structural_walk(
        node, [(tvm.ir.Var, lambda seen: tvm_ffi.VisitInterrupt(True) if seen.same_as(variable) else None)]
    )
    return found is not None


def _joined(mod: tvm.IRModule, global_var: Any, candidates: Sequence[_Candidate]) -> tvm.IRModule:
    """Let the kernels of the operands of some concatenations write into the results."""
    builder = relax.BlockBuilder(mod)
    func = mod[global_var]
    parts = {var: (candidate, name, into) for candidate in candidates for var, name, into in candidate.parts}
    wholes = {candidate.var for candidate in candidates}
    renamed: dict[Any, Any] = {}
    blocks = []
    for old in func.body.blocks:
        items = []
        for binding in old.bindings:
            if binding.var in wholes:
                items.append(relax.VarBinding(binding.var, renamed[binding.var]))
                continue
            if binding.var not in parts:
                items.append(binding)
                continue
            candidate, name, into = parts[binding.var]
            kernel = builder.add_func(into, f"{name}_into")
            operands = list(binding.value.args[1].fields)
            if candidate.var in renamed:
                call = relax.op.call_tir_inplace(
                    kernel, relax.Tuple([*operands, renamed[candidate.var]]), [len(operands)], [candidate.var.ty]
                )
            else:
                call = relax.op.call_tir(kernel, relax.Tuple(operands), [candidate.var.ty])
            kind = relax.DataflowVar if isinstance(old, relax.DataflowBlock) else relax.Var
            var = kind(f"{candidate.var.name}_{binding.var.name}", candidate.var.ty)
            items.append(relax.VarBinding(var, builder.normalize(call)))
            renamed[candidate.var] = var
        blocks.append(type(old)(items))
    body = relax.SeqExpr(blocks, func.body.body)
    builder.update_func(global_var, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span))
    return builder.get()
