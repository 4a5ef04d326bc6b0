"""Lowers kernels as far as loops over flat buffers, and makes vector code of what the schedule rules marked.

The loops that rules mark with :func:`tvm_ext.schedules.simd.loops.mark_simd` become vector statements with masked
remainders, and transcendental functions become arithmetic on vectors. TVM's own lowering then finds nothing left to do
in its first half and goes on from there. Kernels that hold neither are left alone.

Vector code in which an access to a tensor of known extents cannot be shown to stay inside it in every lane is thrown
away: the kernel then runs as scalar loops, and says so in the attribute ``tvm_ext.unproved_access``.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.passes.absent_taps import without_absent_taps
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.simd.bounds import unproved_accesses
from tvm_ext.schedules.simd.expansion import expand_all
from tvm_ext.schedules.simd.functions import separate_marked_loops
from tvm_ext.schedules.simd.imported import import_definitions, imported
from tvm_ext.schedules.simd.loops import (
    EXACT_ATTRIBUTE,
    SIMD_ATTRIBUTE,
    holds_extremes_in_vectors,
    vectorize_marked_loops,
)
from tvm_ext.schedules.simd.prefetch import STEP_ATTRIBUTE
from tvm_ext.schedules.simd.ramps import holds_ramps, with_plain_ramps, with_plain_remainders
from tvm_ext.schedules.simd.stream import complete_streams
from tvm_ext.schedules.simd.transcendental import expands
from tvm_ext.schedules.simd.whole_stores import UNMASKING_ISAS, with_whole_stores

UNPROVED_ATTRIBUTE = "tvm_ext.unproved_access"
"""Attribute of a kernel whose vector code was thrown away: the access that was not proved to stay inside its tensor."""


def lower_to_loops(compact: bool = True) -> tvm.transform.Pass:
    """Make the pass that does the first half of TVM's lowering: no blocks any more, loops over flat buffers.

    Parameters
    ----------
    compact : bool
        Whether buffers shrink to the part of them that is used.
    """
    return tvm.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            *([s_tir.transform.CompactBufferAllocation()] if compact else []),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.NarrowDataType(32),
            s_tir.transform.LoopPartition(),
        ]
    )


def has_blocks(func: tirx.PrimFunc) -> bool:
    """Whether a kernel is made of blocks, and not of loops over what is stored where."""

    def interrupt(_block: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True)

    return tvm_ffi.structural_walk(func.body, [(tvm.s_tir.SBlockRealize, interrupt)]) is not None


def vector_code() -> tvm.transform.Pass:
    """Make the pass; it works on the PrimFuncs of a module that is compiled for a CPU."""
    to_loops, keeping_buffers = lower_to_loops(), lower_to_loops(compact=False)

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.VectorCode")
    def _vector_code(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = {
            global_var: without_absent_taps(func) if isinstance(func, tirx.PrimFunc) else func
            for global_var, func in mod.functions.items()
        }
        kernels = {
            global_var: func
            for global_var, func in functions.items()
            if isinstance(func, tirx.PrimFunc) and _concerned(func)
        }
        mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        if not kernels:
            return mod
        target = tvm.target.Target.current(allow_none=True)
        isa = machine_of(target).isa if target else ""
        exact = {name: func for name, func in kernels.items() if EXACT_ATTRIBUTE in (func.attrs or {})}
        lowered = to_loops(tvm.IRModule({name: func for name, func in kernels.items() if name not in exact}))
        lowered.update(keeping_buffers(tvm.IRModule(exact)))
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var in kernels:
            func = with_plain_remainders(expand_all(_vectorized(with_plain_ramps(lowered[global_var]), isa), isa))
            updated.update_func(global_var, import_definitions(complete_streams(separate_marked_loops(func))))
        return updated

    return _vector_code


def _vectorized(func: tirx.PrimFunc, isa: str) -> tirx.PrimFunc:
    """Make the marked loops of a kernel vectors, if every lane then stays inside the tensors."""
    vectors = vectorize_marked_loops(func, isa)
    if isa in UNMASKING_ISAS:
        vectors = with_whole_stores(vectors)
    # Of tensors with open extents, lanes are the iterations of a loop or masked, and gathers are proved one by one.
    unproved = [access for access in unproved_accesses(vectors) if not access.is_open]
    return func.with_attr(UNPROVED_ATTRIBUTE, str(unproved[0])) if unproved else vectors


def _concerned(func: tirx.PrimFunc) -> bool:
    """Whether a kernel holds a marked loop, a call that is expanded or imported, or an instruction's addresses."""

    def interrupt_at_loop(loop: Any) -> Any:
        is_marked = loop.annotations and not {SIMD_ATTRIBUTE, STEP_ATTRIBUTE}.isdisjoint(loop.annotations)
        return tvm_ffi.VisitInterrupt(True) if is_marked or holds_extremes_in_vectors(loop) else None

    def interrupt_at_call(call: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if expands(call) or imported(call) else None

    found = tvm_ffi.structural_walk(func.body, [(tirx.For, interrupt_at_loop), (tvm.ir.Call, interrupt_at_call)])
    return found is not None or holds_ramps(func)
