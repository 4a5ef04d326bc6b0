"""Let kernels take tensors that begin at any element.

TVM takes for granted that the data of an argument begins at a multiple of 64 bytes, and never looks: a tensor that
begins elsewhere, as a slice of a NumPy array or of a PyTorch tensor does, ends the process at the first aligned vector
load. TVM's own scalar loops would read it. CPUs load a vector from any address as fast as long as it does not cross a
cache line, which that of an aligned tensor then does not.

before: ``def kernel(x: T.Buffer((34, 30), "float32"))``
after:  ``def kernel(x: T.Buffer((34, 30), "float32", align=4))``
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.relax_utils import substitute


def element_alignment() -> tvm.transform.Pass:
    """Make the pass; it works on the kernels of a module that is compiled for a CPU."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ElementAlignment")
    def _element_alignment(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc):
                updated.update_func(global_var, align_to_elements(func))
        return updated

    return _element_alignment


def reads_any_element(mod: tvm.IRModule) -> bool:
    """Tell whether a lowered module takes tensors that begin at any element: its kernels, and the virtual machine.

    The machine makes views with an offset only of tensors that begin at a multiple of 64 bytes.
    """
    if any(_moves_views(func) for func in mod.functions.values() if isinstance(func, relax.Function)):
        return False
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) and not _is_of_extents(func)]
    buffers = [buffer for func in kernels for buffer in func.params if isinstance(buffer.ty, tirx.BufferType)]
    return all(buffer.data_alignment <= _element_bytes(buffer) for buffer in buffers)


def _moves_views(func: relax.Function) -> bool:
    """Whether a function has a view whose data begins elsewhere than that of the tensor; those of an arena are none."""
    views: set[Any] = set()
    moved: list[Any] = []

    def note(binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(value, relax.Var) and value in views:
            views.add(binding.var)
        symbol = _symbol(value)
        if symbol == "runtime.TVMTensorCreateView":
            views.add(binding.var)
        elif symbol == "vm.builtin.ensure_zero_offset":
            moved.append(value.args[0])

    relax.analysis.post_order_visit(func, lambda expr: _visit(expr, note))
    return any(tensor in views for tensor in moved)


def _visit(expr: Any, note: Any) -> None:
    for block in expr.blocks if isinstance(expr, relax.SeqExpr) else ():
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                note(binding)


def _symbol(value: Any) -> str:
    is_extern = isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc)
    return str(value.op.global_symbol) if is_extern else ""


def align_to_elements(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare the tensors that a kernel takes as aligned to one element each."""
    buffers = [buffer for buffer in func.params if isinstance(buffer.ty, tirx.BufferType)]
    # What a block calls a part of a tensor may ask for no more than the tensor has.
    tvm_ffi.structural_walk(func.body, (s_tir.MatchBufferRegion, lambda match: buffers.append(match.buffer)))
    replaced = {buffer: _aligned_to_element(buffer) for buffer in buffers}
    return substitute(func, replaced)


def _aligned_to_element(buffer: Any) -> Any:
    return tirx.decl_buffer(
        buffer.shape,
        buffer.dtype,
        buffer.name,
        strides=buffer.strides or None,
        elem_offset=buffer.elem_offset,
        scope=buffer.scope(),
        data_alignment=_element_bytes(buffer),
        offset_factor=buffer.offset_factor,
    )


def _is_of_extents(func: tirx.PrimFunc) -> bool:
    """Whether a function computes extents, in memory of the virtual machine, and never sees a tensor."""
    return bool(func.attrs) and "tirx.is_host_func" in func.attrs


def _element_bytes(buffer: Any) -> int:
    return (int(tvm.DataType(buffer.dtype).bits) + 7) // 8
