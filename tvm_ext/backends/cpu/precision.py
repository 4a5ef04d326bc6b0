"""Which precisions a CPU computes in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.backends.backend import in_float32
from tvm_ext.errors import OptionError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.simd.imported import BFLOAT16, imported

BFLOAT16_FEATURE = "avx512bf16"
"""LLVM's name of the instructions that multiply bfloat16 and add up in float32."""

BESIDE_BFLOAT16 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
"""Features of the vectors that hold these operands; see :data:`tvm_ext.schedules.cpu.machine.ROWS`."""


def check_precision(target: tvm.target.Target, options: PipelineOptions) -> None:
    """Refuse a precision that the processor does not compute in, and what CPUs do not have.

    Raises
    ------
    OptionError
    """
    if options.precision != "bfloat16":
        in_float32(target, options)
        return
    in_float32(target, replace(options, precision="float32"))
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    missing = [feature for feature in BESIDE_BFLOAT16 if feature not in features]
    name = str(target.attrs.get("mcpu", "")) or "the target"
    if BFLOAT16_FEATURE not in features:
        raise OptionError(
            f"option precision: {name} has no instructions for bfloat16 that are used here ({BFLOAT16_FEATURE}, as AMD "
            "Zen 4 and Intel Cooper Lake and Sapphire Rapids have them); name such a processor, or leave the option out"
        )
    if missing:
        raise OptionError(
            f"option precision: {name} has {BFLOAT16_FEATURE} without {', '.join(missing)}, which kernels use, too; "
            "add the feature to the target's mattr, or leave the option out"
        )


UNIT = 2.0**-9
"""What rounding to bfloat16 changes a number by at most, relatively."""


def rounding(mod: tvm.IRModule) -> dict[str, Any]:
    """Say what of a compiled module is rounded to bfloat16.

    Returns
    -------
    dict
        ``rounded_calls``: calls of kernels whose operands are rounded; ``operand_error``: by what an operand is off at
        most, relatively. What that does to the outputs depends on the model, and is measured by ``tvm-ext bench``.
    """
    kernels = {
        variable.name_hint
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and _rounds(func)
    }
    calls = [0]

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.GlobalVar):
            calls[0] += node.op.name_hint in kernels

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return {"rounded_calls": calls[0], "operand_error": UNIT}


def _rounds(func: tirx.PrimFunc) -> bool:
    def interrupt(call: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if imported(call).startswith(BFLOAT16) else None

    return tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, interrupt)]) is not None
