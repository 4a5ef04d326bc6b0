"""From a candidate to machine code."""

from __future__ import annotations

from typing import Any

import tvm

from tvm_ext.backends.registry import backend_of


def build(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Generate code for the kernels of a module, in memory."""
    mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    with target:
        for kernel_pass in backend_of(target).kernel_passes():
            mod = kernel_pass(mod)
        return tvm.driver.build(mod, target=target)
