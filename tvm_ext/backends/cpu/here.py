"""Whether this machine runs what is tuned."""

from __future__ import annotations

import platform

import tvm

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import TargetError

# LLVM's names of instruction sets begin so; its other features say how to tune code, not what it needs.
INSTRUCTION_SETS = (
    "sse",
    "avx",
    "fma",
    "f16c",
    "bmi",
    "amx",
    "neon",
    "sve",
    "sme",
    "dotprod",
    "i8mm",
    "bf16",
    "fullfp16",
)


def check_runs_here(target: tvm.target.Target) -> None:
    """Make sure that this machine runs code of an LLVM target.

    Raises
    ------
    TargetError
        If it is of another kind, or lacks instructions.
    """
    remedy = "tune on machines of that kind (--tracker HOST:PORT --key KEY), or for target native"
    triple = str(target.attrs.get("mtriple", "") or "")
    if triple and triple.partition("-")[0] != platform.machine():
        raise TargetError(
            f"target {triple}: candidates are run on this machine, which is {platform.machine()}; {remedy}"
        )
    native = native_target()
    needed, there = (set(map(str, tvm.target.codegen.llvm_get_cpu_features(cpu))) for cpu in (target, native))
    missing = sorted(name for name in needed - there if name.startswith(INSTRUCTION_SETS))
    if missing:
        raise TargetError(
            f"target {target.attrs.get('mcpu', 'llvm')} needs {', '.join(missing)}, which this machine's "
            f"{native.attrs['mcpu']} lacks; {remedy}"
        )
