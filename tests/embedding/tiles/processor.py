"""Runs kernels on tile registers on a machine without them: each instruction is a call of ``processor.c``."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.target import resolve_target

TILE_CPU = {"kind": "llvm", "mcpu": "sapphirerapids"}
NAMES = (
    "ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64", "tdpbusd", "tdpbssd", "tdpbf16ps",
)  # fmt: skip


@lru_cache
def processor() -> ctypes.CDLL:
    """Compile the processor and load it, so that kernels find its functions."""
    folder = Path(tempfile.mkdtemp(prefix="tiles"))
    source = Path(__file__).with_name("processor.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "processor.so", source], check=True)
    library = ctypes.CDLL(str(folder / "processor.so"), mode=ctypes.RTLD_GLOBAL)
    library.emulated_permit.argtypes = [ctypes.c_long]
    library.emulated_products.restype = ctypes.c_long
    return library


def lowered(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    """Compile as far as loops for a CPU with tiles."""
    target = resolve_target(TILE_CPU)
    with target:
        return relax.get_pipeline("tvm_ext", winograd=False, **options)(mod)


def emulated(mod: tvm.IRModule) -> tvm.IRModule:
    """Have the kernels of a module call the emulated processor."""
    numbers = {int(tvm.target.codegen.llvm_lookup_intrinsic_id(f"llvm.x86.{name}")): name for name in NAMES}

    def call(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        name = getattr(node.op, "name", "")
        if name.endswith("call_llvm_intrin") and int(node.args[0].value) in numbers:
            arguments = [tirx.Cast("int32", arg) if str(arg.ty) == "uint8" else arg for arg in node.args[1:]]
            return tirx.call_extern("void", f"emulated_{numbers[int(node.args[0].value)]}", *arguments)
        if name.endswith("call_extern") and str(node.args[0].value) == "syscall":
            return tirx.call_extern("int64", "emulated_syscall", *node.args[1:])
        return node

    updated = tvm.IRModule(mod.functions, attrs=mod.attrs)
    for variable, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            updated.update_func(variable, tvm_ffi.structural_mutate(func, [(tvm.ir.Call, call)]))
    return updated
