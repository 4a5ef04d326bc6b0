"""Fetching the weights of the next tiles into the L2 cache while those of this one are used again and again.

A product or convolution of few positions meets each weight a few times only. In a network the weights come from memory
or from the last cache, slower than they are used on the first pass over a group of chunks, while on the other passes
nothing is fetched at all. So each pass fetches a part of what the next group begins with.

before: ``for r in range(4):  # pass    for k in range(512):  # prefetch B    c[r, 0:4] += a[r, k] * B[4*p + 0:4, k]``
after:  ``for r in range(4):  for k in range(512):  prefetch(B[4*p + 4 + r, k]);  c[r, 0:4] += ...``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ExprRV, LoopRV

from tvm_ext.schedules.simd.widen import uses

PREFETCH_ATTRIBUTE = "tvm_ext.prefetch"
"""Annotation of the outermost loop of a reduction: 1 to fetch the next weights in it, 0 not to."""

OPERAND_ATTRIBUTE = "tvm_ext.prefetch_operand"
"""Annotation of the same loop: name of the tensor of weights, in which those of one reduction are contiguous."""

PASS_ATTRIBUTE = "tvm_ext.prefetch_pass"
"""Annotation of the loops in which the same weights are used again."""

_NAME = "tvm_ext_prefetch"

# The arguments say: to read, to be kept in the L2 cache, data. To LLVM a prefetch reads what its address points to, so
# accumulators would be written to memory before each; it is told that no memory is touched that others can see.
_DEFINITION = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr void @{_NAME}(ptr %address) alwaysinline {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1) memory(inaccessiblemem: readwrite)
  ret void
}}
"""


def mark_prefetch(
    schedule: Schedule, passes: Sequence[LoopRV], reduction: LoopRV, operand: str, fetches: int | ExprRV
) -> None:
    """Ask for the next weights to be fetched in a reduction.

    Parameters
    ----------
    passes : sequence of LoopRV
        Loops around the reduction, outermost first, in all iterations of which it reads the same weights.
    reduction : LoopRV
        The outermost loop of the reduction.
    operand : str
        Name of the tensor of weights.
    fetches : int or ExprRV
        1 to do it, 0 not to.
    """
    for loop in passes:
        schedule.annotate(loop, PASS_ATTRIBUTE, 1)
    schedule.annotate(reduction, OPERAND_ATTRIBUTE, operand)
    schedule.annotate(reduction, PREFETCH_ATTRIBUTE, fetches)


def insert_prefetches(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Put the fetches into the marked reductions of a kernel that has no blocks any more and flat buffers."""
    passes: list[Any] = []

    def visit(loop: Any, mutator: Any) -> Any:
        annotations = loop.annotations or {}
        if int(annotations.get(PREFETCH_ATTRIBUTE, 0)):
            return _fetch_in(loop, str(annotations[OPERAND_ATTRIBUTE]), passes)
        if PASS_ATTRIBUTE not in annotations:
            return mutator.default_mutate(loop)
        passes.append(loop)
        loop = mutator.default_mutate(loop)
        passes.pop()
        return loop

    changed = tvm_ffi.structural_mutate(func, [(tirx.For, visit)])
    if changed.same_as(func):
        return func
    text = tvm.ir.StringImm(_DEFINITION)
    return changed.with_body(tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", text, changed.body))


def _fetch_in(reduction: Any, operand: str, passes: Sequence[Any]) -> Any:
    """Fetch in iteration ``i`` of the passes what the reduction of the next group reads of its chunk ``i``."""
    loops, load = _weights(reduction, operand)
    steps = [loop for loop in loops if loop.kind == tirx.ForKind.SERIAL]
    if load is None or not steps:
        return reduction
    (position,) = load.indices
    first = {loop.loop_var: loop.min for loop in loops}
    last = {loop.loop_var: loop.min + loop.extent - 1 for loop in loops if loop.kind != tirx.ForKind.UNROLLED}
    analyzer = tvm.sym.Analyzer()
    chunk = analyzer.simplify(_substitute(position, first | last) - _substitute(position, first) + 1)
    vectors = prod(
        int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.UNROLLED and uses(position, loop.loop_var)
    )
    index = _substitute(position, {loop.loop_var: loop.min for loop in loops if loop not in steps})
    iteration: Any = tirx.const(0, "int32")
    for loop in passes:
        iteration = iteration * loop.extent + loop.loop_var
    count = prod(int(loop.extent) for loop in passes)
    fetches = [
        _fetch(load.source, analyzer.simplify(index + (tirx.min(iteration + done, vectors - 1) + vectors) * chunk))
        for done in range(0, vectors, count)
    ]

    def insert(loop: Any, mutator: Any) -> Any:
        if loop.loop_var.same_as(steps[-1].loop_var):
            body = tirx.SeqStmt([*fetches, loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
        return mutator.default_mutate(loop)

    return tvm_ffi.structural_mutate(reduction, [(tirx.For, insert)])


def _fetch(buffer: Any, index: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", _NAME, tirx.address_of(tirx.BufferLoad(buffer, [index]))))


def _weights(reduction: Any, operand: str) -> tuple[list[Any], Any]:
    """Find the loops of a reduction, outermost first, and where it loads from the operand."""
    loops: list[Any] = []
    node = reduction
    while isinstance(node, tirx.For):
        loops.append(node)
        node = node.body
    loads: list[Any] = []

    def note(load: Any) -> None:
        if load.source.name == operand:
            loads.append(load)

    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, note)])
    return loops, loads[0] if loads else None


def _substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda found: values.get(found, found)))
