"""Recurrent layers: the time loop as one kernel, a thread block for each few sequences, a hidden unit a thread.

The loop comes in the form of a CPU: units in blocks of some lanes, which a vector instruction updates together.

before: ``for t: for n: for x in vectorized(16): gate[x] = ...; for k, x: gate[x] += state[k] * weights[n, k, x]``
after:  ``for t: gate = ...; for k: gate += state[k] * weights[thread // 16, k, thread % 16]``

What is indexed by the lane alone becomes a register, what is indexed by the unit lies in shared memory, where the next
step finds it; TVM puts the barriers in. All steps are one launch, and the weights come from the L2 cache each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.tirx import ForKind, IntImm, PrimFunc

from tvm_ext.schedules.cuda.machine import MOST_THREADS
from tvm_ext.schedules.cuda.statements import bound_loop
from tvm_ext.schedules.rule import new_schedule


class Recurrence:
    """Schedule the time loop of an RNN, a GRU or an LSTM as the front end writes it."""

    name = "cuda.recurrence"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is one block of loops over vectors of the same width inside a loop over steps."""
        found = _time_loop(func)
        if found is None:
            return None
        outer, block = found
        vectors = list(_loops(block.body, ForKind.VECTORIZED))
        widths = {int(loop.extent) for loop in vectors if isinstance(loop.extent, IntImm)}
        blocks = {loop.extent for loop in _unit_loops(block.body)}
        if len(widths) != 1 or not blocks or not all(isinstance(count, IntImm) for count in blocks):
            return None
        counts = {int(count) for count in blocks}
        if len(counts) != 1:
            return None
        threads = _Threads(widths.pop(), counts.pop(), block)
        return new_schedule(threads.function(func, outer, block), tunable)


def _time_loop(func: PrimFunc) -> tuple[tirx.For, Any] | None:
    """Find the loop over sequences and the one block in it, which keeps its state in arrays of its own."""
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    outer = root.body if root is not None and not root.alloc_buffers else None
    if not isinstance(outer, tirx.For) or not isinstance(outer.body, s_tir.SBlockRealize):
        return None
    block = outer.body.block
    steps = [loop for loop in _children(block.body) if _has_vectors(loop)]
    return (outer, block) if len(steps) == 1 and block.init is None and len(block.iter_vars) == 1 else None


def _unit_loops(body: Any) -> list[tirx.For]:
    """List the loops over blocks of units: those right inside the loop over steps that have vectors inside."""
    (steps,) = (loop for loop in _children(body) if _has_vectors(loop))
    return [loop for loop in _children(steps.body) if _has_vectors(loop)]


def _children(statement: Any) -> list[tirx.For]:
    """List the loops of a sequence of statements, not those inside of them."""
    if isinstance(statement, tirx.SeqStmt):
        return [loop for item in statement.seq for loop in _children(item)]
    return [statement] if isinstance(statement, tirx.For) else []


def _loops(statement: Any, kind: int) -> Iterator[tirx.For]:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(statement, [(tirx.For, found.append)])
    return (loop for loop in found if loop.kind == kind)


def _has_vectors(loop: Any) -> bool:
    return any(True for _ in _loops(loop, ForKind.VECTORIZED))


