"""Keep addresses that come from a tensor inside the tensor they index.

``take``, ``gather`` and their like index one tensor with the values of another. TVM's kernels use them as they are: an
index beyond the end reads, or writes, what belongs to somebody else. Here such an index is limited to the axis, and a
store to an index outside is left out; an index that can be shown to lie inside is left alone.

before: ``out[i] = table[indices[i], j]``
after:  ``out[i] = table[max(min(indices[i], 999), 0), j]``
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

_LARGEST_INT32 = 2**31 - 1


def bounded_indices() -> tvm.transform.Pass:
    """Make the pass; it works on kernels that are not scheduled yet."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.BoundedIndices")
    def _bounded_indices(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and not (func.attrs and "tirx.is_scheduled" in func.attrs):
                bounded = bound_indices(func)
                if not bounded.same_as(func):
                    updated.update_func(global_var, bounded)
        return updated

    return _bounded_indices


def bound_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Limit the indices of a kernel that depend on data; the kernel itself when there are none."""
    return _Bounder().function(func)


class _Bounder:
    def __init__(self) -> None:
        self._analyzer = tvm.sym.Analyzer()
        self._from_data: list[Any] = []

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        callbacks = [
            (tirx.For, self._loop),
            (s_tir.SBlock, self._block),
            ((tirx.Bind, prim.Let), self._name),
            (tirx.IfThenElse, self._branches),
            (tvm.ir.Call, self._call),
            (tvm.ir.TensorLoad, self._load),
            (tirx.BufferStore, self._store),
        ]
        return tvm_ffi.structural_mutate(func, callbacks)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        self._analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent), allow_override=True)
        return mutator.default_mutate(loop)

    def _block(self, block: Any, mutator: Any) -> Any:
        for iter_var in block.iter_vars:
            self._analyzer.bind(iter_var.var, iter_var.dom, allow_override=True)
        # What a block says it reads stays as it is: a rule that looks at it sees the index, not its limits.
        body = mutator.mutate(block.body)
        init = None if block.init is None else mutator.mutate(block.init)
        if body.same_as(block.body) and (init is None or init.same_as(block.init)):
            return block
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            body,
            init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    def _name(self, named: Any, mutator: Any) -> Any:
        if self._depends_on_data(named.value):
            self._from_data.append(named.var)
        return mutator.default_mutate(named)

    def _branches(self, statement: Any, mutator: Any) -> Any:
        condition = mutator.mutate(statement.condition)
        with self._given(condition):
            then = mutator.mutate(statement.then_case)
        otherwise = statement.else_case
        if otherwise is not None:
            with self._given(prim.Not(condition)):
                otherwise = mutator.mutate(otherwise)
        if condition.same_as(statement.condition) and then.same_as(statement.then_case):
            if otherwise is None or otherwise.same_as(statement.else_case):
                return statement
        return tirx.IfThenElse(condition, then, otherwise)

    def _call(self, call: Any, mutator: Any) -> Any:
        if not getattr(call.op, "name", "").endswith(".if_then_else"):
            return mutator.default_mutate(call)
        condition = mutator.mutate(call.args[0])
        with self._given(condition):
            then = mutator.mutate(call.args[1])
        with self._given(prim.Not(condition)):
            otherwise = mutator.mutate(call.args[2])
        parts = [condition, then, otherwise]
        if all(part.same_as(before) for part, before in zip(parts, call.args, strict=True)):
            return call
        return tirx.if_then_else(*parts)

    def _load(self, load: Any, mutator: Any) -> Any:
        indices = [mutator.mutate(index) for index in load.indices]
        shape = load.source.ty.shape
        doubtful = [not self._inside(index, extent) for index, extent in zip(indices, shape, strict=True)]
        if not any(doubtful):
            same = all(index.same_as(before) for index, before in zip(indices, load.indices, strict=True))
            return load if same else tirx.BufferLoad(load.source, indices)
        limited = [
            _limited(index, extent) if doubt else index
            for index, extent, doubt in zip(indices, shape, doubtful, strict=True)
        ]
        value = tirx.BufferLoad(load.source, limited)
        present = [extent > 0 for extent in shape if not isinstance(extent, prim.IntImm) or int(extent) == 0]
        nothing = tirx.const(0, str(load.ty.dtype))
        for condition in present:  # of an empty tensor there is no element to take instead
            value = tirx.if_then_else(condition, value, nothing)
        return value

    def _store(self, store: Any, mutator: Any) -> Any:
        stored = mutator.default_mutate(store)
        result = stored
        for index, extent in zip(stored.indices, stored.buffer.ty.shape, strict=True):
            if not self._inside(index, extent):
                result = tirx.IfThenElse(_is_inside(index, extent), result, None)
        return result

    @contextmanager
    def _given(self, condition: Any) -> Iterator[None]:
        with self._analyzer.constraint_scope(condition):
            yield

    def _depends_on_data(self, expression: Any) -> bool:
        def interrupt(node: Any) -> Any:
            is_data = not isinstance(node, tvm.ir.Var) or any(node.same_as(known) for known in self._from_data)
            return tvm_ffi.VisitInterrupt(True) if is_data else None

        return tvm_ffi.structural_walk(expression, ((tvm.ir.TensorLoad, tvm.ir.Var), interrupt)) is not None

    def _inside(self, index: Any, extent: Any) -> bool:
        """Whether an index lies inside an axis, or is the operator's own, which no tensor has a say in."""
        if not self._depends_on_data(index):
            return True
        return bool(self._analyzer.can_prove(_is_inside(index, extent)))


def _limited(index: Any, extent: Any) -> Any:
    if str(index.ty.dtype) not in ("int32", "int64") or int(getattr(extent, "value", 0)) > _LARGEST_INT32:
        index = prim.Cast("int64", index)  # the extent may not be a number of a shorter type
    return tirx.max(tirx.min(index, _of_type(extent, index) - 1), tirx.const(0, str(index.ty.dtype)))


def _is_inside(index: Any, extent: Any) -> Any:
    index = prim.Cast("int64", index)
    return prim.And(index >= 0, index < _of_type(extent, index))


def _of_type(extent: Any, index: Any) -> Any:
    dtype = str(index.ty.dtype)
    return tirx.const(int(extent), dtype) if isinstance(extent, prim.IntImm) else prim.Cast(dtype, extent)
