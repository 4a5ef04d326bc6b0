"""Kernels that come with threads of their own, as TVM's for sorts and scans: whether all their work is in threads.

What is left outside would be done by the host, which has no access to the tensors of a GPU, and so would what a kernel
leaves to a function of TVM's runtime.
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
        lowered = lower(func, target)
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
    tvm_ffi.structural_walk(lowered.host.body, callbacks)
    if called := sorted({name for part in (lowered.host, *lowered.kernels.values()) for name in _functions(part)}):
        return f"calls {', '.join(called)}, which TVM's runtime has for CPUs"
    if touched:
        names = ", ".join(sorted(set(touched)))
        return f"has work on {names} outside its threads, where no tensor of a GPU can be read"
    return ""


def _functions(part: tirx.PrimFunc) -> list[str]:
    """List the functions of TVM's runtime that are called by name, of which none takes tensors of a GPU."""
    found: list[str] = []

    def call(node: tvm.ir.Call) -> None:
        if getattr(node.op, "name", "") in _BY_NAME:
            found.append(str(getattr(node.args[0], "value", node.args[0])))

    tvm_ffi.structural_walk(part.body, [(tvm.ir.Call, call)])
    return found


_BY_NAME = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked")
