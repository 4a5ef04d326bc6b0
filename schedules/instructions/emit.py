"""Implementations of instructions as TIR, from the name of an LLVM intrinsic and the form of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from tvm_ext.schedules.instructions.instruction import Scopes

Emit = Callable[[Scopes], PrimFunc]


def fused_multiply_add(lanes: int, broadcast: bool) -> Emit:
    """``C[i] += A * B[i]``, or ``A[i] * B[i]``, in float32: one vector instruction."""

    def emit(scopes: Scopes) -> PrimFunc:
        from tvm.script import tirx as T

        dtype, intrinsic, left = f"float32x{lanes}", f"llvm.fma.v{lanes}f32", 1 if broadcast else lanes

        def factor(buffer: Any) -> Any:
            return T.Broadcast(buffer[0], lanes) if broadcast else buffer[T.Ramp(0, 1, lanes)]

        @T.prim_func(private=True, s_tir=True)
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (left,), "float32", offset_factor=1, scope=scopes[0])
            B = T.match_buffer(b, (lanes,), "float32", offset_factor=1, scope=scopes[1])
            C = T.match_buffer(c, (lanes,), "float32", offset_factor=1, scope=scopes[2])
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:left], B[0:lanes])
                T.writes(C[0:lanes])
                C[T.Ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                    dtype, intrinsic, factor(A), B[T.Ramp(0, 1, lanes)], C[T.Ramp(0, 1, lanes)]
                )

        return implementation

    return emit


def widening_multiply_add(left: str, right: str, result: str, lanes: int, broadcast: bool) -> Emit:
    """``C[i] += A * B[i]``, or ``A[i] * B[i]``, in the type of the result: LLVM has its own instruction for that."""

    def emit(scopes: Scopes) -> PrimFunc:
        from tvm.script import tirx as T

        wide, first = f"{result}x{lanes}", 1 if broadcast else lanes

        def factor(buffer: Any) -> Any:
            if broadcast:
                return T.Broadcast(T.Cast(result, buffer[0]), lanes)
            return T.Cast(wide, buffer[T.Ramp(0, 1, lanes)])

        @T.prim_func(private=True, s_tir=True)
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (first,), left, offset_factor=1, scope=scopes[0])
            B = T.match_buffer(b, (lanes,), right, offset_factor=1, scope=scopes[1])
            C = T.match_buffer(c, (lanes,), result, offset_factor=1, scope=scopes[2])
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:first], B[0:lanes])
                T.writes(C[0:lanes])
                C[T.Ramp(0, 1, lanes)] = C[T.Ramp(0, 1, lanes)] + factor(A) * T.Cast(wide, B[T.Ramp(0, 1, lanes)])

        return implementation

    return emit


def dot_product(
    intrinsic: str, left: str, right: str, lanes: int, pack: int, broadcast: bool, extends: bool = True
) -> Emit:
    """``C[i] += sum over k of A[k] * B[i,k]``, or of ``A[i,k] * B[i,k]``, in int32 lanes.

    Parameters
    ----------
    intrinsic : str
        Name of the LLVM intrinsic.
    left, right : str
        Types of the factors, of 8 or 16 bits.
    lanes, pack : int
        Lanes of the result, and products that are added up in one of them.
    broadcast : bool
        Whether A is the same in all lanes.
    extends : bool
        Whether the accumulator is an operand of the instruction; otherwise its result is added to it.
    """

    def emit(scopes: Scopes) -> PrimFunc:
        from tvm.script import tirx as T

        integers = f"int32x{lanes}"
        # LLVM has one integer type for signed and unsigned bytes; the instruction decides how it reads them.
        operand = f"int{8 if left.endswith('8') else 16}x{lanes * pack}"
        left_shape = (pack,) if broadcast else (lanes, pack)

        def factor(buffer: Any) -> Any:
            if broadcast:
                return T.reinterpret(operand, T.Broadcast(T.reinterpret("int32", buffer[T.Ramp(0, 1, pack)]), lanes))
            return T.reinterpret(operand, buffer[0, T.Ramp(0, 1, lanes * pack)])

        def accumulate(total: tvm.ir.Expr, first: tvm.ir.Expr, second: tvm.ir.Expr) -> tvm.ir.Expr:
            if extends:
                return T.call_llvm_pure_intrin(integers, intrinsic, total, first, second)
            return total + T.call_llvm_pure_intrin(integers, intrinsic, first, second)

        @T.prim_func(private=True, s_tir=True)
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, left_shape, left, offset_factor=1, scope=scopes[0])
            B = T.match_buffer(b, (lanes, pack), right, offset_factor=1, scope=scopes[1])
            C = T.match_buffer(c, (lanes,), "int32", offset_factor=1, scope=scopes[2])
            with T.sblock("root"):
                T.reads(C[0:lanes], A[[slice(0, extent) for extent in left_shape]], B[0:lanes, 0:pack])
                T.writes(C[0:lanes])
                C[T.Ramp(0, 1, lanes)] = accumulate(
                    C[T.Ramp(0, 1, lanes)], factor(A), T.reinterpret(operand, B[0, T.Ramp(0, 1, lanes * pack)])
                )

        return implementation

    return emit


def matrix_product(intrinsic: str, rows: int, columns: int, depth: int) -> Emit:
    """``C[i,j] += sum over k of A[i,k] * B[j,k]`` of signed bytes, each operand one vector."""

    def emit(scopes: Scopes) -> PrimFunc:
        from tvm.script import tirx as T

        @T.prim_func(private=True, s_tir=True)
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (rows, depth), "int8", offset_factor=1, scope=scopes[0])
            B = T.match_buffer(b, (columns, depth), "int8", offset_factor=1, scope=scopes[1])
            C = T.match_buffer(c, (rows, columns), "int32", offset_factor=1, scope=scopes[2])
            with T.sblock("root"):
                T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
                T.writes(C[0:rows, 0:columns])
                C[0, T.Ramp(0, 1, rows * columns)] = T.call_llvm_pure_intrin(
                    f"int32x{rows * columns}",
                    intrinsic,
                    C[0, T.Ramp(0, 1, rows * columns)],
                    A[0, T.Ramp(0, 1, rows * depth)],
                    B[0, T.Ramp(0, 1, columns * depth)],
                )

        return implementation

    return emit


TILES = 8
"""Tile registers of AMX, each of 16 rows of 64 bytes here."""


def tile_product(intrinsic: str, left: str, right: str, result: str, pack: int) -> Emit:
    """``C[i,j] += sum over q and r of A[i,q,r] * B[q,j,r]`` on AMX tiles of 16 rows of 64 bytes, loaded and stored.

    It configures the tiles and releases them, so that it stands anywhere; the process must have asked for them
    (:func:`tvm_ext.system.tiles.request_tiles`).
    """

    def emit(scopes: Scopes) -> PrimFunc:
        from tvm.script import tirx as T

        def call(name: str, *arguments: Any) -> Any:
            return T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments)

        @T.prim_func(private=True, s_tir=True)
        def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (16, 16, pack), left, offset_factor=1, scope=scopes[0])
            B = T.match_buffer(b, (16, 16, pack), right, offset_factor=1, scope=scopes[1])
            C = T.match_buffer(c, (16, 16), result, offset_factor=1, scope=scopes[2])
            with T.sblock("root"):
                T.reads(C[0:16, 0:16], A[0:16, 0:16, 0:pack], B[0:16, 0:16, 0:pack])
                T.writes(C[0:16, 0:16])
                shape = T.alloc_buffer((64,), "uint8")  # palette 1; bytes of a row from 16 on, rows from 48 on
                for byte in T.serial(64):
                    shape[byte] = T.if_then_else(
                        byte == 0,
                        T.uint8(1),
                        T.if_then_else(
                            T.And(T.And(byte >= 16, byte < 16 + 2 * TILES), byte % 2 == 0),
                            T.uint8(64),
                            T.if_then_else(T.And(byte >= 48, byte < 48 + TILES), T.uint8(16), T.uint8(0)),
                        ),
                    )
                T.evaluate(call("ldtilecfg", T.address_of(shape[0])))
                T.evaluate(call("tileloadd64", T.uint8(0), T.address_of(C[0, 0]), T.int64(64)))
                T.evaluate(call("tileloadd64", T.uint8(1), T.address_of(A[0, 0, 0]), T.int64(64)))
                T.evaluate(call("tileloadd64", T.uint8(2), T.address_of(B[0, 0, 0]), T.int64(64)))
                T.evaluate(call(intrinsic, T.uint8(0), T.uint8(1), T.uint8(2)))
                T.evaluate(call("tilestored64", T.uint8(0), T.address_of(C[0, 0]), T.int64(64)))
                T.evaluate(call("tilerelease"))

        return implementation

    return emit
