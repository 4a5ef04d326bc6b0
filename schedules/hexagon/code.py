"""Writing kernels statement by statement: loops, loads and stores of vectors, names for values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import s_tir, tirx

VECTOR = 128
"""Bytes of a vector register."""

WORDS = VECTOR // 4
"""int32 lanes of a vector register."""


class Code:
    """Collects the statements of a kernel.

    Parameters
    ----------
    parameters : mapping from name to (elements, dtype)
        Flat buffers, aligned to vectors.
    """

    def __init__(self, **parameters: tuple[int, str]) -> None:
        self.parameters = {
            name: tirx.decl_buffer((size,), dtype, name, data_alignment=VECTOR)
            for name, (size, dtype) in parameters.items()
        }
        self._statements: list[tirx.Stmt] = []

    def __getitem__(self, name: str) -> tirx.Buffer:
        return self.parameters[name]

    def add(self, statement: tirx.Stmt) -> None:
        """Append a statement."""
        self._statements.append(statement)

    @contextmanager
    def loop(self, name: str, extent: int, unrolled: bool = False) -> Iterator[Any]:
        """Repeat what is written inside; gives the counter, the number 0 for one turn."""
        if extent == 1:
            yield tirx.const(0, "int32")
            return
        outer, self._statements = self._statements, []
        variable = tirx.Var(name, "int32")
        yield variable
        body = _sequence(self._statements)
        self._statements = outer
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        if extent > 0:
            self.add(tirx.For(variable, tirx.const(0, "int32"), tirx.const(extent, "int32"), kind, body))

    def load(self, buffer: tirx.Buffer, offset: Any, lanes: int = 1) -> Any:
        """Give elements of a buffer from an offset on."""
        return tirx.BufferLoad(buffer, [_place(offset, lanes)])

    def store(self, buffer: tirx.Buffer, offset: Any, value: Any, lanes: int = 1) -> None:
        """Set elements of a buffer from an offset on."""
        self.add(tirx.BufferStore(buffer, value, [_place(offset, lanes)]))

    def let(self, name: str, value: Any) -> Any:
        """Compute a value once; gives its name."""
        variable = tirx.Var(name, value.ty)
        self.add(tirx.Bind(variable, value))
        return variable

    def local(self, name: str, lanes: int, dtype: str = "int32") -> tirx.Buffer:
        """Declare elements that live in registers."""
        buffer = tirx.decl_buffer((lanes,), dtype, name, scope="local", data_alignment=VECTOR)
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def wider(self, name: str, dtype: str) -> tirx.Buffer:
        """Take a parameter for one of other elements, such as bytes for words; every access must be to those."""
        buffer = self.parameters[name]
        size = int(buffer.shape[0]) * tvm.DataType(str(buffer.dtype)).itemsize // tvm.DataType(dtype).itemsize
        view = tirx.decl_buffer((size,), dtype, f"{name}_{dtype}", data_alignment=VECTOR)
        pointer = tirx.reinterpret(tvm.ir.PointerType(tvm.ir.PrimType(dtype)), buffer.data)
        self.add(tirx.DeclBuffer(view, data=pointer))
        return view

    def function(self, name: str) -> tirx.PrimFunc:
        """Give the kernel; its parameters do not overlap."""
        # Passes over whole models take it that a kernel is a block.
        root = s_tir.SBlock([], [], [], "root", _sequence(self._statements))
        body = s_tir.SBlockRealize([], tirx.const(1, "bool"), root)
        func = tirx.PrimFunc(list(self.parameters.values()), body)
        return func.with_attrs({"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True})


def _place(offset: Any, lanes: int) -> Any:
    return offset if lanes == 1 else tirx.Ramp(offset, tirx.const(1, "int32"), lanes)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def intrinsic(name: str, lanes: int, *arguments: Any, inlined: bool = True) -> Any:
    """Call an instruction of HVX, by the name that LLVM has for it.

    Parameters
    ----------
    name : str
        Such as ``vrmpybus.acc``.
    lanes : int
        int32 lanes of the result: 32 for a register, 64 for a pair.
    *arguments
        Registers as vectors of int32, scalars as int32.
    inlined : bool
        Whether TVM may write the call out wherever a name for it is used, as it does with all that has no effects.
        Where names are used several times, one on top of the other, the kernel grows with each, and so does the time of
        every pass; LLVM merges the calls again either way.
    """
    dtype = "int32" if lanes == 1 else f"int32x{lanes}"
    call = tirx.call_llvm_pure_intrin if inlined else tirx.call_llvm_intrin
    return call(dtype, f"llvm.hexagon.V6.{name}.128B", *arguments)


def words(value: Any, lanes: int = WORDS) -> Any:
    """Take a vector of bytes for one of words."""
    return tirx.reinterpret(tvm.ir.PrimType(f"int32x{lanes}"), value)


def octets(value: Any) -> Any:
    """Take a register of words for one of unsigned bytes."""
    return tirx.reinterpret(tvm.ir.PrimType(f"uint8x{VECTOR}"), value)


def splat(value: Any, lanes: int = WORDS) -> Any:
    """Repeat a word in every lane."""
    return tirx.Broadcast(value, lanes)
