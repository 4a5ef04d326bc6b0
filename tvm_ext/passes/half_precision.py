"""Refuses float16 on RISC-V processors without instructions for it.

There LLVM calls functions that convert between float16 and float32. TVM puts its own into each module, which take their
argument in an integer register, where the calls pass it in one of floats: what they return is arbitrary.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.errors import TargetError
from tvm_ext.schedules.simd.vector import element_type

CONVERSIONS = "zfhmin"
"""LLVM's name for the instructions that convert."""


def half_precision() -> tvm.transform.Pass:
    """Make the pass.

    Raises
    ------
    TargetError
        If a kernel holds float16, and the current target is a RISC-V processor that cannot convert it.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.HalfPrecision")
    def _half_precision(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True)
        if target is None or not str(target.attrs.get("mtriple", "")).startswith("riscv"):
            return mod
        features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
        if CONVERSIONS in features:
            return mod
        for global_var, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and _holds_half(func):
                raise TargetError(
                    f"kernel {global_var.name_hint} computes with float16, for which the target has no instructions; "
                    f'add "+{CONVERSIONS}" to its mattr if the processor has them, or give the model as float32'
                )
        return mod

    return _half_precision


def _holds_half(func: tirx.PrimFunc) -> bool:
    def interrupt(value: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if element_type(value) == "float16" else None

    return tvm_ffi.structural_walk(func.body, [((prim.Cast, tvm.ir.TensorLoad), interrupt)]) is not None
