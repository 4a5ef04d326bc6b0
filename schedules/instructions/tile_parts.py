"""Instructions on tile registers in parts, as kernels need them: a tile that is loaded is multiplied more than once.

The row of such an instruction loads, multiplies and stores. Here each is a tensor intrinsic of its own. Tiles are
numbered by where they lie in a buffer that no code reads or writes: results come first, then left and right factors.
What has to be done around a kernel (the shape of tiles, the permission of the operating system) is
:mod:`tvm_ext.passes.tile_state`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvm_ext.schedules.instructions.instruction import Instruction, Meaning

TILES, ROWS, ROW_BYTES = 8, 16, 64
"""Tile registers of AMX, and what each holds."""


@dataclass(frozen=True)
class TileParts:
    """Names of tensor intrinsics: a tile of zeros, loads of both factors, the product, and the store of a result."""

    zero: str
    load_left: str
    load_right: str
    multiply: str
    store: str


def fits(columns: int, vectors: int) -> bool:
    """Whether a block of so many times so many results and its factors have room in the registers."""
    return columns * vectors + columns + vectors <= TILES


def tile_parts(row: Instruction, columns: int, vectors: int) -> TileParts:
    """Register the parts of an instruction for a block of so many times so many tiles of results.

    Parameters
    ----------
    row : Instruction
        With ``tiles``.
    columns, vectors : int
        Tiles of the left and of the right factor that are held at once; see :func:`fits`.
    """
    meaning = row.meaning
    assert isinstance(meaning, Meaning)
    assert fits(columns, vectors)
    first = {2: 0, 0: columns * vectors, 1: columns * vectors + columns}
    stem = f"tvm_ext.embedding.{row.name}.{columns}x{vectors}"
    made: dict[str, Callable[[], tuple[PrimFunc, PrimFunc]]] = {
        "zero": lambda: (_fill(meaning), _zero(meaning)),
        "load_left": lambda: (_copy(meaning, 0, ("global", "local")), _load(meaning, 0, first[0])),
        "load_right": lambda: (_copy(meaning, 1, ("global", "local")), _load(meaning, 1, first[1])),
        "multiply": lambda: (meaning(("local", "local", "local")), _multiply(meaning, row.implementation, first)),
        "store": lambda: (_copy(meaning, 2, ("local", "local")), _store(meaning)),
    }
    for part, make in made.items():
        if TensorIntrin.get(f"{stem}.{part}", allow_missing=True) is None:
            TensorIntrin.register(f"{stem}.{part}", *make())
    return TileParts(**{part: f"{stem}.{part}" for part in made})


def _type(meaning: Meaning, operand: int) -> str:
    return (meaning.left, meaning.right, meaning.result)[operand]


def _fill(meaning: Meaning) -> PrimFunc:
    from tvm.script import tirx as T

    rows, columns = meaning.shape(2)
    dtype = meaning.result

    @T.prim_func(private=True, s_tir=True)
    def description(c: T.handle) -> None:
        C = T.match_buffer(c, (rows, columns), dtype, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("fill"):
                    v_i, v_j = T.axis.remap("SS", [i, j])
                    C[v_i, v_j] = T.cast(0, dtype)

    return description


def _copy(meaning: Meaning, operand: int, scopes: tuple[str, str]) -> PrimFunc:
    """Describe a copy of one operand, from memory to a tile or from a tile to memory."""
    from tvm.script import tirx as T

    shape, dtype = meaning.shape(operand), _type(meaning, operand)
    if len(shape) == 2:
        first, second = shape

        @T.prim_func(private=True, s_tir=True)
        def flat(a: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (first, second), dtype, offset_factor=1, scope=scopes[0])
            C = T.match_buffer(c, (first, second), dtype, offset_factor=1, scope=scopes[1])
            with T.sblock("root"):
                T.reads(A[0:first, 0:second])
                T.writes(C[0:first, 0:second])
                for i, j in T.grid(first, second):
                    with T.sblock("copy"):
                        v_i, v_j = T.axis.remap("SS", [i, j])
                        C[v_i, v_j] = A[v_i, v_j]

        return flat
    first, second, third = shape

    @T.prim_func(private=True, s_tir=True)
    def left(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (first, second, third), dtype, offset_factor=1, scope=scopes[0])
        C = T.match_buffer(c, (first, second, third), dtype, offset_factor=1, scope=scopes[1])
        with T.sblock("root"):
            T.reads(A[0:first, 0:second, 0:third])
            T.writes(C[0:first, 0:second, 0:third])
            for i, j, k in T.grid(first, second, third):
                with T.sblock("copy"):
                    v_i, v_j, v_k = T.axis.remap("SSS", [i, j, k])
                    C[v_i, v_j, v_k] = A[v_i, v_j, v_k]

    @T.prim_func(private=True, s_tir=True)
    def right(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (first, second, third), dtype, offset_factor=1, scope=scopes[0])
        C = T.match_buffer(c, (first, second, third), dtype, offset_factor=1, scope=scopes[1])
        with T.sblock("root"):
            T.reads(A[0:first, 0:second, 0:third])
            T.writes(C[0:first, 0:second, 0:third])
            for i, j, k in T.grid(first, second, third):
                with T.sblock("copy"):
                    # In the order that the product has its axes in: results before sums.
                    v_j, v_i, v_k = T.axis.remap("SSS", [j, i, k])
                    C[v_i, v_j, v_k] = A[v_i, v_j, v_k]

    return right if operand == 1 else left


def _call(name: str, *arguments: Any) -> Any:
    from tvm.script import tirx as T

    return T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments)


def _number(buffer: Any, elements: int, first: int) -> Any:
    """Give the number of the tile that a part of a buffer stands for."""
    from tvm.script import tirx as T

    return T.Cast("uint8", buffer.elem_offset // elements + first)


def _zero(meaning: Meaning) -> PrimFunc:
    from tvm.script import tirx as T

    rows, columns = meaning.shape(2)

    @T.prim_func(private=True, s_tir=True)
    def implementation(c: T.handle) -> None:
        C = T.match_buffer(c, (rows, columns), meaning.result, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:rows, 0:columns])
            T.evaluate(_call("tilezero", _number(C, rows * columns, 0)))

    return implementation


def _load(meaning: Meaning, operand: int, first: int) -> PrimFunc:
    from tvm.script import tirx as T

    shape, dtype = meaning.shape(operand), _type(meaning, operand)
    size = prod(shape)

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, shape, dtype, offset_factor=1, scope="global")
        C = T.match_buffer(c, shape, dtype, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(A[0 : shape[0], 0 : shape[1], 0 : shape[2]])
            T.writes(C[0 : shape[0], 0 : shape[1], 0 : shape[2]])
            T.evaluate(_call("tileloadd64", _number(C, size, first), T.address_of(A[0, 0, 0]), T.int64(ROW_BYTES)))

    return implementation


def _store(meaning: Meaning) -> PrimFunc:
    from tvm.script import tirx as T

    rows, columns = meaning.shape(2)

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (rows, columns), meaning.result, offset_factor=1, scope="local")
        C = T.match_buffer(c, (rows, columns), meaning.result, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(_call("tilestored64", _number(A, rows * columns, 0), T.address_of(C[0, 0]), T.int64(ROW_BYTES)))

    return implementation


def _multiply(meaning: Meaning, intrinsic: str, first: dict[int, int]) -> PrimFunc:
    from tvm.script import tirx as T

    left, right, result = (meaning.shape(operand) for operand in range(3))
    name = intrinsic.removeprefix("llvm.x86.")

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, left, meaning.left, offset_factor=1, scope="local")
        B = T.match_buffer(b, right, meaning.right, offset_factor=1, scope="local")
        C = T.match_buffer(c, result, meaning.result, offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(
                C[0 : result[0], 0 : result[1]],
                A[0 : left[0], 0 : left[1], 0 : left[2]],
                B[0 : right[0], 0 : right[1], 0 : right[2]],
            )
            T.writes(C[0 : result[0], 0 : result[1]])
            T.evaluate(
                _call(
                    name,
                    _number(C, prod(result), first[2]),
                    _number(A, prod(left), first[0]),
                    _number(B, prod(right), first[1]),
                )
            )

    return implementation
