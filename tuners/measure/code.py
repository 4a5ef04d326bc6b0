"""From a candidate to machine code."""

from __future__ import annotations

from typing import Any

import tvm

from tvm_ext.passes.vector_code import vector_code


def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Generate code for the kernels of a module, in memory."""
    mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    if target.kind.name == "llvm":
        with target:
            mod = vector_code()(mod)
    return tvm.driver.build(mod, target=target)
