"""Let TVM find the kernels that are reshapes, but in tensors of 2^31 elements and more, where its analysis fails.

before: ``y = call_tir(reshape, (x,)); z = call_tir(transpose_of_3e9_elements, (y,))``
after:  ``y = R.reshape(x, ...); z = call_tir(transpose_of_3e9_elements, (y,))``
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tvm_ext.graph.relax_module import has_huge_tensor


def dataflow_reshapes() -> tvm.transform.Pass:
    """Make the pass; a reshape of such a tensor stays a kernel that copies."""
    rewrite = relax.transform.RewriteDataflowReshape()

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.DataflowReshapes")
    def _dataflow_reshapes(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = [(variable, func) for variable, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
        huge = {variable: func for variable, func in kernels if has_huge_tensor(func)}
        if not huge:
            return rewrite(mod)
        hidden = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in huge.items():
            hidden.update_func(variable, func.with_body(tirx.Evaluate(0)))
        mod = rewrite(hidden)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in huge.items():
            updated.update_func(variable, func)
        return updated

    return _dataflow_reshapes
