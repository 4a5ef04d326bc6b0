"""Count the cycles of a plan without making its program: what the tuner asks thousands of times.

The same costs and the same order of events as ``cycles.time_program``, but without micro-ops, words and tokens: an
instruction waits for the last one of a neighbouring module that uses a tile it uses. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.costs import CycleCosts
from tvm_ext.vta.isa import Load, MemoryType, MicroOp, Store
from tvm_ext.vta.loop_nests import LoopNest, compress_all, factor_limits
from tvm_ext.vta.nests import Access, BufferInfo, Kind
from tvm_ext.vta.program import UOP_DEPTH
from tvm_ext.vta.transfers import Transfer
from tvm_ext.vta.unrolling import Block, Plan

LOAD, COMPUTE, STORE = range(3)
PlaceKey = tuple[str, int, int]
KernelKey = tuple[int, int, tuple[int, int, int]]  # number and length of the micro-ops, and what is added to them


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
        self._nests: dict[tuple[int, str], tuple[list[tuple[int, int, int]], tuple[int, int, int]]] = {}
        self._numbers: dict[tuple[MicroOp, ...], int] = {}
        self._times: dict[tuple[object, ...], tuple[int, int]] = {}

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
            places = [self._place(tile) for tile in block.tiles]
            if block.nest.kind == Kind.LOAD:
                target = places[0]
                if target is None or self.plan.places[block.tiles[0]].is_loaded:
                    continue
                module = COMPUTE if target[0] == "acc" else LOAD
                for part in block.transfers:
                    cycles, bus = self._load_time(part, target[0], block.nest.sources[0].buffer)
                    yield _Step(module, cycles, bus, writes=(target,))
            elif block.nest.kind == Kind.STORE:
                for part in block.transfers:
                    cycles, _ = self._store_time(part)
                    yield _Step(STORE, cycles, reads=tuple(place for place in places[1:] if place is not None))
            else:
                yield from self._computed(block, places)

    def _place(self, tile: int) -> PlaceKey | None:
        if tile < 0:
            return None
        described = self.plan.tiles[tile]
        return (described.memory, self.plan.places[tile].base, described.size)

    def _computed(self, block: Block, places: list[PlaceKey | None]) -> Iterator[_Step]:
        is_gemm = block.nest.kind == Kind.GEMM
        is_tensor = block.operation is not None and isinstance(block.operation.right, Access)
        known = self._nests.get(key := (id(block.steps), "gemm" if is_gemm else "tensor" if is_tensor else "one"))
        if known is None:
            known = self._nests[key] = self._fold(block, is_gemm, is_tensor)
        nests, low = known
        bases = [0 if place is None else place[1] for place in places]
        if not is_gemm:
            bases = [bases[0], bases[1] if is_tensor else 0, 0]
        base = (bases[0] + low[0], bases[1] + low[1], bases[2] + low[2])
        used = tuple(place for place in places if place is not None)
        interval = 1 if is_gemm or block.operation is None else self.costs.alu_immediate
        interval = self.costs.alu_tensor if is_tensor else interval
        for number, uops, turns in nests:
            cycles = interval * uops * turns + self.costs.pipeline
            yield _Step(COMPUTE, cycles, 0, (), (number, uops, base), used, used[:1])

    def _fold(
        self, block: Block, is_gemm: bool, is_tensor: bool
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int, int]]:
        """Fold the steps of a block: number of the micro-ops, how many, and turns of the loops, for each loop nest."""
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
        return folded, (int(low[0]), int(low[1]), int(low[2]))

    def _load_time(self, part: Transfer, memory: str, source: BufferInfo) -> tuple[int, int]:
        types = {"inp": MemoryType.INP, "wgt": MemoryType.WGT, "acc": MemoryType.ACC}
        memory_type = MemoryType.ACC_8BIT if memory == "acc" and source.dtype == "int8" else types[memory]
        # Buffers begin at pages, so that bursts depend on the offset alone.
        key = (memory_type, part.dram % self.costs.burst_bytes, part.columns, part.rows, part.stride, part.pads)
        if key not in self._times:
            load = Load(
                memory_type=memory_type, dram_base=part.dram % self.costs.burst_bytes, x_size=part.columns,
                y_size=part.rows, x_stride=part.stride, y_pad_0=part.pads[0], y_pad_1=part.pads[1],
                x_pad_0=part.pads[2], x_pad_1=part.pads[3],
            )  # fmt: skip
            self._times[key] = self.costs.cycles(load, self.config), self.costs.data_cycles(load, self.config)
        return self._times[key]

    def _store_time(self, part: Transfer) -> tuple[int, int]:
        key = ("store", part.dram % self.costs.burst_bytes, part.columns, part.rows, part.stride)
        if key not in self._times:
            store = Store(
                dram_base=part.dram % self.costs.burst_bytes, x_size=part.columns, y_size=part.rows,
                x_stride=part.stride,
            )  # fmt: skip
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
        shared = {
            place: [other for other in places if other[0] == place[0] and _overlap(place, other)] for place in places
        }
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
