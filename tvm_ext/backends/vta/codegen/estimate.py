"""Count the cycles of a plan without making its program: what the tuner asks thousands of times.

The same costs and the same order of events as ``cycles.time_program``, but without micro-ops, words and tokens: an
instruction waits for the last one of a neighbouring module that uses a tile it uses. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tvm_ext.backends.vta.codegen.nests import Access, BufferInfo, Kind
from tvm_ext.backends.vta.codegen.transfers import Transfer
from tvm_ext.backends.vta.codegen.unrolling import Block, Plan
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Load, MemoryType, MicroOp, Store
from tvm_ext.backends.vta.program.builder import UOP_DEPTH
from tvm_ext.backends.vta.program.loop_nests import LoopNest, compress_all, factor_limits
from tvm_ext.backends.vta.timing.costs import CycleCosts

LOAD, COMPUTE, STORE = range(3)
PlaceKey = tuple[str, int, int]  # memory, first element and number of those that are used
KernelKey = tuple[int, int, tuple[int, int, int]]  # number and length of the micro-ops, and what is added to them


# Of each loop nest the number of its micro-ops, how many they are, and the turns of its loops; then the least and the
# greatest index of each operand.
_Folded = tuple[list[tuple[int, int, int]], tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Step:
    """An instruction, as far as its time goes."""

    module: int
    cycles: int
    bus: int = 0  # cycles of the bus for data
    after: tuple[int, ...] = ()  # instructions that must have ended
    kernel: KernelKey | None = None
    reads: tuple[PlaceKey, ...] = ()
    writes: tuple[PlaceKey, ...] = ()


def count_cycles(plan: Plan, config: VTAConfig, costs: CycleCosts, uop_depth: int = UOP_DEPTH) -> int:
    """Count the cycles that the program of a plan takes.

    Raises
    ------
    VTAProgramError
        If a number does not fit its field.
    """
    counter = _Counter(plan, config, costs, min(uop_depth, config.depths["uop"]))
    return _run(counter.steps(), costs)


class _Counter:
    """Makes steps of the blocks of a plan."""

    def __init__(self, plan: Plan, config: VTAConfig, costs: CycleCosts, uop_depth: int) -> None:
        self.plan, self.config, self.costs, self.uop_depth = plan, config, costs, uop_depth
        self._nests: dict[tuple[int, str], _Folded] = {}
        self._numbers: dict[tuple[MicroOp, ...], int] = {}
        self._times = _known_times(config, costs)

    def steps(self) -> list[_Step]:
        """List the steps of the program, with loads of micro-ops and the end."""
        steps = self._with_dependencies(list(self._with_uops(list(self._blocks()))))
        last = {module: -1 for module in (LOAD, STORE)}
        for number, step in enumerate(steps):
            last[step.module] = number
        after = tuple(last[module] for module in (LOAD, STORE) if last[module] >= 0)
        empty = self.costs.empty
        return [*steps, _Step(COMPUTE, empty, after=after), _Step(COMPUTE, empty)]

    def _blocks(self) -> Iterator[_Step]:
        for block in self.plan.blocks:
            if block.nest.kind == Kind.LOAD:
                if self.plan.places[block.tiles[0]].is_loaded:
                    continue
                for part in block.transfers:
                    target = self._moved(part, block.tiles[0])
                    cycles, bus = self._load_time(part, target[0], block.nest.sources[0].buffer)
                    yield _Step(COMPUTE if target[0] == "acc" else LOAD, cycles, bus, writes=(target,))
            elif block.nest.kind == Kind.STORE:
                for part in block.transfers:
                    cycles, _ = self._store_time(part, block.nest.target.buffer)
                    yield _Step(STORE, cycles, reads=(self._moved(part, block.tiles[1]),))
            else:
                yield from self._computed(block)

    def _moved(self, part: Transfer, tile: int) -> PlaceKey:
        """Return what a transfer uses of a tile."""
        return (self.plan.tiles[tile].memory, self.plan.places[tile].base + part.sram, part.size)

    def _computed(self, block: Block) -> Iterator[_Step]:
        is_gemm = block.nest.kind == Kind.GEMM
        is_tensor = block.operation is not None and isinstance(block.operation.right, Access)
        known = self._nests.get(key := (id(block.steps), "gemm" if is_gemm else "tensor" if is_tensor else "one"))
        if known is None:
            known = self._nests[key] = self._fold(block, is_gemm, is_tensor)
        nests, low, high = known
        tiles = block.tiles if is_gemm else block.tiles[: 1 + is_tensor]
        bases = [self.plan.places[tile].base for tile in tiles] + [0] * (3 - len(tiles))
        base = (bases[0] + low[0], bases[1] + low[1], bases[2] + low[2])
        used = tuple(
            (self.plan.tiles[tile].memory, base[column], high[column] - low[column] + 1)
            for column, tile in enumerate(tiles)
        )
        interval = 1 if is_gemm or block.operation is None else self.costs.alu_immediate
        interval = self.costs.alu_tensor if is_tensor else interval
        for number, uops, turns in nests:
            cycles = interval * uops * turns + self.costs.pipeline
            yield _Step(COMPUTE, cycles, 0, (), (number, uops, base), used, used[:1])

    def _fold(self, block: Block, is_gemm: bool, is_tensor: bool) -> _Folded:
        """Fold the steps of a block."""
        columns = 3 if is_gemm else 2 if is_tensor else 1
        steps = np.zeros((len(block.steps), 3), np.int64)
        steps[:, :columns] = block.steps[:, :columns]
        low = steps.min(axis=0)
        as_gemm = is_gemm or block.operation is None
        relative = np.ascontiguousarray(steps - low)
        nests = _folded(relative.tobytes(), factor_limits(self.config, as_gemm), self.uop_depth)
        folded = [
            (self._numbers.setdefault(nest.uops, len(self._numbers)), len(nest.uops), nest.iter_out * nest.iter_in)
            for nest in nests
        ]
        return folded, tuple(low.tolist()), tuple(steps.max(axis=0).tolist())

    def _load_time(self, part: Transfer, memory: str, source: BufferInfo) -> tuple[int, int]:
        types = {"inp": MemoryType.INP, "wgt": MemoryType.WGT, "acc": MemoryType.ACC}
        memory_type = MemoryType.ACC_8BIT if memory == "acc" and source.dtype == "int8" else types[memory]
        first = self._in_burst(part, source)
        key = (memory_type, first, part.columns, part.rows, part.stride, part.pads)
        if key not in self._times:
            load = Load(
                memory_type=memory_type, dram_base=first, x_size=part.columns,
                y_size=part.rows, x_stride=part.stride, y_pad_0=part.pads[0], y_pad_1=part.pads[1],
                x_pad_0=part.pads[2], x_pad_1=part.pads[3],
            )  # fmt: skip
            self._times[key] = self.costs.cycles(load, self.config), self.costs.data_cycles(load, self.config)
        return self._times[key]

    def _in_burst(self, part: Transfer, buffer: BufferInfo) -> int:
        """Where in a burst a transfer begins, in elements; buffers begin at pages, so the offset alone tells."""
        size = prod(buffer.lanes) * np.dtype(buffer.dtype).itemsize
        return part.dram % max(self.costs.burst_bytes // size, 1)

    def _store_time(self, part: Transfer, target: BufferInfo) -> tuple[int, int]:
        first = self._in_burst(part, target)
        key = (MemoryType.OUT, first, part.columns, part.rows, part.stride, part.pads)
        if key not in self._times:
            store = Store(dram_base=first, x_size=part.columns, y_size=part.rows, x_stride=part.stride)
            self._times[key] = self.costs.cycles(store, self.config), 0
        return self._times[key]

    def _with_uops(self, steps: list[_Step]) -> Iterator[_Step]:
        """Load micro-ops as the program builder does: all at once if they fit, else each kernel before its use."""
        kernels = list(dict.fromkeys(step.kernel for step in steps if step.kernel is not None))
        sizes = {kernel: kernel[1] for kernel in kernels}
        begins = dict(zip(kernels, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        total = sum(sizes.values())
        resident: dict[KernelKey, int] = {}
        cursor = 0
        if 0 < total <= self.uop_depth:
            yield self._uop_load(0, total)
            resident = dict(begins)
        for step in steps:
            kernel = step.kernel
            if kernel is not None and kernel not in resident:
                cursor = 0 if cursor + sizes[kernel] > self.uop_depth else cursor
                end = cursor + sizes[kernel]
                resident = {known: at for known, at in resident.items() if at >= end or at + sizes[known] <= cursor}
                resident[kernel] = cursor
                yield self._uop_load(begins[kernel], sizes[kernel])
                cursor = end
            yield step

    def _uop_load(self, first: int, count: int) -> _Step:
        load = Load(memory_type=MemoryType.UOP, dram_base=first, x_size=count, y_size=1, x_stride=count)
        return _Step(COMPUTE, self.costs.cycles(load, self.config), self.costs.data_cycles(load, self.config))

    def _with_dependencies(self, steps: list[_Step]) -> list[_Step]:
        """Let every step wait for the last one of each neighbouring module that uses a place it uses."""
        places = list(dict.fromkeys(place for step in steps for place in (*step.reads, *step.writes)))
        of_memory = {memory: [place for place in places if place[0] == memory] for memory in ("inp", "wgt", "acc")}
        shared = {place: [other for other in of_memory[place[0]] if _overlap(place, other)] for place in places}
        read = {place: [-1, -1, -1] for place in places}
        written = {place: [-1, -1, -1] for place in places}
        for number, step in enumerate(steps):
            latest = [-1, -1, -1]
            for place in step.reads:
                for other in shared[place]:
                    latest = list(map(max, latest, written[other]))
            for place in step.writes:
                for other in shared[place]:
                    latest = list(map(max, latest, written[other], read[other]))
            step.after = tuple(
                earlier for module, earlier in enumerate(latest) if module != step.module and earlier >= 0
            )
            for place in step.reads:
                read[place][step.module] = number
            for place in step.writes:
                written[place][step.module] = number
        return steps


@lru_cache(maxsize=8)
def _known_times(config: VTAConfig, costs: CycleCosts) -> dict[tuple[object, ...], tuple[int, int]]:
    """Return the times of transfers counted so far: cycles, and those of the bus."""
    return {}


def _overlap(left: PlaceKey, right: PlaceKey) -> bool:
    return left[1] < right[1] + right[2] and right[1] < left[1] + left[2]


@lru_cache(maxsize=4096)
def _folded(relative: bytes, limits: tuple[int, int, int], uop_depth: int) -> list[LoopNest]:
    return compress_all(np.frombuffer(relative, np.int64).reshape(-1, 3), limits, uop_depth)


def _run(steps: list[_Step], costs: CycleCosts) -> int:
    """Run the modules, the bus and fetch, event by event, as ``time_program`` does."""
    members: list[list[int]] = [[], [], []]
    position = []
    for number, step in enumerate(steps):
        position.append(len(members[step.module]))
        members[step.module].append(number)
    next_of = [0, 0, 0]
    free = [0, 0, 0]
    starts = [-1] * len(steps)
    ends = [-1] * len(steps)
    handed_out: list[int] = []
    bus_free = 0
    count = len(steps)
    done = 0
    while done < count:
        fetch = -1
        index = len(handed_out)
        if index < count:
            fetch = handed_out[-1] + 1 if handed_out else 0
            module = steps[index].module
            if position[index] >= costs.queue_depth:
                start = starts[members[module][position[index] - costs.queue_depth]]
                fetch = -1 if start < 0 else max(fetch, start + 1)
        best, chosen = -1, -1
        for module in (LOAD, COMPUTE, STORE):
            if next_of[module] == len(members[module]):
                continue
            number = members[module][next_of[module]]
            if number >= index:
                continue
            time = free[module] if free[module] > handed_out[number] else handed_out[number]
            for earlier in steps[number].after:
                if ends[earlier] < 0:
                    break
                if ends[earlier] > time:
                    time = ends[earlier]
            else:
                if chosen < 0 or time < best:
                    best, chosen = time, module
        if fetch >= 0 and (chosen < 0 or fetch <= best):
            if index % costs.fetch_instructions == 0:
                chunk = min(costs.fetch_instructions, count - index)
                bus_free = max(fetch + costs.read_latency, bus_free) + costs.fetch_cycles(chunk)
                fetch = max(bus_free, fetch)
            handed_out.append(fetch)
            continue
        number = members[chosen][next_of[chosen]]
        next_of[chosen] += 1
        step = steps[number]
        end = best + step.cycles
        if step.bus:
            bus_free = max(best + costs.read_latency, bus_free) + step.bus
            end = max(end, bus_free)
        starts[number], ends[number], free[chosen] = best, end, end
        done += 1
    return max(ends, default=0)
