"""Tensor intrinsics for sums of products of 8-bit integers and of bfloat16, registered when first asked for.

An intrinsic's description is its meaning: ``C[i] += sum over k of A[k] * B[i, k]``, exact in int32, or rounded in
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.bfloat16 import BITS, PAIR, WORDS, half, widened
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.simd.imported import BFLOAT16_DOT, SDOT, SUDOT, of_lanes

Combine = Callable[..., tvm.ir.Expr]


@dataclass(frozen=True)
class DotProduct:
    """How a machine multiplies a few inputs with a vector of weights and adds up in int32.

    Attributes
    ----------
    inputs, weights : str
        Types of the operands. Activations are uint8; as ``int8`` they are lowered by 128, as ``int16`` widened.
    pack : int
        Products added up in one int32 lane.
    llvm : str
        LLVM intrinsic, ``{lanes}`` and ``{bits}`` standing for the lanes and the bits of the vector; empty: vector code
        of ordinary multiplications.
    extends : bool
        Whether the accumulator is an operand of the instruction; otherwise its result is added to it.
    names : tuple of (int, str)
        For each number of lanes that there is an instruction for, the intrinsic's name.
    element : str
        Function of :mod:`tvm_ext.schedules.simd.imported` that takes the inputs as they lie in memory, if there is one.
    pairs : tuple of (int, str)
        As ``names``, for an instruction before that one, which multiplies bytes and adds up neighbouring products in
        16 bits. It saturates: weights have to be such that no sum exceeds those; see :func:`are_small`.
    """

    inputs: str
    weights: str
    pack: int
    extends: bool = True
    names: tuple[tuple[int, str], ...] = ()
    element: str = ""
    pairs: tuple[tuple[int, str], ...] = ()

    @property
    def offset(self) -> int:
        """What is subtracted from an activation before it is multiplied."""
        return 128 if self.inputs == "int8" else 0

    def has(self, lanes: int) -> bool:
        """Whether there is an instruction for that many int32 lanes."""
        return lanes in dict(self.names)


VNNI = DotProduct(
    "uint8", "int8", 4,
    names=tuple((bits // 32, f"llvm.x86.avx512.vpdpbusd.{bits}") for bits in (128, 256, 512)),
)  # fmt: skip
# The instruction that multiplies bytes saturates at 16 bits, so they are widened first.
AVX512 = DotProduct(
    "int16", "int16", 2, extends=False,
    names=((4, "llvm.x86.sse2.pmadd.wd"), (8, "llvm.x86.avx2.pmadd.wd"), (16, "llvm.x86.avx512.pmaddw.d.512")),
)  # fmt: skip
AVX2 = DotProduct("int16", "int16", 2, extends=False, names=AVX512.names[:2])
SSE4 = DotProduct("int16", "int16", 2, extends=False, names=AVX512.names[:1])
AVX512_SMALL = DotProduct(
    "uint8", "int8", 4, extends=False, names=AVX512.names,
    pairs=(
        (4, "llvm.x86.ssse3.pmadd.ub.sw.128"), (8, "llvm.x86.avx2.pmadd.ub.sw"), (16, "llvm.x86.avx512.pmaddubs.w.512"),
    ),
)  # fmt: skip
AVX2_SMALL = replace(AVX512_SMALL, names=AVX512.names[:2])
SSE4_SMALL = replace(AVX512_SMALL, names=AVX512.names[:1])
NEON_SDOT = DotProduct("int8", "int8", 4, names=((4, "llvm.aarch64.neon.sdot.v4i32.v16i8"),), element=SDOT)
NEON_SUDOT = DotProduct("uint8", "int8", 4, names=((4, "llvm.aarch64.neon.usdot.v4i32.v16i8"),), element=SUDOT)
PLAIN = DotProduct("int16", "int16", 1)

# Instruction-set row and its dot-product family -> how it is done.
_ROWS = {
    ("avx512", "vnni"): VNNI,
    ("avx512", ""): AVX512,
    ("avx2", "vnni"): DotProduct("uint8", "int8", 4, names=VNNI.names[:2]),
    ("avx2", ""): AVX2,
    ("sse4", ""): SSE4,
    ("neon", "sdot"): NEON_SDOT,
    ("neon", "sudot"): NEON_SUDOT,
}


# The same where weights are small.
_SMALL_ROWS = {("avx512", ""): AVX512_SMALL, ("avx2", ""): AVX2_SMALL, ("sse4", ""): SSE4_SMALL}

LARGEST_PAIR = 128
"""Largest magnitude of two neighbouring weights' sum whose products with bytes, 255 at most, 16 bits hold."""


def dot_product(machine: Machine, small: bool = False) -> DotProduct:
    """Choose how a machine does 8-bit dot products.

    Parameters
    ----------
    machine : Machine
    small : bool
        Whether weights are known to be small; see :func:`are_small`.
    """
    row = machine.isa, machine.dot_product
    return (_SMALL_ROWS.get(row) if small else None) or _ROWS.get(row, PLAIN)


