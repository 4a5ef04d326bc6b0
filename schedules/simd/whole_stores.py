"""Plain stores wherever a masked one would store a whole vector, for machines that pay for every masked store.

AVX2 of AMD takes about twelve cycles for one, and LLVM makes a branch for each lane where there is no such instruction.
Most masks are of the last vector of a row only, but stand at every vector, as they hold its number.

before: ``masked_store(y, value, ramp(b * 8, 1, 8), broadcast(b * 8, 8) + ramp(0, 1, 8) < broadcast(197, 8))``
after:  ``if 197 - b * 8 >= 8: y[ramp(b * 8, 1, 8)] = value``, and else the masked store
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import element_type, first_lanes, lanes_of, operation

UNMASKING_ISAS = frozenset(["avx2", "sse4", "neon"])
"""Instruction sets that store more slowly under a mask than without."""


def with_whole_stores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Ask at each masked store whether all lanes are meant, where that depends on a loop, and store plainly then."""
    return tvm_ffi.structural_mutate(func, [(tirx.Evaluate, _evaluate)])


def _evaluate(node: Any, _mutator: Any) -> Any:
    call = node.value
    if not isinstance(call, tvm.ir.Call) or operation(call) != "masked_store":
        return node
    buffer, value, index, mask = call.args
    active = first_lanes(mask)
    if active is None or isinstance(active, prim.IntImm):
        return node
    is_whole = prim.GE(active, tirx.const(lanes_of(mask), element_type(active)))
    return tirx.IfThenElse(is_whole, tirx.BufferStore(buffer, _without_mask(value, mask), [index]), node)


def _without_mask(value: Any, mask: Any) -> Any:
    """Give a value where all lanes of a mask are set: what is loaded or chosen under it, is so without."""

    def is_same(other: Any) -> bool:
        return bool(tvm_ffi.structural_equal(other, mask))

    def call(node: Any, mutator: Any) -> Any:
        if operation(node) == "masked_load" and is_same(node.args[-1]):
            return tirx.BufferLoad(node.args[-3], [node.args[-2]])
        return mutator.default_mutate(node)

    def select(node: Any, mutator: Any) -> Any:
        condition = node.condition
        if isinstance(condition, tvm.ir.Call) and operation(condition) == "reinterpret":
            condition = condition.args[0]
        return mutator.mutate(node.true_value) if is_same(condition) else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(value, [(tvm.ir.Call, call), (prim.Select, select)])
