"""Finds threads that use the same memory without a barrier between them, in blocks that run in step.

For each byte group of memory (the width of the narrowest access) records are kept: who wrote it last and when, who
read it since, and whether an atomic operation changed it. Time is a number that grows at barriers. An access is ordered
after an earlier one when both are of one thread, when a barrier of their block came between them, or a barrier of their
warp where both are of one warp. Threads of different blocks are never ordered. That is the happens-before relation of
CUDA's memory model, without fences. Atomic operations may meet each other, and nothing else in their launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator import findings as kinds
from tvm_ext.backends.cuda.emulator.banks import ways_of
from tvm_ext.backends.cuda.emulator.findings import BankConflict, Finding, Report
from tvm_ext.backends.cuda.emulator.lanes import WARP, Lanes
from tvm_ext.backends.cuda.emulator.memory import Access, Global

_NOBODY, _SOME, _ALL = -1, 1, 2  # no thread; several threads of one block; of several blocks
REACH = 1 << 31  # bytes
_READS = 256  # as many are kept apart before they go into the records


class _Record:
    """Who used each cell of a memory last: thread among all of the grid, time, and whether others did as well."""

    def __init__(self, cells: int) -> None:
        self.thread = np.full(cells, _NOBODY, np.int64)
        self.time = np.zeros(cells, np.int64)
        self.several = np.zeros(cells, np.int8)


class _Shadow:
    """The records of a memory, in cells of ``width`` bytes.

    Attributes
    ----------
    empty : array of bool
        Cells that no thread wrote.
    pending : array of integers
        How many asynchronous copies are to write each cell.
    atomic : array of bool, optional
        Cells that atomic operations changed.
    last_write : int
        Time of the last write of any cell.
    reads : list
        Reads since the last barrier that are not in the record yet: most barriers come before any write does.
    """

    def __init__(self, nbytes: int, width: int) -> None:
        cells = -(-nbytes // width)
        self.width = width
        self.write, self.read = _Record(cells), _Record(cells)
        self.empty, self.pending = np.ones(cells, np.bool_), np.zeros(cells, np.int16)
        self.some_pending = False
        self.atomic: NDArray[np.bool_] | None = None
        self.last_write = -1
        self.reads: list[tuple[np.dtype[Any], Any, Any]] = []


class Checker:
    """Is told of the accesses of a launch, chunk by chunk, and keeps what is wrong with them.

    Parameters
    ----------
    kernel : str
    report : Report
        Gets the findings.
    width : int
        Bytes of a cell: the narrowest access of the kernel.
    written : set of int
        Numbers of the global memories (``id``) that the kernel writes; the others need no records.
    """

    def __init__(self, kernel: str, report: Report, width: int, written: set[int]) -> None:
        self.kernel, self._report, self._width, self._written = kernel, report, width, written
        self._shadows: dict[int, _Shadow] = {}
        self._chunk: dict[int, _Shadow] = {}
        self._found: dict[tuple[str, int], Finding] = {}
        self._patterns: dict[int, tuple[Any, int]] = {}
        self._conflicts: dict[int, BankConflict] = {}
        self.time = 1
        self._block_time: NDArray[np.int64] = np.zeros(0, np.int64)
        self._warp_time: NDArray[np.int64] = np.zeros(0, np.int64)

    def begin(self, lanes: Lanes) -> None:
        """Start with the blocks of a chunk: shared memory is fresh."""
        self._chunk = {}
        self._block_time = np.zeros(lanes.count, np.int64)
        self._warp_time = np.zeros(lanes.count * lanes.launch.warps, np.int64)
        self._global_thread = lanes.lane + lanes.first * lanes.launch.threads
        self._warp = lanes.block * lanes.launch.warps + lanes.thread // WARP

    # ---- barriers

    def block_barrier(self, lanes: Lanes) -> None:
        """All threads of the blocks that are active wait for each other."""
        if lanes.mask is None:
            self.time += 1
            self._block_time[:] = self.time
            for shadow in self._chunk.values():
                shadow.reads.clear()
            return
        self._settle(lanes)
        self.time += 1
        mask = np.broadcast_to(lanes.mask, lanes.lane.shape).reshape(lanes.count, -1)
        some, every = mask.any(1), mask.all(1)
        divided = np.flatnonzero(some & ~every)
        if divided.size:
            block = int(divided[0])
            absent = lanes.where(block * lanes.launch.threads + int(np.flatnonzero(~mask[block])[0]))
            access = Access(self.kernel, "the block", "barrier", -1, 1)
            self._note(kinds.DIVERGENT_BARRIER, access, f"{absent} does not reach it and others do", divided.size)
        self._block_time[some] = self.time

    def warp_barrier(self, lanes: Lanes) -> None:
        """All active threads of a warp wait for each other."""
        self._settle(lanes)
        self.time += 1
        active = self._warp if lanes.mask is None else self._warp[np.broadcast_to(lanes.mask, self._warp.shape)]
        self._warp_time[active] = self.time

    # ---- accesses

    def out_of_bounds(self, lanes: Lanes, access: Access, index: Any, bad: Any, extent: int) -> None:
        """Note indices beyond a memory."""
        bad = np.broadcast_to(bad, np.broadcast_shapes(bad.shape, index.shape))
        index = np.broadcast_to(index, bad.shape)
        place = np.unravel_index(int(np.flatnonzero(bad)[0]), bad.shape)
        lane = int(place[-1]) if bad.shape[-1] == lanes.lanes else 0
        text = f"{lanes.where(lane)} uses element {int(index[place])} of {extent}"
        self._note(kinds.OUT_OF_BOUNDS, access, text, int(np.count_nonzero(bad)))

    def misaligned(self, lanes: Lanes, access: Access, address: Any, width: int) -> None:
        """Note a copy of ``width`` bytes that does not begin at a multiple of them."""
        wrong = np.broadcast_to(address % width != 0, (lanes.lanes,))
        bad = wrong if lanes.mask is None else wrong & lanes.mask
        if bad.any():
            thread = int(np.flatnonzero(bad)[0])
            at = int(np.broadcast_to(address, bad.shape)[thread])
            text = f"{lanes.where(thread)} copies {width} bytes from or to byte {at}"
            self._note(kinds.MISALIGNED, access, text, int(np.count_nonzero(bad)))

    def out_of_reach(self, lanes: Lanes, access: Access, offset: Any, width: int) -> None:
        """Note offsets, in elements of ``width`` bytes, too far for an int of bytes, which TVM prints."""
        distance = np.broadcast_to(np.asarray(offset, np.int64) * width, (lanes.lanes,))
        wrong = distance >= REACH
        bad = wrong if lanes.mask is None else wrong & lanes.mask
        if bad.any():
            thread = int(np.flatnonzero(bad)[0])
            text = f"{lanes.where(thread)} copies from an offset of {distance[thread]} bytes, kept in 32 bits"
            self._note(kinds.OUT_OF_BOUNDS, access, text, int(np.count_nonzero(bad)))

    def read(
        self, lanes: Lanes, memory: Global, dtype: np.dtype[Any], index: Any, place: Any, mask: Any, access: Access
    ) -> None:
        """Check a read of elements at ``place`` (in all copies of the memory; ``index`` in one)."""
        shared = memory.scope != "global"
        if shared:
            self._banks(lanes, dtype, index, mask, access)
        elif id(memory) not in self._written:
            return
        shadow = self._shadow(memory)
        if shared:
            self._arrived(lanes, shadow, dtype, place, mask, access)
        if not shared or shadow.last_write >= self._block_time.min(initial=self.time):
            for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
                thread = self._global_thread[lane]
                self._conflict(lanes, shadow.write, cell, lane, thread, access, "reads what {} wrote")
                self._among_atomics(lanes, shadow, cell, lane, access)
        shadow.reads.append((dtype, place, mask))
        if len(shadow.reads) > _READS:
            self._settle(lanes)

    def _arrived(
        self, lanes: Lanes, shadow: _Shadow, dtype: np.dtype[Any], place: Any, mask: Any, access: Access
    ) -> None:
        """Check that what is read was written, by copies that were waited for."""
        for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
            missing = shadow.empty[cell]
            if missing.any():
                text = f"{lanes.where(lane[int(np.argmax(missing))])} reads what no thread wrote"
                self._note(kinds.UNINITIALISED, access, text, int(missing.sum()))
            if shadow.some_pending and (pending := shadow.pending[cell] > 0).any():
                text = f"{lanes.where(lane[int(np.argmax(pending))])} does not wait for an asynchronous copy"
                self._note(kinds.ASYNC, access, text, int(pending.sum()))

    def _settle(self, lanes: Lanes) -> None:
        """Bring reads into the records."""
        for table in (self._chunk, self._shadows):
            for shadow in table.values():
                for dtype, place, mask in shadow.reads:
                    for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
                        self._remember(lanes, shadow.read, cell, lane, self._global_thread[lane])
                shadow.reads.clear()

    def write(
        self, lanes: Lanes, memory: Global, dtype: np.dtype[Any], index: Any, place: Any, mask: Any, value: Any,
        access: Access, *, pending: bool = False,
    ) -> None:  # fmt: skip
        """Check a write; of an asynchronous copy, which has begun, if ``pending``."""
        if memory.scope != "global":
            self._banks(lanes, dtype, index, mask, access)
        shadow = self._shadow(memory)
        if shadow.reads:
            self._settle(lanes)
        for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
            thread = self._global_thread[lane]
            self._conflict(lanes, shadow.write, cell, lane, thread, access, "writes what {} wrote",
                           same=(memory, dtype, place, mask, value))  # fmt: skip
            self._conflict(lanes, shadow.read, cell, lane, thread, access, "writes what {} read")
            self._among_atomics(lanes, shadow, cell, lane, access)
            record = shadow.write
            record.thread[cell], record.time[cell] = thread, self.time
            others = record.thread[cell] != thread
            if others.any():
                self._twice(lanes, record, cell, lane, thread, others, access, (place, mask, value))
            shadow.read.thread[cell], shadow.read.several[cell] = _NOBODY, 0
            if shadow.some_pending and (early := shadow.pending[cell] > 0).any():
                text = f"{lanes.where(lane[int(np.argmax(early))])} writes where an asynchronous copy has not arrived"
                self._note(kinds.ASYNC, access, text, int(early.sum()))
            shadow.empty[cell] = False
            shadow.pending[cell] += pending
        shadow.last_write = self.time
        shadow.some_pending |= pending

    def atomic(self, lanes: Lanes, memory: Global, dtype: np.dtype[Any], place: Any, mask: Any, access: Access) -> None:
        """Check an atomic operation: other threads may change the element likewise, and do nothing else with it."""
        shadow = self._shadow(memory)
        self._settle(lanes)
        if shadow.atomic is None:
            shadow.atomic = np.zeros(shadow.empty.shape, np.bool_)
        for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
            thread = self._global_thread[lane]
            self._conflict(lanes, shadow.write, cell, lane, thread, access, "changes what {} wrote")
            self._conflict(lanes, shadow.read, cell, lane, thread, access, "changes what {} read")
            shadow.atomic[cell] = True

    def _among_atomics(self, lanes: Lanes, shadow: _Shadow, cell: Any, lane: Any, access: Access) -> None:
        if shadow.atomic is not None and (changed := shadow.atomic[cell]).any():
            text = f"{lanes.where(lane[int(np.argmax(changed))])} uses what others change by atomic operations"
            self._note(kinds.RACE, access, text, int(changed.sum()))

    def arrived(self, lanes: Lanes, memory: Global, dtype: np.dtype[Any], place: Any, mask: Any) -> None:
        """End an asynchronous copy: its thread has written the elements now."""
        shadow = self._shadow(memory)
        for cell, lane in self._cells(lanes, shadow, dtype, place, mask):
            shadow.write.thread[cell], shadow.write.time[cell] = self._global_thread[lane], self.time
            shadow.pending[cell] -= 1
        shadow.last_write, shadow.some_pending = self.time, bool(shadow.pending.any())

    def _shadow(self, memory: Global) -> _Shadow:
        table = self._shadows if memory.scope == "global" else self._chunk
        found = table.get(id(memory))
        if found is None:
            found = table[id(memory)] = _Shadow(memory.array.nbytes, self._width)
        return found

    def _cells(self, lanes: Lanes, shadow: _Shadow, dtype: np.dtype[Any], place: Any, mask: Any) -> Any:
        """Cells and lanes of the active threads, once for each cell of an element."""
        place, lane = np.broadcast_arrays(place, lanes.lane)
        if mask is None:
            place, lane = place.ravel(), lane.ravel()
        else:
            mask = np.broadcast_to(mask, place.shape)
            place, lane = place[mask], lane[mask]
        cells = dtype.itemsize // shadow.width
        for part in range(cells):
            yield place * cells + part, lane

    def _ordered(
        self, lanes: Lanes, record: _Record, cell: Any, lane: Any, thread: Any
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether what the record has of each cell is ordered before this access; and the other thread."""
        other, time, several = record.thread[cell], record.time[cell], record.several[cell]
        threads = lanes.launch.threads
        same_block = other // threads == thread // threads
        before = same_block & (time < self._block_time[lanes.block[lane]])
        alone = several == 0
        same_warp = same_block & alone & (other % threads // WARP == lanes.thread[lane] // WARP)
        before |= same_warp & (time < self._warp_time[self._warp[lane]])
        return ((other == thread) & alone) | (before & (several != _ALL)) | (other == _NOBODY), other

    def _conflict(
        self, lanes: Lanes, record: _Record, cell: Any, lane: Any, thread: Any, access: Access,
        what: str, same: Any = None,
    ) -> None:  # fmt: skip
        ordered, other = self._ordered(lanes, record, cell, lane, thread)
        if ordered.all():
            return
        wrong = np.flatnonzero(~ordered)
        kind = kinds.RACE
        if same is not None:
            memory, dtype, place, mask, value = same
            place, value = np.broadcast_arrays(place, value, lanes.lane)[:2]
            if mask is not None:
                mask = np.broadcast_to(mask, place.shape)
                place, value = place[mask], value[mask]
            if np.array_equal(memory.view(dtype)[place.ravel()[wrong]], value.ravel()[wrong], equal_nan=False):
                kind = kinds.REDUNDANT
        first = int(wrong[0])
        text = (
            f"{lanes.where(lane[first])} {what.format(self._name(lanes, int(other[first])))} without a barrier between"
        )
        self._note(kind, access, text, wrong.size)

    def _twice(
        self, lanes: Lanes, record: _Record, cell: Any, lane: Any, thread: Any, others: Any, access: Access, same: Any
    ) -> None:
        """Several threads write one cell in the same step."""
        record.several[cell[others]] = _SOME
        place, mask, value = same
        place, value = np.broadcast_arrays(place, value, lanes.lane)[:2]
        if mask is not None:
            mask = np.broadcast_to(mask, place.shape)
            place, value = place[mask], value[mask]
        place, value = place.ravel(), value.ravel()
        # The value that stays is that of the last thread, as numpy stores in order.
        order = np.argsort(place, kind="stable")
        last = np.flatnonzero(np.append(place[order][1:] != place[order][:-1], True))
        kept = value[order][last][np.searchsorted(place[order][last], place)]
        differs = (kept != value) & others[: place.size]
        kind = kinds.RACE if differs.any() else kinds.REDUNDANT
        first = int(np.flatnonzero(differs if differs.any() else others)[0])
        name = self._name(lanes, int(record.thread[cell[first]]))
        text = f"{lanes.where(lane[first])} writes the element that {name} writes in the same step"
        self._note(kind, access, text, int(np.count_nonzero(differs if differs.any() else others)))

    def _remember(self, lanes: Lanes, record: _Record, cell: Any, lane: Any, thread: Any) -> None:
        """Add readers: one that comes after all earlier ones takes their place."""
        ordered, other = self._ordered(lanes, record, cell, lane, thread)
        threads = lanes.launch.threads
        same_block = other // threads == thread // threads
        several = np.where(ordered, 0, np.where(same_block, np.maximum(record.several[cell], _SOME), _ALL))
        record.thread[cell], record.time[cell] = thread, self.time
        record.several[cell] = several
        # Of several threads in one step the last one was kept.
        kept = record.thread[cell]
        others = kept != thread
        if others.any():
            same = kept[others] // threads == thread[others] // threads
            np.maximum.at(record.several, cell[others], np.where(same, _SOME, _ALL).astype(np.int8))

    def _banks(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, mask: Any, access: Access) -> None:
        """Count the ways of an access by the first block of the chunk, unless it was counted for the same pattern."""
        if not access.together:
            return  # how lanes share the work is not known
        threads = lanes.launch.threads
        index = np.broadcast_to(index, (*np.shape(index)[:-1], lanes.lanes))[..., :threads]
        active = None if mask is None else np.broadcast_to(mask, (*np.shape(mask)[:-1], lanes.lanes))[..., :threads]
        pattern = index - index[..., :1]
        known = self._patterns.get(access.number)
        if active is None and known is not None and np.array_equal(known[0], pattern):
            return
        ways = ways_of(index, active, dtype.itemsize, access.together)
        if active is None:
            self._patterns[access.number] = pattern, ways
        if ways < 2:
            return
        found = self._conflicts.get(access.number)
        if found is None:
            found = BankConflict(self.kernel, access.buffer, access.text, ways)
            self._conflicts[access.number] = found
            self._report.bank_conflicts.append(found)
        found.ways = max(found.ways, ways)

    def _name(self, lanes: Lanes, thread: int) -> str:
        lane = thread - lanes.first * lanes.launch.threads
        return lanes.where(lane)

    def _note(self, kind: str, access: Access, text: str, count: int) -> None:
        found = self._found.get((kind, access.number))
        if found is None:
            found = self._found[kind, access.number] = Finding(
                kind, self.kernel, access.buffer, access.text, text, count
            )
            self._report.findings.append(found)
        else:
            found.count += count