def are_small(weight: np.ndarray) -> bool:
    """Whether sums of two products of bytes with neighbouring weights stay within 16 bits, whatever the bytes.

    Weights of seven bits, as quantisers make them for CPUs without dot products of bytes, always do.

    Parameters
    ----------
    weight : np.ndarray
        int8 of shape ``(out channels, input channels of a group, ...)``. Blocks hold even numbers of input channels.
    """
    first, second = weight[:, 0::2].astype(np.int16), weight[:, 1::2].astype(np.int16)
    pairs = first[:, : second.shape[1]] + second
    return bool((abs(pairs) <= LARGEST_PAIR).all())


def dot_product_intrinsic(form: DotProduct, lanes: int) -> str:
    """Register the tensor intrinsic of ``form`` for ``lanes`` int32 lanes, unless it is there, and return its name."""
    name = f"tvm_ext.dot.{form.inputs}.{form.weights}.{lanes}x{form.pack}.{dict(form.names)[lanes]}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *_dot_product(form, lanes))
    return name


def _description(types: tuple[str, str, str], lanes: int, pack: int, widen: Combine) -> PrimFunc:
    """Say what a dot product is: inputs, weights and sums of these types, operands widened before the products."""
    from tvm.script import tirx as T

    inputs, weights, sums = types

    @T.prim_func(private=True, s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (pack,), inputs, offset_factor=1)
        B = T.match_buffer(b, (lanes, pack), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), sums, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:pack], B[0:lanes, 0:pack])
            T.writes(C[0:lanes])
            for i in T.serial(lanes):
                for k in T.serial(pack):
                    with T.sblock("multiply_add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + widen(A[vk]) * widen(B[vi, vk])

    return description


def _implementation(types: tuple[str, str, str], lanes: int, pack: int, accumulate: Combine) -> PrimFunc:
    """Compute a dot product: ``accumulate`` gets the sums, the pack of inputs and all weights, as vectors."""
    from tvm.script import tirx as T

    inputs, weights, sums = types

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (pack,), inputs, offset_factor=1)
        B = T.match_buffer(b, (lanes, pack), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), sums, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:pack], B[0:lanes, 0:pack])
            T.writes(C[0:lanes])
            C[T.Ramp(0, 1, lanes)] = accumulate(
                C[T.Ramp(0, 1, lanes)],
                A[T.Ramp(0, 1, pack)],
                B[0, T.Ramp(0, 1, lanes * pack)],
            )

    return implementation


def dot(form: DotProduct, lanes: int, total: tvm.ir.Expr, together: tvm.ir.Expr, weights: tvm.ir.Expr) -> tvm.ir.Expr:
    """Give sums with the products of a pack of inputs with a vector of weights added, by one instruction.

    Parameters
    ----------
    form : DotProduct
    lanes : int
        For which it has an instruction.
    total, together, weights : Expr
        Vectors of ``lanes`` sums, of ``pack`` inputs and of ``lanes * pack`` weights.
    """
    from tvm.script import tirx as T

    intrinsic = dict(form.names)[lanes]
    integers = f"int32x{lanes}"
    # LLVM has one integer type for signed and unsigned bytes; the instruction decides how it reads them.
    operand = f"{'int8' if form.pack == 4 else 'int16'}x{lanes * form.pack}"
    if form.element:
        return T.call_extern(integers, form.element, total, weights, T.reinterpret("float32", together))
    inputs = T.reinterpret(operand, T.Broadcast(T.reinterpret("int32", together), lanes))
    if form.extends:
        return T.call_llvm_pure_intrin(integers, intrinsic, total, inputs, weights)
    if form.pairs:
        words = f"int16x{lanes * 2}"
        inputs = T.call_llvm_pure_intrin(words, dict(form.pairs)[lanes], inputs, weights)
        weights = T.Broadcast(T.int16(1), lanes * 2)
    return total + T.call_llvm_pure_intrin(integers, intrinsic, inputs, weights)


def depthwise_dot(
    form: DotProduct, lanes: int, total: tvm.ir.Expr, pixels: tvm.ir.Expr, weights: tvm.ir.Expr
) -> tvm.ir.Expr:
    """Give sums with the products of as many pixels as a pack has, each of ``lanes`` channels, with weights added."""
    from tvm.script import tirx as T

    order = [tap * lanes + lane for lane in range(lanes) for tap in range(form.pack)]
    together = T.reinterpret(f"int8x{lanes * form.pack}", tvm.tirx.Shuffle([pixels], order))
    return T.call_llvm_pure_intrin(f"int32x{lanes}", dict(form.names)[lanes], total, together, weights)


