"""Asynchronous copies from global to shared memory (``cp.async``), which arrive when they are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_ext.backends.cuda.emulator import arithmetic
from tvm_ext.backends.cuda.emulator.lanes import Lanes
from tvm_ext.backends.cuda.emulator.memory import Access, Global
from tvm_ext.backends.cuda.emulator.statements import Intrinsic, Statements, Step, commit, wait, warp_barrier


@dataclass(frozen=True)
class _Copy:
    """A copy under way: where it goes, what it brings, and whose it is."""

    memory: Global
    dtype: np.dtype[Any]
    index: Any
    values: Any
    mask: Any
    access: Access

    def arrive(self, lanes: Lanes) -> None:
        """Write what was copied."""
        before, lanes.mask = lanes.mask, self.mask
        checker, lanes.checker = lanes.checker, None
        self.memory.store(lanes, self.dtype, self.index, self.values, self.access)
        lanes.checker, lanes.mask = checker, before
        if checker is not None:
            at = self.index + self.memory.base(lanes, self.dtype)
            checker.arrived(lanes, self.memory, self.dtype, at, self.mask)


def _copy(code: Statements, call: Any) -> Step:
    """``cp_async_raw(destination, offset, source, offset, bytes[, condition])``; zeros where the condition is false."""
    target, source = code.target(call.args[0]), code.pointer(call.args[2])
    offsets = code.value(call.args[1]), code.value(call.args[3])
    dtype = source.view.dtype
    count = int(call.args[4]) // dtype.itemsize
    condition = code.value(call.args[5]) if len(call.args) > 5 else None
    accesses = []
    for pointer in (target, source):
        access = code.access(pointer.view.buffer, 0, pointer.view)
        access.text, access.together, access.itemsize = "cp.async", count, dtype.itemsize
        accesses.append(access)
    scale, steps = target.view.dtype.itemsize / dtype.itemsize, np.arange(count)[:, None]

    def run(lanes: Lanes) -> None:
        before = lanes.mask
        offset = offsets[1](lanes)
        start = source.index(lanes) + offset
        place = start + steps
        wanted = None if condition is None else np.asarray(condition(lanes), np.bool_) & np.ones(lanes.lanes, np.bool_)
        if wanted is not None:
            lanes.mask = lanes.masked(wanted)
        if lanes.checker is not None:
            lanes.checker.out_of_reach(lanes, accesses[1], offset, dtype.itemsize)
            lanes.checker.misaligned(lanes, accesses[1], start * dtype.itemsize, count * dtype.itemsize)
        values = source.view.storage(lanes).load(lanes, dtype, place, accesses[1])
        lanes.mask = before
        values = np.broadcast_to(values, (count, lanes.lanes)).copy()
        if wanted is not None:
            values[:, ~wanted] = 0
        memory = target.view.storage(lanes)
        assert isinstance(memory, Global)
        index = arithmetic.scaled(target.index(lanes) + offsets[0](lanes), scale)
        if lanes.checker is not None:
            lanes.checker.misaligned(lanes, accesses[0], index * dtype.itemsize, count * dtype.itemsize)
        index = index + steps
        index, mask = memory.inside(lanes, dtype, index, accesses[0])
        if lanes.checker is not None:
            at = index + memory.base(lanes, dtype)
            lanes.checker.write(lanes, memory, dtype, index, at, mask, values, accesses[0], pending=True)
        lanes.copies[-1].append(_Copy(memory, dtype, index, values, mask, accesses[0]))

    return run


def _commit(code: Statements, call: Any) -> Step:
    return commit


def _wait(code: Statements, call: Any) -> Step:
    left = next(int(argument) for argument in call.args if isinstance(argument, tirx.IntImm))
    return lambda lanes: wait(lanes, left)


def _wait_all(code: Statements, call: Any) -> Step:
    def run(lanes: Lanes) -> None:
        commit(lanes)
        wait(lanes, 0)

    return run


def _warp_sync(code: Statements, call: Any) -> Step:
    return warp_barrier


ASYNC_COPIES: dict[str, Intrinsic] = {
    "s_tir.cp_async_raw": _copy,
    "ptx.cp_async_commit_group": _commit,
    "ptx.cp_async_wait_group": _wait,
    "ptx.cp_async_wait_all": _wait_all,
    "cuda.warp_sync": _warp_sync,
}
