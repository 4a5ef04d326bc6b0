"""Kernels that come with threads of their own, as TVM's for sorts and scans: whether all their work is in threads.

What is left outside would be done by the host, which has no access to the tensors of a GPU.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.cuda.emulator.lowering import lower
from tvm_ext.errors import CompileError


def host_fault(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Say why a kernel cannot be divided into what a GPU does and what starts it; ``""`` if it can."""
    try:
        host = lower(func, target).host
    except CompileError as error:
        return f"cannot be lowered for CUDA, which is a fault of TVM's kernel: {error}"
    touched: list[str] = []

    def store(node: Any) -> None:
        touched.append(str(node.buffer.name))

    def load(node: Any) -> None:
        touched.append(str(node.source.name))

    def allocation(node: Any) -> None:
        if str(node.buffer.scope()) != "global":
            touched.append(str(node.buffer.name))

    callbacks = [(tirx.BufferStore, store), (tvm.ir.TensorLoad, load), (tirx.AllocBuffer, allocation)]
    tvm_ffi.structural_walk(host.body, callbacks)
    if touched:
        names = ", ".join(sorted(set(touched)))
        return f"has work on {names} outside its threads, where no tensor of a GPU can be read"
    return ""
