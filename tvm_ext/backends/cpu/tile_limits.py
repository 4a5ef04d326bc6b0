"""Whether a scheduled kernel keeps to what AMX has: tile registers, their configuration, and the CPU's instructions.

Other instructions of CPUs have no limits that a schedule could pass: LLVM spills registers, and memory is paged. A tile
that is not there, is not configured, or is multiplied by an instruction that the CPU lacks ends the process.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.instructions.emit import TILES
from tvm_ext.schedules.rule import Refusal

PREFIX = "llvm.x86."
CONFIGURE, RELEASE = "ldtilecfg", "tilerelease"

TILE_OPERANDS = {"tileloadd64": 1, "tileloaddt164": 1, "tilestored64": 1, "tilezero": 1}
"""By instruction the number of leading operands that are numbers of tiles; of products it is three."""

PRODUCTS = {
    "tdpbssd": "amx-int8",
    "tdpbsud": "amx-int8",
    "tdpbusd": "amx-int8",
    "tdpbuud": "amx-int8",
    "tdpbf16ps": "amx-bf16",
    "tdpfp16ps": "amx-fp16",
}
"""The feature of a CPU that each product of tiles needs."""

PRODUCT_OPERANDS = 3


def tile_refusal(target: tvm.target.Target) -> Refusal | None:
    """Make what says of a scheduled kernel why the AMX of a target cannot run it; None for CPUs without AMX.

    A schedule for a CPU without AMX has no product of tiles: there is nothing to ask.
    """
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    return (lambda func, target: tile_fault(func, features)) if "amx-tile" in features else None


def tile_fault(func: tirx.PrimFunc, features: set[str]) -> str:
    """Say what is wrong with the tiles of a kernel, in the order in which they are used; ``""`` if nothing is.

    Parameters
    ----------
    func : PrimFunc
    features : set of str
        LLVM's names of what the CPU has.
    """
    faults: list[str] = []
    is_configured = False
    for name, operands in _tile_calls(func):
        if name == CONFIGURE:
            is_configured = True
            continue
        if not is_configured:
            faults.append(f"uses {name} before tiles are configured")
        if name == RELEASE:
            is_configured = False
            continue
        feature = PRODUCTS.get(name)
        if feature is not None and feature not in features:
            faults.append(f"multiplies with {name}, which needs {feature}: the CPU lacks it")
        count = PRODUCT_OPERANDS if feature is not None else TILE_OPERANDS[name]
        for operand in operands[:count]:
            if not isinstance(operand, tirx.IntImm):
                faults.append(f"gives {name} a tile that is not known when it is compiled")
            elif not 0 <= int(operand) < TILES:
                faults.append(f"uses tile {int(operand)}, there are {TILES}")
    return faults[0] if faults else ""


def _tile_calls(func: tirx.PrimFunc) -> list[tuple[str, list[tvm.ir.Expr]]]:
    """List the instructions on tiles with their operands, in the order of the program."""
    known = {CONFIGURE, RELEASE, *TILE_OPERANDS, *PRODUCTS}
    found: list[tuple[str, list[tvm.ir.Expr]]] = []

    def visit(call: tvm.ir.Call) -> None:
        if str(getattr(call.op, "name", "")) != "tirx.call_llvm_intrin":
            return
        number, *operands = call.args
        name = str(tvm.target.codegen.llvm_get_intrinsic_name(int(number))).removeprefix(PREFIX)
        if name in known:
            found.append((name, operands))

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, visit)])
    return found
