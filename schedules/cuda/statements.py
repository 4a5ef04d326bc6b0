"""Small helpers to write a kernel as statements, where no schedule instruction makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import ForKind, IntImm, PrimFunc

INDEX = "int64"
"""Type of indices; TVM narrows it where extents allow."""


def number(value: Any) -> Any:
    """Make an index of a number; an expression, such as an open extent, is one."""
    return IntImm(INDEX, value) if isinstance(value, int) else value


def single(value: float) -> Any:
    """Make a float32."""
    return tirx.const(value, "float32")


def store(buffer: Any, value: Any, *indices: Any) -> Any:
    """Store an element."""
    return tirx.BufferStore(buffer, value, [number(index) for index in indices])


def load(buffer: Any, *indices: Any) -> Any:
    """Load an element."""
    return tirx.BufferLoad(buffer, [number(index) for index in indices])


def loop(extent: Any, body: Callable[[Any], Any], kind: int = ForKind.SERIAL) -> Any:
    """Repeat what ``body`` makes of the variable of the loop."""
    variable = tirx.Var("i", INDEX)
    return tirx.For(variable, number(0), number(extent), kind, sequence(body(variable)))


def unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    """Repeat what ``body`` makes, its copies one after another."""
    return loop(extent, body, ForKind.UNROLLED)


def vectorized(extent: int, body: Callable[[Any], Any]) -> Any:
    """Do what ``body`` makes for all places at once."""
    return loop(extent, body, ForKind.VECTORIZED) if extent > 1 else sequence(body(number(0)))


def sequence(item: Any) -> Any:
    """Make one statement of several."""
    if not isinstance(item, list | tuple):
        return item
    flat: list[Any] = []
    for statement in item:
        inner = sequence(statement)
        flat += list(inner.seq) if isinstance(inner, tirx.SeqStmt) else [inner]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def substituted(expression: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    """Put expressions in the place of variables."""

    def replace(variable: Any, _mutator: Any) -> Any:
        for before, after in values:
            if variable.same_as(before):
                return after
        return variable

    return tvm_ffi.structural_mutate(expression, [(tvm.ir.Var, replace)])


def kernel(
    func: PrimFunc, name: str, blocks: Any, threads: int, buffers: Sequence[Any], body: Callable[[Any, Any], Any]
) -> PrimFunc:
    """Make a kernel of one block of statements with the parameters of ``func``, all but the last of them read.

    Parameters
    ----------
    func : PrimFunc
    name : str
        Of the block.
    blocks : int or PrimExpr
        Of the grid.
    threads : int
        Of a block.
    buffers : sequence of Buffer
        Shared memory and registers.
    body : callable
        Makes the statements of the numbers of the block and of the thread.
    """
    grid, thread = tirx.Var("grid", INDEX), tirx.Var("thread", INDEX)
    axes = [
        tirx.IterVar(_range(extent), variable, tirx.IterVar.DataPar)
        for extent, variable in ((blocks, grid), (threads, thread))
    ]
    *read, written = func.params
    inner = s_tir.SBlock(
        axes, [_whole(buffer) for buffer in read], [_whole(written)], name, sequence(body(grid, thread)), None,
        list(buffers), [], {},
    )  # fmt: skip
    loops = tirx.Var("grid_loop", INDEX), tirx.Var("thread_loop", INDEX)
    statement: Any = s_tir.SBlockRealize(list(loops), True, inner)
    for variable, extent, tag in ((loops[1], threads, "threadIdx.x"), (loops[0], blocks, "blockIdx.x")):
        bound = tirx.IterVar(_range(extent), tirx.Var(tag, INDEX), tirx.IterVar.ThreadIndex, tag)
        statement = tirx.For(variable, number(0), number(extent), ForKind.THREAD_BINDING, statement, bound)
    root = s_tir.SBlock([], [], [], "root", statement, None, [], [], {})
    return PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)


def _range(extent: Any) -> Any:
    return tvm.ir.Range.from_min_extent(number(0), number(extent))


def _whole(buffer: Any) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(number(0), size) for size in buffer.shape])


def bound_loop(variable: Any, extent: Any, tag: str, body: Any) -> tirx.For:
    """Make a loop from 0 on that is bound to blocks or threads."""
    kind = str(variable.ty.dtype)
    domain = tvm.ir.Range.from_min_extent(IntImm(kind, 0), extent)
    thread = tirx.IterVar(domain, tirx.Var(tag, kind), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(variable, IntImm(kind, 0), extent, ForKind.THREAD_BINDING, body, thread)
