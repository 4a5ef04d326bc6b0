"""Instructions of processors that kernels name by LLVM's intrinsics: C functions that mean the same.

Under the macro of its instruction set a function is the compiler's intrinsic. The other branch says in plain C what the
instruction computes, where that is short; where it is not, the sources ask for the instruction set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvm_ext.backends.c.helpers import Helpers
from tvm_ext.backends.c.types import CType
from tvm_ext.errors import CompileError
from tvm_ext.schedules.simd.imported import SDOT, SUDOT

_ELEMENT_DOTS = {SDOT: "s", SUDOT: "us"}
_PREFIX = {128: "_mm", 256: "_mm256", 512: "_mm512"}


def instruction(helpers: Helpers, name: str, result: CType, operands: Sequence[CType]) -> str:
    """Name the C function of an LLVM intrinsic.

    Parameters
    ----------
    helpers : Helpers
    name : str
        As LLVM spells it, such as ``llvm.x86.avx512.vpdpbusd.512``.
    result : CType
    operands : sequence of CType

    Raises
    ------
    CompileError
        If there is no such function.
    """
    c_name = re.sub(r"\W", "_", name.removeprefix("llvm."))
    for kind in (result, *operands):
        helpers.type(kind)
    parameters = ", ".join(f"{kind.name} {letter}" for kind, letter in zip(operands, "abcdef", strict=False))

    def made(body: str) -> str:
        # Masks, rounding modes: what LLVM's intrinsic takes besides, and the compiler's has in its name or not at all.
        unused = [letter for letter in "abcdef"[: len(operands)] if not re.search(rf"\b{letter}\b", body)]
        body = "".join(f"  (void){letter};\n" for letter in unused) + body
        return helpers.intrinsic(c_name, lambda known: (f"{result.name} {known}({parameters})", body))

    if name == "llvm.fma" or name.startswith("llvm.fma."):  # one and the same to LLVM
        return helpers.fused(result)
    if name.startswith("llvm.lrint"):
        return helpers.nearest(operands[0], result)
    found = re.fullmatch(r"llvm\.x86\.avx512\.vpdp(b|w)[us]sd\.(\d+)", name)
    if found is not None:
        return made(_dot(found[1] == "b", int(found[2]), result))
    if name in _PAIRS:
        return made(_pairs(_PAIRS[name], result))
    if name in _BYTE_PAIRS:
        return made(_byte_pairs(_BYTE_PAIRS[name], result))
    if name == "llvm.x86.avx512.permvar.sf.512":
        lanes = ", ".join(f"a[b[{lane}] & 15]" for lane in range(16))
        return made(
            _under("__AVX512F__", "(f32x16)_mm512_permutexvar_ps((__m512i)b, (__m512)a)", f"(f32x16){{{lanes}}}")
        )
    if name == "llvm.x86.avx512.vpermi2var.ps.512":
        lanes = ", ".join(f"b[{lane}] & 16 ? c[b[{lane}] & 15] : a[b[{lane}] & 15]" for lane in range(16))
        permuted = "(f32x16)_mm512_permutex2var_ps((__m512)a, (__m512i)b, (__m512)c)"
        return made(_under("__AVX512F__", permuted, f"(f32x16){{{lanes}}}"))
    if name == "llvm.x86.avx2.permps":
        lanes = ", ".join(f"a[b[{lane}] & 7]" for lane in range(8))
        return made(_under("__AVX2__", "(f32x8)_mm256_permutevar8x32_ps((__m256)a, (__m256i)b)", f"(f32x8){{{lanes}}}"))
    if name == "llvm.x86.avx512.mask.scalef.ps.512":
        lanes = ", ".join(f"scalef(a[{lane}], b[{lane}])" for lane in range(16))
        helpers.intrinsic("scalef", lambda known: (f"float {known}(float x, float e)", _SCALEF))
        return made(_under("__AVX512F__", "(f32x16)_mm512_scalef_ps((__m512)a, (__m512)b)", f"(f32x16){{{lanes}}}"))
    if name == "llvm.x86.avx512.mask.range.ps.512":
        # The smaller in size of two; of a value that is no number, the other one.
        lanes = ", ".join(f"fabsf(a[{lane}]) < fabsf(b[{lane}]) ? a[{lane}] : b[{lane}]" for lane in range(16))
        return made(_under("__AVX512DQ__", "(f32x16)_mm512_range_ps((__m512)a, (__m512)b, 2)", f"(f32x16){{{lanes}}}"))
    if name == "llvm.x86.avx512.rcp14.ps.512":  # about the reciprocal; the exact one will do as well
        lanes = ", ".join(f"1.0f / a[{lane}]" for lane in range(16))
        return made(_under("__AVX512F__", "(f32x16)_mm512_rcp14_ps((__m512)a)", f"(f32x16){{{lanes}}}"))
    found = re.fullmatch(r"llvm\.aarch64\.neon\.(s|us)dot\.v4i32\.v16i8", name)
    if found is not None:
        return made(_neon_dot(found[1] == "us"))
    raise CompileError(f"C sources have no function for {name}; compile for a target without that instruction")


def element_dot(helpers: Helpers, name: str) -> str:
    """Name the function that adds products of a vector of weights with four bytes that lie together."""
    integers, weights = CType("int32", 4), CType("int8", 16)
    known = instruction(
        helpers, f"llvm.aarch64.neon.{_ELEMENT_DOTS[name]}dot.v4i32.v16i8", integers, (integers, weights, weights)
    )
    body = (
        "  int32_t four;\n  memcpy(&four, &inputs, sizeof four);\n"
        f"  return {known}(total, (i8x16)(i32x4){{four, four, four, four}}, weights);\n"
    )
    head = f"i32x4 {name}(i32x4 total, {weights.name} weights, float inputs)"
    return helpers.intrinsic(name, lambda _known: (head, body))


def opaque(helpers: Helpers, name: str, kind: CType) -> str:
    """Name the function that gives an index back, but so that compilers do not know that."""
    body = '  __asm__("" : "+r"(index));\n  return index;\n'
    return helpers.intrinsic(name, lambda _known: (f"{kind.name} {name}({kind.name} index)", body))


def _under(macro: str, intrinsic: str, plain: str) -> str:
    return f"#if defined({macro})\n  return {intrinsic};\n#else\n  return {plain};\n#endif\n"


def _dot(of_bytes: bool, bits: int, result: CType) -> str:
    """``total + sum of a pack of products``: of unsigned bytes with signed ones, or of 16-bit integers."""
    vector = {128: "__m128i", 256: "__m256i", 512: "__m512i"}[bits]
    macro = "defined(__AVX512VNNI__)" + ("" if bits == 512 else " && defined(__AVX512VL__)")
    which = "dpbusd" if of_bytes else "dpwssd"
    operands = ", ".join(f"({vector}){operand}" for operand in "abc")
    text = f"#if {macro}\n  return ({result.name}){_PREFIX[bits]}_{which}_epi32({operands});\n"
    if bits < 512:
        text += f"#elif defined(__AVXVNNI__)\n  return ({result.name}){_PREFIX[bits]}_{which}_avx_epi32({operands});\n"
    first, second, pack = ("uint8_t", "int8_t", 4) if of_bytes else ("int16_t", "int16_t", 2)
    count = result.lanes * pack
    body = (
        f"  {first} x[{count}];\n  {second} y[{count}];\n  memcpy(x, &b, sizeof x);\n  memcpy(y, &c, sizeof y);\n"
        f"  for (int i = 0; i < {count}; ++i) a[i / {pack}] += (int32_t)x[i] * (int32_t)y[i];\n  return a;\n"
    )
    return f"{text}#else\n{body}#endif\n"


_PAIRS = {
    "llvm.x86.sse2.pmadd.wd": ("__SSE2__", "_mm_madd_epi16", "__m128i"),
    "llvm.x86.avx2.pmadd.wd": ("__AVX2__", "_mm256_madd_epi16", "__m256i"),
    "llvm.x86.avx512.pmaddw.d.512": ("__AVX512BW__", "_mm512_madd_epi16", "__m512i"),
}
_BYTE_PAIRS = {
    "llvm.x86.ssse3.pmadd.ub.sw.128": ("__SSSE3__", "_mm_maddubs_epi16", "__m128i"),
    "llvm.x86.avx2.pmadd.ub.sw": ("__AVX2__", "_mm256_maddubs_epi16", "__m256i"),
    "llvm.x86.avx512.pmaddubs.w.512": ("__AVX512BW__", "_mm512_maddubs_epi16", "__m512i"),
}


def _pairs(row: tuple[str, str, str], result: CType) -> str:
    """Add up two products of 16-bit integers that lie side by side."""
    macro, intrinsic, vector = row
    count = 2 * result.lanes
    plain = (
        f"  int16_t x[{count}], y[{count}];\n  {result.name} total = {{0}};\n  memcpy(x, &a, sizeof x);\n"
        "  memcpy(y, &b, sizeof y);\n"
        f"  for (int i = 0; i < {count}; ++i) total[i / 2] += (int32_t)x[i] * (int32_t)y[i];\n  return total;\n"
    )
    call = f"  return ({result.name}){intrinsic}(({vector})a, ({vector})b);\n"
    return f"#if defined({macro})\n{call}#else\n{plain}#endif\n"


def _byte_pairs(row: tuple[str, str, str], result: CType) -> str:
    """Add up two products of unsigned with signed bytes that lie side by side, as near as 16 bits come to them."""
    macro, intrinsic, vector = row
    plain = (
        f"  uint8_t x[{2 * result.lanes}];\n  int8_t y[{2 * result.lanes}];\n  {result.name} total;\n"
        "  memcpy(x, &a, sizeof x);\n  memcpy(y, &b, sizeof y);\n"
        f"  for (int i = 0; i < {result.lanes}; ++i) {{\n"
        "    int32_t sum = (int32_t)x[2 * i] * y[2 * i] + (int32_t)x[2 * i + 1] * y[2 * i + 1];\n"
        "    total[i] = (int16_t)(sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum);\n  }\n  return total;\n"
    )
    call = f"  return ({result.name}){intrinsic}(({vector})a, ({vector})b);\n"
    return f"#if defined({macro})\n{call}#else\n{plain}#endif\n"


_SCALEF = """  float n = floorf(e);
  if (n != n || x != x) return n + x;
  return ldexpf(x, n > 512.0f ? 512 : n < -512.0f ? -512 : (int)n);
"""


def _neon_dot(mixed: bool) -> str:
    macro = "__ARM_FEATURE_MATMUL_INT8" if mixed else "__ARM_FEATURE_DOTPROD"
    call = (
        "vusdotq_s32((int32x4_t)a, (uint8x16_t)b, (int8x16_t)c)"
        if mixed
        else "vdotq_s32((int32x4_t)a, (int8x16_t)b, (int8x16_t)c)"
    )
    first = "uint8_t" if mixed else "int8_t"
    plain = (
        f"  {first} x[16];\n  int8_t y[16];\n  memcpy(x, &b, sizeof x);\n  memcpy(y, &c, sizeof y);\n"
        "  for (int i = 0; i < 16; ++i) a[i / 4] += (int32_t)x[i] * (int32_t)y[i];\n  return a;\n"
    )
    return f"#if defined({macro})\n  return (i32x4){call};\n#else\n{plain}#endif\n"
