"""Gathers of weights are fused to what computes their indices, and to what is computed of what they gather.

before: ``i = where(less(ids, 0), add(ids, 1000), ids); x = take(words, i); y = add(take(kinds, j), x)``: four kernels
after:  one

TVM calls a kernel opaque that indexes a tensor by another one. It computes each element by itself all the same, so that
it is injective for those who read it; and so are its indices, which are computed again for each element of a row. What
it gathers from must not be fused, since the elements of that may be many more, or be gathered many times: so here it is
a parameter or a constant.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.relax_utils import INJECTIVE, OPAQUE


def fusible_gathers() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FusibleGathers")
    def _fusible_gathers(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        sources = {
            variable.name_hint: found
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and (found := _gathered(func))
        }
        refused: set[str] = set()
        called: dict[str, Any] = {}
        for func in mod.functions.values():
            if not isinstance(func, relax.Function) or not sources:
                continue
            bindings = Bindings()
            bindings.visit_expr(func)
            for value in bindings.values.values():
                if not calls(value, "relax.call_tir") or value.args[0].name_hint not in sources:
                    continue
                name = value.args[0].name_hint
                called[name] = value.args[0]
                operands = value.args[1].fields
                if any(place >= len(operands) or operands[place] in bindings.values for place in sources[name]):
                    refused.add(name)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for name, variable in called.items():
            if name not in refused:
                updated.update_func(variable, mod[variable].with_attr("op_pattern", INJECTIVE))
        return updated

    return _fusible_gathers


def _gathered(func: tirx.PrimFunc) -> set[int]:
    """Give the places of the parameters that a kernel indexes by others; none if that is not all it does."""
    if int((func.attrs or {}).get("op_pattern", INJECTIVE)) != OPAQUE or not isinstance(func.body, s_tir.SBlockRealize):
        return set()
    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body.block.body, [(s_tir.SBlock, blocks.append)])
    if len(blocks) != 1 or not all(map(tirx.is_buffer_var, func.params)):
        return set()
    (block,) = blocks
    store = block.body
    axes = [axis.var for axis in block.iter_vars]
    if any(int(axis.iter_type) != tirx.IterVar.DataPar for axis in block.iter_vars) or block.init is not None:
        return set()
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(func.params[-1]):
        return set()
    if len(axes) != len(store.indices) or not all(a.same_as(b) for a, b in zip(axes, store.indices, strict=True)):
        return set()
    if not isinstance(store.value, tvm.ir.TensorLoad):
        return set()
    inner: list[Any] = []
    tvm_ffi.structural_walk(list(store.value.indices), [(tvm.ir.TensorLoad, inner.append)])
    if not inner or any(load.source.same_as(store.value.source) for load in inner):
        return set()
    return {place for place, param in enumerate(func.params) if param.same_as(store.value.source)}
