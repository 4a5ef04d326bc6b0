"""Makes reductions right where TVM's are not: over infinities, and over no elements at all.

before: ``with T.init(): y[i] = -3.4e38``, ``y[i] = max(y[i], x[k, i])``        the largest of (-inf, -inf) is -3.4e38
after:  ``with T.init(): y[i] = -inf``

before: ``for i, k in grid(5, n): with T.init(): y[i] = 0``        with n = 0, y is whatever was in memory
after:  ``for i in 5: y[i] = 0``, then ``for i, k in grid(5, n)``
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE
from tvm_ext.schedules.compute.open_product import OPEN_PRODUCT
from tvm_ext.schedules.simd.vector import element_type, operation
from tvm_ext.schedules.simd.widen import uses


def infinite_identities() -> tvm.transform.Pass:
    """Make the pass that begins the largest and the smallest of floats with an infinity; for legalised kernels."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.InfiniteIdentities")
    def _identities(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        rewriter = _Identities()
        changed = tvm_ffi.structural_mutate(func, [(s_tir.SBlock, rewriter.reduction)])
        if not rewriter.padded:
            return changed
        return tvm_ffi.structural_mutate(changed, [(s_tir.SBlock, rewriter.padding)])

    return _identities


class _Identities:
    """Rewrites one kernel of one operator.

    Attributes
    ----------
    padded : dict of buffer to (float, expression)
        What a reduction reads; the value it began with until now, and the infinity it begins with.
    """

    def __init__(self) -> None:
        self.padded: dict[Any, tuple[float, Any]] = {}

    def reduction(self, block: s_tir.SBlock, mutator: Any) -> s_tir.SBlock:
        """Begin a reduction with an infinity."""
        block = mutator.default_mutate(block)
        init, body = block.init, block.body
        if isinstance(init, tirx.SeqStmt):
            first = _first_place(init)
            return block if first is None else _replaced(block, body, first)
        if not isinstance(init, tirx.BufferStore) or not isinstance(init.value, prim.FloatImm):
            return block
        if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, prim.Max | prim.Min):
            return block
        dtype, value = element_type(init.value), float(init.value.value)
        if not dtype.startswith(("float16", "float32", "float64")):
            return block  # TVM has no infinity of bfloat16 and the 8-bit floats
        largest = isinstance(body.value, prim.Max)
        if value != float((tirx.min_value if largest else tirx.max_value)(dtype).value):
            return block
        identity = -tirx.infinity(dtype) if largest else tirx.infinity(dtype)
        for region in block.reads:
            self.padded[region.source] = value, identity
        return _replaced(block, body, tirx.BufferStore(init.buffer, identity, init.indices))

    def padding(self, block: s_tir.SBlock, mutator: Any) -> s_tir.SBlock:
        """Pad what a reduction reads, the input of a pooling, with the same infinity."""
        block = mutator.default_mutate(block)
        store = block.body
        if not isinstance(store, tirx.BufferStore) or store.buffer not in self.padded:
            return block
        value, identity = self.padded[store.buffer]
        choice = store.value
        if not isinstance(choice, tvm.ir.Call) or operation(choice) != "if_then_else":
            return block
        condition, inside, outside = choice.args
        if not isinstance(outside, prim.FloatImm) or float(outside.value) != value:
            return block
        padded = tirx.if_then_else(condition, inside, identity)
        return _replaced(block, tirx.BufferStore(store.buffer, padded, store.indices), block.init)


def _first_place(init: tirx.SeqStmt) -> tirx.Stmt | None:
    """Begin the search for the place of an extreme with the first place, where TVM has -1 and the end of the type.

    Among infinities, or integers at the end of their type (bytes that are 0), -1 would be the result, which is no
    place. None where the reduction is another one.
    """
    place, value = (part if isinstance(part, tirx.BufferStore) else None for part in (init.seq[0], init.seq[-1]))
    if len(init.seq) != 2 or place is None or value is None:
        return None
    if not isinstance(place.value, prim.IntImm) or int(place.value) != -1:
        return None
    dtype = element_type(value.value)
    first = tirx.BufferStore(place.buffer, tirx.const(0, element_type(place.value)), place.indices)
    if dtype.startswith(("int", "uint", "bool")):
        return tirx.SeqStmt([first, value])
    if not isinstance(value.value, prim.FloatImm):
        return None
    begin = float(value.value.value)
    limits = {float(tirx.min_value(dtype).value): -1, float(tirx.max_value(dtype).value): 1}
    if begin not in limits:
        return None
    infinity = tirx.infinity(dtype) if limits[begin] > 0 else -tirx.infinity(dtype)
    return tirx.SeqStmt([first, tirx.BufferStore(value.buffer, infinity, value.indices)])


def _replaced(block: s_tir.SBlock, body: tirx.Stmt, init: tirx.Stmt | None) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, init, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip


def initialize_open_reductions() -> tvm.transform.Pass:
    """Make the pass that initialises results apart from loops that may have no iteration; it runs before schedules."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.InitializeOpenReductions")
    def _initialize(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        if not (func.attrs and "s_tir" in func.attrs) or "tirx.is_scheduled" in func.attrs or not _has_open_loops(func):
            return func  # a kernel that is scheduled already may be no tree of blocks, as VTA's interpreter is none
        schedule = s_tir.Schedule(func)
        # A kernel written out as loops, such as TVM's of scattering, is one block of another name.
        root = func.body.block.name_hint if isinstance(func.body, s_tir.SBlockRealize) else "root"
        for block in _blocks(schedule, schedule.get_sblock(root)):
            annotations = schedule.get(block).annotations
            if GEOMETRY_ATTRIBUTE in annotations or annotations.get(KERNEL_ATTRIBUTE) == OPEN_PRODUCT:
                continue  # the rule that writes such a kernel out initialises its sums
            first = _first_open_reduction(schedule, block)
            if first is not None:
                schedule.decompose_reduction(block, first)
        return schedule.mod["main"].with_attrs(func.attrs)

    return _initialize


def _has_open_loops(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(func, [(tirx.For, found.append)])
    return any(not isinstance(loop.extent, prim.IntImm) for loop in found)


def _blocks(schedule: s_tir.Schedule, block: Any) -> list[Any]:
    children = schedule.get_child_blocks(block)
    return [found for child in children for found in (child, *_blocks(schedule, child))]


def _first_open_reduction(schedule: s_tir.Schedule, block: Any) -> Any:
    """Find the outermost loop that a block reduces over, if it reduces over one whose extent is not known."""
    loops = schedule.get_loops(block)
    if schedule.get(block).init is None or not loops:
        return None
    realize = schedule.get(loops[-1]).body
    if not isinstance(realize, s_tir.SBlockRealize):
        return None
    reduced = [
        value
        for value, axis in zip(realize.iter_values, realize.block.iter_vars, strict=True)
        if axis.iter_type == tirx.IterVar.CommReduce
    ]
    reducing = [loop for loop in loops if any(uses(value, schedule.get(loop).loop_var) for value in reduced)]
    is_open = any(not isinstance(schedule.get(loop).extent, prim.IntImm) for loop in reducing)
    return reducing[0] if is_open else None
