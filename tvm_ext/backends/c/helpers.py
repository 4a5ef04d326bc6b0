"""Small C functions that generated kernels call: what GCC and Clang have no operator on vectors for.

Each is written when a kernel first asks for it. Where a processor has an instruction that compilers do not find by
themselves, its intrinsic is used under the macro of the instruction set; the other branch is plain C, so that sources
mean the same whatever they are compiled for.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_ext.backends.c.types import CType

INCLUDES = """#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
"""

_FMA = "#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)"
_X86 = {4: ("_mm", "__m128", "__m128i"), 8: ("_mm256", "__m256", "__m256i"), 16: ("_mm512", "__m512", "__m512i")}
"""Lanes of 32 bits -> prefix of intrinsics, their types of floats and of integers."""

_ISA = {4: "__SSE4_1__", 8: "__AVX2__", 16: "__AVX512F__"}


class Helpers:
    """The functions and types that kernels asked for, in an order in which C can read them."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    def text(self) -> str:
        """Give everything asked for as C."""
        return INCLUDES + "\n" + "".join(self._types.values()) + "\n" + "\n".join(self._functions.values())

    def type(self, kind: CType) -> str:
        """Name a type, and see that it is declared."""
        if kind.lanes > 1:
            self.type(kind.wide(1))
        elif kind.short not in self._types:
            self._types[kind.short] = kind.declarations()
        if kind.short not in self._types:
            self._types[kind.short] = kind.declarations()
        return kind.name

    def memory(self, kind: CType) -> str:
        """Name the type of what lies in memory, and see that it is declared."""
        self.type(kind)
        return kind.memory

    def _function(self, name: str, head: str, body: str) -> str:
        if name not in self._functions:
            self._functions[name] = f"static inline __attribute__((always_inline)) {head} {{\n{body}}}\n"
        return name

    # ---- values

    def splat(self, kind: CType) -> str:
        """Name the function that puts a scalar in every lane."""
        self.type(kind)
        lanes = ", ".join(["x"] * kind.lanes)
        return self._function(
            f"splat_{kind.short}",
            f"{kind.name} splat_{kind.short}({kind.scalar} x)",
            f"  return ({kind.name}){{{lanes}}};\n",
        )

    def every_lane(self, kind: CType) -> str:
        """Name the function that says whether a mask holds in all lanes."""
        self.type(kind)
        if kind.bytes % 8:
            body = f"  return ({' & '.join(f'mask[{lane}]' for lane in range(kind.lanes))}) != 0;\n"
        else:
            words = " & ".join(f"words[{word}]" for word in range(kind.bytes // 8))
            body = f"  uint64_t words[{kind.bytes // 8}];\n  memcpy(words, &mask, sizeof words);\n"
            body += f"  return ({words}) == UINT64_MAX;\n"
        return self._function(f"every_lane_{kind.short}", f"int every_lane_{kind.short}({kind.name} mask)", body)

    def ramp(self, kind: CType) -> str:
        """Name the function that gives ``base + stride * lane``."""
        self.type(kind)
        lanes = ", ".join(map(str, range(kind.lanes)))
        head = f"{kind.name} ramp_{kind.short}({kind.scalar} base, {kind.scalar} stride)"
        return self._function(f"ramp_{kind.short}", head, f"  return base + stride * ({kind.name}){{{lanes}}};\n")

    def fused(self, kind: CType) -> str:
        """Name the function for ``a * b + c``, rounded once where the processor can."""
        self.type(kind)
        name = f"fma_{kind.short}"
        suffix = {"float32": "f", "float64": ""}.get(kind.element)
        head = f"{kind.name} {name}({kind.name} a, {kind.name} b, {kind.name} c)"
        plain = "  return a * b + c;\n"
        if suffix is None:
            return self._function(name, head, plain)
        if kind.lanes == 1:
            body = f"{_FMA}\n  return __builtin_fma{suffix}(a, b, c);\n#else\n{plain}#endif\n"
            return self._function(name, head, body)
        branches = []
        form = {"float32": ("ps", "f32", 32), "float64": ("pd", "f64", 64)}[kind.element]
        lanes32 = kind.lanes * form[2] // 32
        if lanes32 in _X86:
            prefix, float_type, _ = _X86[lanes32]
            vector = float_type + ("d" if form[0] == "pd" else "")
            macro = "defined(__AVX512F__)" if lanes32 == 16 else "defined(__FMA__)"
            operands = ", ".join(f"({vector}){operand}" for operand in "abc")
            branches.append((macro, f"  return ({kind.name}){prefix}_fmadd_{form[0]}({operands});\n"))
        if lanes32 == 4:
            vector = {"f32": "float32x4_t", "f64": "float64x2_t"}[form[1]]
            call = f"vfmaq_{form[1]}(({vector})c, ({vector})a, ({vector})b)"
            branches.append(("defined(__aarch64__)", f"  return ({kind.name}){call};\n"))
        if lanes32 > 4:
            halves = self._halves(kind, self.fused(kind.wide(kind.lanes // 2)), "abc")
            branches.append(("defined(__FMA__) || defined(__aarch64__)", halves))
        return self._function(name, head, _branches(branches, plain))

    def _halves(self, kind: CType, function: str, operands: str) -> str:
        half = kind.wide(kind.lanes // 2)
        low, high = (", ".join(str(start + lane) for lane in range(half.lanes)) for start in (0, half.lanes))
        parts = [
            f"{function}({', '.join(f'__builtin_shufflevector({x}, {x}, {lanes})' for x in operands)})"
            for lanes in (low, high)
        ]
        return f"  return __builtin_shufflevector({parts[0]}, {parts[1]}, {low}, {high});\n"

    def select(self, kind: CType) -> str:
        """Name the choice of ``a`` in the lanes where all bits of a mask are set, of ``b`` where none is."""
        self.type(kind)
        mask = self.type(kind.integer)
        name = f"select_{kind.short}"
        branches = []
        if kind.bits == 32 and kind.lanes in _X86:
            prefix, floats, integers = _X86[kind.lanes]
            vector, suffix = (floats, "ps") if kind.is_float else (integers, "epi32")
            if kind.lanes == 16:
                call = f"_mm512_mask_blend_{suffix}(_mm512_movepi32_mask((__m512i)mask), ({vector})b, ({vector})a)"
                branches.append(("defined(__AVX512DQ__)", f"  return ({kind.name}){call};\n"))
            else:
                call = f"{prefix}_blendv_ps(({floats})b, ({floats})a, ({floats})mask)"
                branches.append((f"defined({_ISA[kind.lanes]})", f"  return ({kind.name}){call};\n"))
        plain = f"  return ({kind.name})((mask & ({mask})a) | (~mask & ({mask})b));\n"
        head = f"{kind.name} {name}({mask} mask, {kind.name} a, {kind.name} b)"
        return self._function(name, head, _branches(branches, plain))

    def extreme(self, kind: CType, which: str) -> str:
        """Name the larger (``max``) or smaller (``min``) of two, the second where they compare neither way."""
        self.type(kind)
        name, sign = f"{which}_{kind.short}", {"max": ">", "min": "<"}[which]
        head = f"{kind.name} {name}({kind.name} a, {kind.name} b)"
        if kind.lanes == 1:
            return self._function(name, head, f"  return a {sign} b ? a : b;\n")
        branches = []
        if kind.element in ("float32", "int32") and kind.lanes in _X86:
            prefix, floats, integers = _X86[kind.lanes]
            vector, suffix = (floats, "ps") if kind.is_float else (integers, "epi32")
            call = f"{prefix}_{which}_{suffix}(({vector})a, ({vector})b)"
            branches.append((f"defined({_ISA[kind.lanes]})", f"  return ({kind.name}){call};\n"))
        plain = f"  return {self.select(kind)}(({kind.integer.name})(a {sign} b), a, b);\n"
        return self._function(name, head, _branches(branches, plain))

    def floor_division(self, kind: CType, modulo: bool) -> str:
        """Name the quotient rounded down, or what remains of it."""
        name = f"{'floormod' if modulo else 'floordiv'}_{kind.short}"
        head = f"{kind.name} {name}({kind.name} a, {kind.name} b)"
        exact, other = ("a % b", "x + b") if modulo else ("a / b", "x - 1")
        body = (
            f"  const {kind.name} x = ({kind.name})({exact});\n"
            f"  return a % b != 0 && (a < 0) != (b < 0) ? ({kind.name})({other}) : x;\n"
        )
        return self._function(name, head, body)

    def lanewise(self, function: str, kind: CType, operands: int, result: CType | None = None) -> str:
        """Name the function that calls one of C's library in every lane."""
        result = result or kind
        self.type(kind), self.type(result)
        name = f"{function.removeprefix('__builtin_')}_{kind.short}"
        names = "abc"[:operands]
        calls = ", ".join(f"{function}({', '.join(f'{x}[{lane}]' for x in names)})" for lane in range(kind.lanes))
        head = f"{result.name} {name}({', '.join(f'{kind.name} {x}' for x in names)})"
        branches = []
        if (
            kind.element == "float32"
            and kind.lanes in _X86
            and function in ("sqrtf", "floorf", "ceilf", "truncf", "nearbyintf")
        ):
            prefix, floats, _ = _X86[kind.lanes]
            how = {"floorf": 9, "ceilf": 10, "truncf": 11, "nearbyintf": 12}
            if function == "sqrtf":
                call = f"{prefix}_sqrt_ps(({floats})a)"
            elif kind.lanes == 16:
                call = f"_mm512_roundscale_ps((__m512)a, {how[function] & 7})"
            else:
                call = f"{prefix}_round_ps(({floats})a, {how[function]})"
            branches.append((f"defined({_ISA[kind.lanes]})", f"  return ({kind.name}){call};\n"))
        return self._function(name, head, _branches(branches, f"  return ({result.name}){{{calls}}};\n"))

    def nearest(self, kind: CType, result: CType) -> str:
        """Name the function that rounds to integers, halves to even ones."""
        self.type(kind), self.type(result)
        name = f"nearest_{kind.short}_{result.short}"
        head = f"{result.name} {name}({kind.name} a)"
        function = "lrintf" if kind.element == "float32" else "lrint"
        if kind.lanes == 1:
            return self._function(name, head, f"  return ({result.name}){function}(a);\n")
        branches = []
        if (kind.element, result.element) == ("float32", "int32") and kind.lanes in _X86:
            prefix, floats, _ = _X86[kind.lanes]
            call = f"  return ({result.name}){prefix}_cvtps_epi32(({floats})a);\n"
            branches.append((f"defined({_ISA[kind.lanes]})", call))
            if kind.lanes == 4:
                call = f"  return ({result.name})vcvtnq_s32_f32((float32x4_t)a);\n"
                branches.append(("defined(__aarch64__)", call))
        lanes = ", ".join(f"({result.scalar}){function}(a[{lane}])" for lane in range(kind.lanes))
        return self._function(name, head, _branches(branches, f"  return ({result.name}){{{lanes}}};\n"))

    def magnitude(self, kind: CType) -> str:
        """Name the function of absolute values."""
        name, head = f"abs_{kind.short}", f"{self.type(kind)} abs_{kind.short}({kind.name} a)"
        if not kind.is_float:
            negative = f"({kind.name})-({self.type(kind.unsigned)})a"  # the least number is its own
            if kind.lanes == 1:
                return self._function(name, head, f"  return a < 0 ? {negative} : a;\n")
            chosen = f"{self.select(kind)}(({kind.integer.name})(a < 0), {negative}, a)"
            return self._function(name, head, f"  return {chosen};\n")
        if kind.lanes == 1:
            suffix = {"float32": "f", "float64": "", "float16": "f"}[kind.element]
            return self._function(name, head, f"  return ({kind.name})fabs{suffix}(a);\n")
        bits = self.type(kind.integer)
        return self._function(
            name, head, f"  return ({kind.name})(({bits})a & ~((({bits}){{0}} + 1) << {kind.bits - 1}));\n"
        )

    def bits(self, source: CType, result: CType) -> str:
        """Name the function that reads the bits of a value as another type of the same size."""
        self.type(source), self.type(result)
        name = f"bits_{source.short}_{result.short}"
        body = f"  {result.name} y;\n  memcpy(&y, &x, sizeof y);\n  return y;\n"
        return self._function(name, f"{result.name} {name}({source.name} x)", body)

    # ---- memory

    def gather(self, kind: CType, index: CType) -> str:
        """Name the load of elements at the addresses of a vector."""
        memory = self.memory(kind.wide(1))
        self.type(kind), self.type(index)
        name = f"gather_{kind.short}_{index.short}"
        lanes = ", ".join(f"p[i[{lane}]]" for lane in range(kind.lanes))
        head = f"{kind.name} {name}(const {memory} *p, {index.name} i)"
        return self._function(name, head, f"  return ({kind.name}){{{lanes}}};\n")

    def strided(self, kind: CType) -> str:
        """Name the load of elements that lie evenly apart."""
        memory = self.memory(kind.wide(1))
        self.type(kind)
        name = f"strided_{kind.short}"
        lanes = ", ".join(f"p[{lane} * s]" for lane in range(kind.lanes))
        return self._function(
            name, f"{kind.name} {name}(const {memory} *p, int64_t s)", f"  return ({kind.name}){{{lanes}}};\n"
        )

    def scatter(self, kind: CType, index: CType) -> str:
        """Store the lanes to the addresses of a vector."""
        memory = self.memory(kind.wide(1))
        self.type(kind), self.type(index)
        name = f"scatter_{kind.short}_{index.short}"
        body = "".join(f"  p[i[{lane}]] = x[{lane}];\n" for lane in range(kind.lanes))
        return self._function(name, f"void {name}({memory} *p, {index.name} i, {kind.name} x)", body)

    def masked(self, kind: CType, store: bool) -> str:
        """Load the lanes of a mask, zero elsewhere, or store them."""
        memory, mask = self.memory(kind.wide(1)), self.type(kind.integer)
        self.type(kind)
        name = f"masked_{'store' if store else 'load'}_{kind.short}"
        if store:
            head = f"void {name}({memory} *p, {mask} mask, {kind.name} x)"
            plain = "".join(f"  if (mask[{lane}]) p[{lane}] = x[{lane}];\n" for lane in range(kind.lanes))
        else:
            head = f"{kind.name} {name}(const {memory} *p, {mask} mask)"
            lanes = "".join(f"  if (mask[{lane}]) x[{lane}] = p[{lane}];\n" for lane in range(kind.lanes))
            plain = f"  {kind.name} x = {{0}};\n{lanes}  return x;\n"
        return self._function(name, head, _branches(_masked_branches(kind, store), plain))

    def stream(self, kind: CType) -> str:
        """Store a vector past the caches, where its address is aligned."""
        memory = self.memory(kind)
        name, size = f"stream_{kind.short}", kind.bytes
        branches = []
        if size in (16, 32, 64):
            prefix, _, integers = _X86[size // 4]
            macro = {16: "__SSE2__", 32: "__AVX2__", 64: "__AVX512F__"}[size]
            suffix = {16: "si128", 32: "si256", 64: "si512"}[size]
            test = f"  if (((uintptr_t)p & {size - 1}) == 0) {{\n"
            call = f"    {prefix}_stream_{suffix}(({integers} *)p, ({integers})x);\n    return;\n  }}\n"
            branches.append((f"defined({macro})", test + call + f"  *({memory} *)p = x;\n"))
        return self._function(
            name, f"void {name}(void *p, {kind.name} x)", _branches(branches, f"  *({memory} *)p = x;\n")
        )

    # ---- instructions of processors

    def intrinsic(self, name: str, make: Callable[[str], tuple[str, str]]) -> str:
        """Name a function that stands for an instruction; ``make`` gives its head and its body."""
        return self._function(name, *make(name))


def _branches(branches: list[tuple[str, str]], plain: str) -> str:
    if not branches:
        return plain
    text = "".join(f"#{'elif' if number else 'if'} {macro}\n{body}" for number, (macro, body) in enumerate(branches))
    return f"{text}#else\n{plain}#endif\n"


def _masked_branches(kind: CType, store: bool) -> list[tuple[str, str]]:
    """Instructions of x86 that leave lanes alone."""
    branches = []
    size = kind.bytes
    if size in (16, 32, 64) and kind.bits in (8, 16, 32, 64):
        prefix, _, integers = _X86[size // 4]
        needed = "__AVX512VL__" if size < 64 else "__AVX512F__"
        macro = f"defined({needed}) && defined(__AVX512BW__) && defined(__AVX512DQ__)"
        mask = f"{prefix}_movepi{kind.bits}_mask(({integers})mask)"
        if store:
            body = f"  {prefix}_mask_storeu_epi{kind.bits}((void *)p, {mask}, ({integers})x);\n"
        else:
            body = f"  return ({kind.name}){prefix}_maskz_loadu_epi{kind.bits}({mask}, (const void *)p);\n"
        branches.append((macro, body))
    if kind.bits == 32 and kind.lanes in (4, 8):
        prefix, floats, integers = _X86[kind.lanes]
        if store:
            body = f"  {prefix}_maskstore_ps((float *)p, ({integers})mask, ({floats})x);\n"
        else:
            body = f"  return ({kind.name}){prefix}_maskload_ps((const float *)p, ({integers})mask);\n"
        branches.append(("defined(__AVX2__)", body))
    return branches
