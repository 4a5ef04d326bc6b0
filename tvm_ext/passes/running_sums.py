"""Running sums and products of an axis whose extent is open, or that is not the last.

TVM's kernels store the first element of each row before their loop over the others, also where a row has none: what is
then read and written belongs to somebody else. Here the first element is a turn of the loop like the others.

``y = cumsum(x, axis=0)`` with ``x: Tensor((n, 3))`` gives ``Tensor((0, 3))`` for no rows.

They also follow an axis one element after the other where its neighbours lie far apart. Of known extents such an axis
is followed row by row, by the kernel in :mod:`tvm_ext.schedules.cpu.running_sum`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.relax_utils import rewriting_pass
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.running_sum import running_sum

JOINS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "relax.cumsum": (operator.add, 0),
    "relax.cumprod": (operator.mul, 1),
}
"""What joins two elements, and the result of none."""


def running_sums(machine: Machine) -> tvm.transform.Pass:
    """Make the pass; it runs before sorts and scans are handed to TVM's kernels."""
    return rewriting_pass("tvm_ext.RunningSums", lambda mod: _Scans(mod, machine))


@mutator
class _Scans(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self._machine = machine

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call a kernel of our own where the extent is open, or the axis not the last."""
        call = self.visit_expr_post_order(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        shape = call.args[0].ty.shape if name in JOINS else None
        if shape is None:
            return call
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        dtype = str(call.attrs.dtype or call.args[0].ty.dtype)
        if axis is not None and all(isinstance(extent, tirx.IntImm) for extent in shape):
            extents: list[int] = [int(extent) for extent in shape]
            place = axis % len(extents)
            inside: int = prod(extents[place + 1 :])
            by_rows = [*extents[: place + 1], inside]
            if inside > 1 and 0 not in by_rows:
                return self._by_rows(call, by_rows, dtype)
        if all(isinstance(length, tirx.IntImm) for length in (shape.values if axis is None else [shape.values[axis]])):
            return call

        def scan(x: te.Tensor) -> te.Tensor:
            return _scan(x, axis, dtype, bool(call.attrs.exclusive), name)

        return self.builder_.call_te(scan, call.args[0], primfunc_name_hint=name.removeprefix("relax."))

    def _by_rows(self, call: relax.Call, shape: list[int], dtype: str) -> relax.Expr:
        name, source = call.op.name, call.args[0]
        join, neutral = JOINS[name]
        first = neutral if call.attrs.exclusive else None
        kernel = running_sum(shape, str(source.ty.dtype), dtype, join, self._machine, first)
        called = self.builder_.add_func(kernel, name.removeprefix("relax.").replace("cum", "running_"))
        if len(shape) == source.ty.ndim:
            return relax.call_tir(called, source, relax.TensorType(shape, dtype))
        rows = self.builder_.emit(relax.op.reshape(source, shape))
        result = self.builder_.emit(relax.call_tir(called, rows, relax.TensorType(shape, dtype)))
        return relax.op.reshape(result, source.ty.shape)


def _scan(x: te.Tensor, axis: int | None, dtype: str, exclusive: bool, name: str) -> te.Tensor:
    """Describe the kernel; rows go to the threads, as in TVM's."""
    join, neutral = JOINS[name]
    shape = [prod(x.shape, start=tirx.const(1, "int64"))] if axis is None else list(x.shape)
    place = 0 if axis is None else axis % len(shape)
    length = shape[place]
    one = tirx.const(1, "int64")
    before, after = prod(shape[:place], start=one), prod(shape[place + 1 :], start=one)

    def kernel(source: Any, target: Any) -> Any:
        with IRBuilder() as ib:
            source, target = T.buffer_proxy(source), T.buffer_proxy(target)
            with T.parallel(0, before * after) as row:
                first = row // after * length * after + row % after
                with T.serial(0, length) as k:
                    here = first + k * after
                    taken = source[here - after if exclusive else here]
                    taken = taken if dtype == str(x.dtype) else taken.astype(dtype)
                    with T.If(k == 0):
                        with T.Then():
                            target[here] = tirx.const(neutral, dtype) if exclusive else taken
                        with T.Else():
                            target[here] = join(target[here - after], taken)
            return ib.get()

    result = tirx.decl_buffer(shape, dtype, "out_buf")
    return te.extern(
        [shape], [x], lambda ins, outs: kernel(ins[0], outs[0]), dtype=dtype, out_buffers=[result], name="scan"
    )