def _dot_product(form: DotProduct, lanes: int) -> tuple[PrimFunc, PrimFunc]:
    from tvm.script import tirx as T

    types = form.inputs, form.weights, "int32"
    return (
        _description(types, lanes, form.pack, lambda value: T.Cast("int32", value)),
        _implementation(types, lanes, form.pack, partial(dot, form, lanes)),
    )


def bfloat16_intrinsic(lanes: int, words: bool = False) -> str:
    """Register the tensor intrinsic of products of bfloat16, unless it is there, and return its name.

    Its meaning: ``C[i] += sum over k of A[k] * B[i, k]`` in float32, ``A`` and ``B`` as bits; the processor takes
    subnormal numbers for zero.

    Parameters
    ----------
    lanes : int
        4, 8 or 16 float32 sums.
    words : bool
        Whether a pair of ``B`` is a word of 32 bits, as of operands that a kernel computes.
    """
    name = f"tvm_ext.dot.bfloat16.{lanes}{'.words' if words else ''}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *(_bfloat16_words(lanes) if words else _bfloat16(lanes)))
    return name


def _bfloat16(lanes: int) -> tuple[PrimFunc, PrimFunc]:
    types = BITS, BITS, "float32"
    accumulate = partial(_dot_pairs, lanes)
    return _description(types, lanes, PAIR, widened), _implementation(types, lanes, PAIR, accumulate)


def _dot_pairs(lanes: int, total: tvm.ir.Expr, together: tvm.ir.Expr, weights: tvm.ir.Expr) -> tvm.ir.Expr:
    """Add the products of a pair of bfloat16 with a vector of pairs, whose bits ``weights`` holds, to sums."""
    from tvm.script import tirx as T

    pair = T.Broadcast(T.reinterpret("int32", together), lanes)
    return T.call_pure_extern(f"float32x{lanes}", of_lanes(BFLOAT16_DOT, lanes), total, pair, weights)


def _bfloat16_words(lanes: int) -> tuple[PrimFunc, PrimFunc]:
    from tvm.script import tirx as T

    halves = f"{BITS}x{lanes * PAIR}"

    @T.prim_func(private=True, s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (PAIR,), BITS, offset_factor=1)
        B = T.match_buffer(b, (lanes,), WORDS, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "float32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:PAIR], B[0:lanes])
            T.writes(C[0:lanes])
            for i in T.serial(lanes):
                for k in T.serial(PAIR):
                    with T.sblock("multiply_add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + widened(A[vk]) * widened(half(B[vi], vk))

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (PAIR,), BITS, offset_factor=1)
        B = T.match_buffer(b, (lanes,), WORDS, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "float32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:PAIR], B[0:lanes])
            T.writes(C[0:lanes])
            C[T.Ramp(0, 1, lanes)] = _dot_pairs(
                lanes, C[T.Ramp(0, 1, lanes)], A[T.Ramp(0, 1, PAIR)], T.reinterpret(halves, B[T.Ramp(0, 1, lanes)])
            )

    return description, implementation


def depthwise_intrinsic(form: DotProduct, lanes: int) -> str:
    """Register the tensor intrinsic of a pack of taps of a depthwise convolution, unless it is there; return its name.

    Its meaning: ``C[i] += sum over k of A[k, i] * B[i, k]``, exact in int32; ``A`` is one row of pixels. The pixels'
    channels are brought together by a shuffle.
    """
    name = f"tvm_ext.depthwise.{form.inputs}.{form.weights}.{lanes}x{form.pack}.{dict(form.names)[lanes]}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *_depthwise(form, lanes))
    return name


def _depthwise(form: DotProduct, lanes: int) -> tuple[PrimFunc, PrimFunc]:
    from tvm.script import tirx as T

    inputs, weights, pack = form.inputs, form.weights, form.pack
    accumulate = partial(depthwise_dot, form, lanes)

    @T.prim_func(private=True, s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (pack, lanes), inputs, offset_factor=1)
        B = T.match_buffer(b, (lanes, pack), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:pack, 0:lanes], B[0:lanes, 0:pack])
            T.writes(C[0:lanes])
            for i in T.serial(lanes):
                for k in T.serial(pack):
                    with T.sblock("multiply_add"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.Cast("int32", A[vk, vi]) * T.Cast("int32", B[vi, vk])

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (pack, lanes), inputs, offset_factor=1)
        B = T.match_buffer(b, (lanes, pack), weights, offset_factor=1)
        C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:pack, 0:lanes], B[0:lanes, 0:pack])
            T.writes(C[0:lanes])
            C[T.Ramp(0, 1, lanes)] = accumulate(
                C[T.Ramp(0, 1, lanes)], A[0, T.Ramp(0, 1, lanes * pack)], B[0, T.Ramp(0, 1, lanes * pack)]
            )

    return description, implementation
