"""Take kernels out of a module that a memory plan has put others in place of.

A kernel that runs in place is a variant of one that does not, and a concatenation or slice that moves nothing is not
called at all; what nobody calls any more would still be compiled.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi

from tvm_ext.memory.relax.kernel_access import CONCATENATE_ATTRIBUTE, SLICE_ATTRIBUTE
from tvm_ext.memory.relax.order import VARIANT_ATTRIBUTE
from tvm_ext.relax_utils import called_by_name


def replaced_kernels() -> tvm.transform.Pass:
    """Make the pass; it runs when calls that move nothing are gone, and leaves all other kernels alone."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ReplacedKernels")
    def _replaced_kernels(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
        originals = {
            str(func.attrs[VARIANT_ATTRIBUTE]) for func in kernels.values() if VARIANT_ATTRIBUTE in _attrs(func)
        }
        replaced = [
            var
            for var, func in kernels.items()
            if var.name_hint in originals or CONCATENATE_ATTRIBUTE in _attrs(func) or SLICE_ATTRIBUTE in _attrs(func)
        ]
        if not replaced:
            return mod
        used: set[str] = set()
        for _, func in mod.functions_items():
            tvm_ffi.structural_walk(func, [(tvm.ir.GlobalVar, lambda var: used.add(var.name_hint))])
            if isinstance(func, tvm.tirx.PrimFunc):
                used.update(called_by_name(func))
        unused = {var.name_hint for var in replaced if var.name_hint not in used}
        functions = {var: func for var, func in mod.functions_items() if var.name_hint not in unused}
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return _replaced_kernels


def _attrs(func: Any) -> Any:
    return func.attrs or {}
