"""Which precisions a CPU computes in."""

from __future__ import annotations

from dataclasses import replace

import tvm

from tvm_ext.backends.backend import in_float32
from tvm_ext.errors import OptionError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import machine_of

BFLOAT16_FEATURE = "avx512bf16"
"""LLVM's name of the instructions that multiply bfloat16 and add up in float32."""


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
    if BFLOAT16_FEATURE not in features or machine_of(target).isa != "avx512":
        name = str(target.attrs.get("mcpu", "")) or "the target"
        raise OptionError(
            f"option precision: {name} has no instructions for bfloat16 that are used here ({BFLOAT16_FEATURE}, as AMD "
            "Zen 4 and Intel Cooper Lake and Sapphire Rapids have them); name such a processor, or leave the option out"
        )
