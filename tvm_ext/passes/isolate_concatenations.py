"""Keep concatenations out of fused kernels where their operands could be written into the result directly.

A kernel of its own that only joins can be planned away (:mod:`tvm_ext.passes.arena`); fused with its neighbours it
cannot. Runs before ``FuseOps``, on modules with a function that has the attribute :data:`ISOLATE_ATTRIBUTE`: where it
is worth it is decided in :mod:`tvm_ext.passes.memory_rewriting`.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_ext.passes.kernel_access import kernel_access
from tvm_ext.passes.layout import OPAQUE
from tvm_ext.passes.memory_graph import ALIGNMENT

ISOLATE_ATTRIBUTE = "tvm_ext.isolate_concatenations"


def isolate_concatenations() -> tvm.transform.Pass:
    """Make the pass; it marks kernels as opaque to fusion and changes nothing else."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.IsolateConcatenations")
    def _isolate(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = mod.functions.values()
        if not any(isinstance(func, relax.Function) and ISOLATE_ATTRIBUTE in (func.attrs or {}) for func in functions):
            return mod
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs)
        for global_var, func in mod.functions.items():
            if isinstance(func, tvm.tirx.PrimFunc):
                parts = kernel_access(func).parts
                if len(parts) > 1 and not any(offset % ALIGNMENT for offset in parts):
                    updated.update_func(global_var, func.with_attr("op_pattern", OPAQUE))
        return updated

    return _isolate
