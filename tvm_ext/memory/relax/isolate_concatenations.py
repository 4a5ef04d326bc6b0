"""Keep concatenations out of fused kernels where their operands could be written into the result directly.

A kernel of its own that only joins can be planned away (:mod:`tvm_ext.memory.relax.arena`); fused with its neighbours
it cannot. Works before ``FuseOps``. Where the order is not searched for, fusion is tried both ways
(:func:`fuse_for_arena`); where the order is looked for, it is decided in :mod:`tvm_ext.memory.relax.rewriting`, and
functions for which it is worth it have the attribute :data:`ISOLATE_ATTRIBUTE`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from tvm_ext.memory import OrderOptions, plan_order
from tvm_ext.memory.relax.graph import ALIGNMENT, LIVENESS, is_plannable, memory_graph
from tvm_ext.memory.relax.kernel_access import kernel_access
from tvm_ext.relax_utils import OPAQUE

ISOLATE_ATTRIBUTE = "tvm_ext.isolate_concatenations"


def isolate_concatenations() -> tvm.transform.Pass:
    """Make the pass; it marks kernels as opaque to fusion and changes nothing else."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.IsolateConcatenations")
    def _isolate(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = mod.functions.values()
        if not any(isinstance(func, relax.Function) and ISOLATE_ATTRIBUTE in (func.attrs or {}) for func in functions):
            return mod
        return _isolated(mod) or mod

    return _isolate


def fuse_for_arena(fusion: Sequence[tvm.transform.Pass], function: str = "main") -> tvm.transform.Pass:
    """Make the pass that fuses kernels, concatenations apart where that lowers the peak of a quick order.

    Parameters
    ----------
    fusion : sequence of Pass
        From kernels of single operators to fused ones.
    function : str
        The Relax function whose peak counts.
    """
    fuse = tvm.transform.Sequential(list(fusion), name="tvm_ext.Fusion")

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FuseForArena")
    def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        func = next((f for variable, f in mod.functions_items() if variable.name_hint == function), None)
        isolated = _isolated(mod) if isinstance(func, relax.Function) and is_plannable(func) else None
        fused = fuse(mod)
        if isolated is None:
            return fused
        peak, apart = _peak(fused), fuse(isolated)
        lower = _peak(apart)
        return fused if peak is None or lower is None or lower >= peak else apart

    return _fuse


def _isolated(mod: tvm.IRModule) -> tvm.IRModule | None:
    """Mark concatenations that could be planned away as opaque; None where there are none."""
    marked = {}
    for global_var, func in mod.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc):
            parts = kernel_access(func).parts
            if len(parts) > 1 and all(isinstance(offset, int) and offset % ALIGNMENT == 0 for offset in parts):
                marked[global_var] = func.with_attr("op_pattern", OPAQUE)
    if not marked:
        return None
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, func in marked.items():
        updated.update_func(global_var, func)
    return updated


def _peak(mod: tvm.IRModule) -> int | None:
    """Plan the memory of a module's kernels in a quick order; None where sizes are open."""
    graph = memory_graph(mod).graph
    if any(not isinstance(tensor.nbytes, int) for tensor in graph.tensors.values()):
        return None
    return plan_order(graph, OrderOptions(method="greedy", liveness=LIVENESS)).peak
