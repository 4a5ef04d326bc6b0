"""Stores one lane of a vector of narrow integers as one element.

before: ``masked_store(y, int8x16(value), ramp(first, 1, 16), ramp(0, 1, 16) < broadcast(1, 16))``
after:  ``y[first] = int8(value[0])``

With AVX-512, LLVM narrows integers while it stores them. Where it knows that a mask has exactly one lane, it stores one
element, and forgets to narrow it: the elements behind it are overwritten, also those behind the tensor.
A number of lanes that is computed is compared with one, as LLVM may know it after it has unrolled a loop.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.simd.lanes import holds_load
from tvm_ext.schedules.simd.vector import element_type, first_lanes, lanes_of, operation

_NARROWING = 512
"""Bits of the vectors of the processors that narrow while they store."""


def lone_lanes() -> tvm.transform.Pass:
    """Make the pass; it does nothing for processors without AVX-512."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.LoneLanes")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        target = tvm.target.Target.current(allow_none=True)
        if target is None or machine_of(target).vector_bits < _NARROWING:
            return func
        return tvm_ffi.structural_mutate(func, [(tirx.Evaluate, _evaluate)])

    return _rewrite


def _evaluate(node: Any, _mutator: Any) -> Any:
    call = node.value
    if not isinstance(call, tvm.ir.Call) or operation(call) != "masked_store":
        return node
    buffer, value, index, mask = call.args
    if not _may_be_narrowed(value) or not isinstance(index, prim.Ramp):
        return node
    active = first_lanes(mask)
    if isinstance(active, prim.IntImm):
        return _stored(buffer, value, index, 0) if int(active) == 1 else node
    if active is not None:
        return tirx.IfThenElse(
            prim.EQ(active, tirx.const(1, element_type(active))), _stored(buffer, value, index, 0), node
        )
    return node if holds_load(mask) else _lane_by_lane(buffer, value, index, mask)


def _may_be_narrowed(value: Any) -> bool:
    """Whether a vector's elements are smaller than a register's, and computed: LLVM computes with wider ones."""
    element = element_type(value)
    if not element.startswith(("int", "uint", "bfloat")) or element.endswith("64"):
        return False
    is_call = isinstance(value, tvm.ir.Call) and operation(value) == "masked_load"
    return not is_call and not isinstance(value, tvm.ir.TensorLoad)


def _stored(buffer: Any, value: Any, index: Any, lane: int) -> Any:
    return tirx.BufferStore(buffer, _lane(value, lane), [index.base + index.stride * lane])


def _lane(value: Any, lane: int) -> Any:
    """Take one lane of a vector; conversions come after it, as TVM knows no bfloat16 but in conversions."""
    if isinstance(value, prim.Cast):
        return prim.Cast(element_type(value), _lane(value.value, lane))
    if isinstance(value, prim.Broadcast):
        return value.value
    return prim.Shuffle([value], [tirx.const(lane, "int32")])


def _lane_by_lane(buffer: Any, value: Any, index: Any, mask: Any) -> Any:
    """Store under a mask of another form, that LLVM may know after it has unrolled a loop."""
    return tirx.SeqStmt(
        [
            tirx.IfThenElse(
                prim.Shuffle([mask], [tirx.const(lane, "int32")]), _stored(buffer, value, index, lane), None
            )
            for lane in range(lanes_of(value))
        ]
    )