class _Threads:
    """Rewrites the loops over units to threads.

    Parameters
    ----------
    lanes, blocks : int
        Units of a vector, vectors of the layer.
    block : SBlock
        Of the time loop.
    """

    def __init__(self, lanes: int, blocks: int, block: Any) -> None:
        self._lanes, self._blocks = lanes, blocks
        # Every thread has a unit in every round, so that no barrier stands under a condition.
        self._at_once = max(count for count in range(1, MOST_THREADS // lanes + 1) if blocks % count == 0)
        self._index = str(block.iter_vars[0].var.ty.dtype)
        self._thread = tirx.Var("thread", self._index)
        self._units = [loop.loop_var for loop in _unit_loops(block.body)]
        self._lane_variables = [loop.loop_var for loop in _loops(block.body, ForKind.VECTORIZED)]
        self._replaced: dict[Any, Any] = {}
        self._narrow: set[Any] = set()
        self._callbacks = [
            (tvm.ir.Var, lambda variable, _mutator: self._replaced.get(variable, variable)),
            (tirx.For, self._loop),
            (tirx.BufferStore, self._store),
            (tvm.ir.TensorLoad, self._load),
        ]

    @property
    def threads(self) -> int:
        """Of a block."""
        return self._lanes * self._at_once

    def function(self, func: PrimFunc, outer: tirx.For, block: Any) -> PrimFunc:
        """Bind the loop over sequences to blocks of threads, what is inside to threads."""
        accesses = _accesses(block.body)
        buffers = [self._buffer(buffer, accesses[buffer]) for buffer in block.alloc_buffers if buffer in accesses]
        body = tvm_ffi.structural_mutate(block.body, self._callbacks)
        body = tirx.SeqStmt([*(self._cleared(buffer) for buffer in buffers if buffer.scope() == "shared"), body])
        extent = tvm.ir.Range.from_min_extent(IntImm(self._index, 0), IntImm(self._index, self.threads))
        axis = tirx.IterVar(extent, self._thread, tirx.IterVar.DataPar)
        block = s_tir.SBlock(
            [*block.iter_vars, axis],
            block.reads,
            block.writes,
            block.name_hint,
            body,
            None,
            buffers,
            [],
            block.annotations,
        )  # fmt: skip
        loop = tirx.Var("thread_loop", self._index)
        inner = s_tir.SBlockRealize([*outer.body.iter_values, loop], outer.body.predicate, block)
        inside = bound_loop(loop, IntImm(self._index, self.threads), "threadIdx.x", inner)
        grid = bound_loop(outer.loop_var, outer.extent, "blockIdx.x", inside)
        root = func.body.block
        root = s_tir.SBlock([], root.reads, root.writes, root.name_hint, grid, None, [], [], root.annotations)
        return PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)

    def _buffer(self, buffer: Any, indices: list[Any]) -> Any:
        """Give an array its place: registers if it has one part for each lane, or no unit at all, else shared memory.

        Parameters
        ----------
        buffer : Buffer
        indices : list of expressions
            The last index of every access.
        """
        shape, scope = list(buffer.shape), "shared"
        if all(any(index.same_as(lane) for lane in self._lane_variables) for index in indices):
            shape[-1], scope = IntImm(self._index, 1), "local"
            self._narrow.add(buffer)
        elif len(shape) == 1 or all(isinstance(index, IntImm) for index in indices):
            scope = "local"
        self._replaced[buffer] = tirx.decl_buffer(shape, str(buffer.dtype), buffer.name, scope=scope)
        return self._replaced[buffer]

    def _cleared(self, buffer: Any) -> tirx.For:
        """Fill an array with zeros: units beyond the last are computed with, though nobody reads what comes out."""
        *outer, last = buffer.shape
        loops = [tirx.Var(f"c{number}", self._index) for number in range(len(outer) + 1)]
        unit = loops[-1] * self.threads + self._thread
        body: Any = tirx.BufferStore(buffer, tirx.const(0, str(buffer.dtype)), [*loops[:-1], unit])
        extents = [*outer, IntImm(self._index, int(last) // self.threads)]
        for variable, extent in zip(reversed(loops), reversed(extents), strict=True):
            body = tirx.For(variable, IntImm(self._index, 0), extent, ForKind.SERIAL, body)
        return body

    def _loop(self, loop: tirx.For, mutator: Any) -> Any:
        variable = loop.loop_var
        if any(variable.same_as(unit) for unit in self._units):
            rounds = self._blocks // self._at_once
            again = tirx.Var(variable.name, variable.ty)
            self._replaced[variable] = again * self._at_once + self._thread // self._lanes
            body = mutator.mutate(loop.body)
            return tirx.For(again, IntImm(self._index, 0), IntImm(self._index, rounds), ForKind.SERIAL, body)
        if loop.kind == ForKind.VECTORIZED:
            self._replaced[variable] = self._thread % self._lanes
            return mutator.mutate(loop.body)
        if self._is_spatial(loop):
            # A loop that begins later is shared like those from 0 on: an element belongs to one thread throughout.
            start, stop = int(loop.min), int(loop.min) + int(loop.extent)
            rounds = -(-stop // self.threads)
            again = tirx.Var(variable.name, variable.ty)
            self._replaced[variable] = again * self.threads + self._thread
            body = mutator.mutate(loop.body)
            if stop % self.threads:
                body = tirx.IfThenElse(self._replaced[variable] < stop, body, None)
            if start:
                body = tirx.IfThenElse(self._replaced[variable] >= start, body, None)
            return tirx.For(again, IntImm(self._index, 0), IntImm(self._index, rounds), ForKind.SERIAL, body)
        return mutator.default_mutate(loop)

    def _is_spatial(self, loop: tirx.For) -> bool:
        """Whether every store in a loop is along it, so that threads can share it."""
        stores: list[Any] = []
        tvm_ffi.structural_walk(loop.body, [(tirx.BufferStore, stores.append)])
        return (
            isinstance(loop.min, IntImm)
            and isinstance(loop.extent, IntImm)
            and loop.kind == ForKind.SERIAL
            and not _children(loop.body)
            and all(len(store.indices) > 1 and store.indices[-1].same_as(loop.loop_var) for store in stores)
        )

    def _indices(self, buffer: Any, indices: Any, mutator: Any) -> list[Any]:
        kept = [mutator.mutate(index) for index in indices]
        return [*kept[:-1], IntImm(self._index, 0)] if buffer in self._narrow else kept

    def _store(self, store: Any, mutator: Any) -> Any:
        indices = self._indices(store.buffer, store.indices, mutator)
        return tirx.BufferStore(mutator.mutate(store.buffer), mutator.mutate(store.value), indices, store.span)

    def _load(self, load: Any, mutator: Any) -> Any:
        indices = self._indices(load.source, load.indices, mutator)
        return tirx.BufferLoad(mutator.mutate(load.source), indices, load.span)


def _accesses(body: Any) -> dict[Any, list[Any]]:
    """List the last index of every access, by buffer."""
    found: dict[Any, list[Any]] = {}
    tvm_ffi.structural_walk(
        body,
        [
            (tirx.BufferStore, lambda store: found.setdefault(store.buffer, []).append(store.indices[-1])),
            (tvm.ir.TensorLoad, lambda load: found.setdefault(load.source, []).append(load.indices[-1])),
        ],
    )
    return found
