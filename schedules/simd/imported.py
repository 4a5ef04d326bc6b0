"""Functions in LLVM's own language, for what TVM has no expression for; kernels that call them take them in."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

PREFETCH, STEP, SDOT, SUDOT = "tvm_ext_prefetch", "tvm_ext_step", "tvm_ext_sdot", "tvm_ext_sudot"
PREFETCH_NEAR, PREFETCH_ONCE = "tvm_ext_prefetch_near", "tvm_ext_prefetch_once"
LOCALITIES = {PREFETCH: 2, PREFETCH_NEAR: 3, PREFETCH_ONCE: 0}
"""Fetches into the L2 cache, into the L1 cache, and of what is read once, with the number that LLVM and GCC have."""
BFLOAT16 = "tvm_ext_bfloat16"
"""Function that rounds a float32 to the bits of the nearest bfloat16; of a vector with :func:`of_lanes`."""
BFLOAT16_DOT = "tvm_ext_bfloat16_dot"
"""With :func:`of_lanes`: adds two products of bfloat16 to each float32."""
OPAQUE = {"int32": "tvm_ext_opaque_32", "int64": "tvm_ext_opaque_64"}
"""By the type of an index, the function that gives it back, but so that LLVM does not know that."""


def _dot(name: str, instruction: str) -> str:
    # LLVM makes a vector of the inputs, which takes an instruction and an address of its own.
    return f"""
define linkonce_odr <4 x i32> @{name}(<4 x i32> %total, <16 x i8> %weights, float %inputs) alwaysinline {{
  %sum = call <4 x i32> asm "{instruction} $0.4s, $2.16b, $3.4b[0]", "=w,0,w,w"(
    <4 x i32> %total, <16 x i8> %weights, float %inputs) nounwind willreturn memory(none)
  ret <4 x i32> %sum
}}
"""


def of_lanes(name: str, lanes: int) -> str:
    """Name the form of a function for vectors of so many lanes."""
    return name if lanes == 1 else f"{name}_{lanes}"


def _bfloat16(lanes: int) -> str:
    single, half, bits = (kind if lanes == 1 else f"<{lanes} x {kind}>" for kind in ("float", "bfloat", "i16"))
    return f"""
define linkonce_odr {bits} @{of_lanes(BFLOAT16, lanes)}({single} %value) alwaysinline {{
  %rounded = fptrunc {single} %value to {half}
  %bits = bitcast {half} %rounded to {bits}
  ret {bits} %bits
}}
"""


def _bfloat16_dot(lanes: int) -> str:
    sums, pairs, instruction = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>", f"dpbf16ps.{32 * lanes}"
    return f"""
declare {sums} @llvm.x86.avx512bf16.{instruction}({sums}, {pairs}, {pairs})
define linkonce_odr {sums} @{of_lanes(BFLOAT16_DOT, lanes)}(
    {sums} %total, <{lanes} x i32> %inputs, <{2 * lanes} x i16> %weights) alwaysinline {{
  %left = bitcast <{lanes} x i32> %inputs to {pairs}
  %right = bitcast <{2 * lanes} x i16> %weights to {pairs}
  %sum = call {sums} @llvm.x86.avx512bf16.{instruction}({sums} %total, {pairs} %left, {pairs} %right)
  ret {sums} %sum
}}
"""


def _opaque(name: str, dtype: str) -> str:
    return f"""
define linkonce_odr {dtype} @{name}({dtype} %index) alwaysinline {{
  %same = call {dtype} asm "", "=r,0"({dtype} %index) nounwind willreturn memory(none)
  ret {dtype} %same
}}
"""


def _prefetch(name: str, locality: int) -> str:
    # The arguments say: to read, to be kept in which cache, data. To LLVM a prefetch reads what its address points to,
    # so accumulators would be written to memory before each; it is told that no memory is touched that others can see.
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr void @{name}(ptr %address) alwaysinline {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 {locality}, i32 1) memory(inaccessiblemem: readwrite)
  ret void
}}
"""


DEFINITIONS = {
    **{name: _prefetch(name, locality) for name, locality in LOCALITIES.items()},
    # No instruction at all, but LLVM does not move loads across it.
    STEP: f"""
define linkonce_odr void @{STEP}() alwaysinline {{
  call void asm sideeffect "", ""() nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}}
""",
    **{name: _opaque(name, f"i{dtype.removeprefix('int')}") for dtype, name in OPAQUE.items()},
    SDOT: _dot(SDOT, "sdot"),
    SUDOT: _dot(SUDOT, "sudot"),
    # Loops over the channels of a block become vectors of as many lanes, 12 of them too.
    **{of_lanes(BFLOAT16, lanes): _bfloat16(lanes) for lanes in range(1, 33)},
    **{of_lanes(BFLOAT16_DOT, lanes): _bfloat16_dot(lanes) for lanes in (4, 8, 16)},
}
"""Text of each function by its name."""

LANEWISE = (BFLOAT16,)
"""Those that do the same in every lane."""


def imported(call: Any) -> str:
    """Name the function of :data:`DEFINITIONS` that a call calls; empty for any other call."""
    if getattr(call.op, "name", "") not in ("tirx.call_extern", "tirx.call_pure_extern"):
        return ""
    name = str(getattr(call.args[0], "value", ""))
    return name if name in DEFINITIONS else ""


def seen_through(value: Any) -> Any:
    """Give what LLVM is kept from knowing: the index that :data:`OPAQUE` gives back; other expressions as they are."""
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "tirx.call_extern":
        if str(getattr(value.args[0], "value", "")) in OPAQUE.values():
            return value.args[1]
    return value


def import_definitions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel the definitions of the functions that it calls."""
    called: set[str] = set()

    def note(call: Any) -> None:
        called.add(imported(call))

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, note)])
    lines = [line for name, text in DEFINITIONS.items() if name in called for line in text.splitlines()]
    if not lines:
        return func
    declared = dict.fromkeys(line for line in lines if line.startswith("declare"))  # LLVM takes each only once
    text = "\n".join([*declared, *(line for line in lines if line not in declared), ""])
    return func.with_body(tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", tvm.ir.StringImm(text), func.body))
