"""The cycle model: three in-order queues, tokens as edges between them, one bus for everything that is read.

An instruction starts when its module is free, fetch has handed it out, and its tokens are there. Loads and fetch share
the bus in the order in which they ask for it. What this leaves out: refresh, banks and other users of DRAM.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import element_bytes, memory_name
from tvm_ext.backends.vta.isa.instructions import Gemm, Instruction, Load, MemoryType, Store
from tvm_ext.backends.vta.isa.modules import Module, Queue, module_of, pops, pushes
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import GraphError, VTAProgramError


@dataclass(frozen=True)
class Interval:
    """When an instruction keeps its module busy: from cycle ``start`` up to ``end``."""

    instruction: int
    module: Module
    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """A program's run, cycle by cycle.

    Attributes
    ----------
    costs : CycleCosts
    intervals : tuple of Interval
        One an instruction, in program order.
    gemm_steps : int
        Steps that multiply, each a cycle of the matrix unit.
    macs : int
        Multiply-adds of these.
    bytes_moved : dict
        Bytes by memory, as in :class:`SimulationResult`, and ``instructions``.
    """

    costs: CycleCosts
    intervals: tuple[Interval, ...]
    gemm_steps: int
    macs: int
    bytes_moved: dict[str, int]

    @cached_property
    def cycles(self) -> int:
        """From the start to the end of the last instruction."""
        return max((interval.end for interval in self.intervals), default=0)

    @property
    def seconds(self) -> float:
        """Time at the implementation's clock."""
        return self.cycles / (self.costs.clock_mhz * 1e6)

    @property
    def occupancy(self) -> float:
        """Share of the cycles in which the matrix unit multiplies."""
        return self.gemm_steps / self.cycles if self.cycles else 0.0

    @cached_property
    def busy(self) -> dict[str, int]:
        """Cycles in which each module is busy."""
        total = Counter({module.name.lower(): 0 for module in Module})
        for interval in self.intervals:
            total[interval.module.name.lower()] += interval.end - interval.start
        return dict(total)


def kind_of(instruction: Instruction) -> str:
    """Name an instruction for people: ``load inp``, ``gemm``, ``reset``, ``alu add``, ``wait`` for an empty one..."""
    if isinstance(instruction, Load | Store) and not instruction.x_size:
        return "wait"
    if isinstance(instruction, Load):
        return f"load {memory_name(instruction)}"
    if isinstance(instruction, Gemm) and instruction.reset_reg:
        return "reset"
    return instruction.OPCODE.name.lower()


def time_program(program: Sequence[Instruction], config: VTAConfig, costs: CycleCosts) -> Timeline:
    """Time a program that the simulators accept.

    Raises
    ------
    VTAProgramError
        If modules wait for each other for ever: for a token, or because fetching stalls before a full queue.
    """
    members: dict[Module, list[int]] = {module: [] for module in Module}
    for index, instruction in enumerate(program):
        members[module_of(instruction)].append(index)
    position = {index: at for module in Module for at, index in enumerate(members[module])}
    waiting = {module: deque(indices) for module, indices in members.items()}
    free = dict.fromkeys(Module, 0)
    tokens: dict[Queue, deque[int]] = {queue: deque() for queue in Queue}
    handed_out: list[int] = []
    starts: list[int | None] = [None] * len(program)
    intervals: list[Interval | None] = [None] * len(program)
    bus_free = 0

    def fetch_time() -> int | None:
        """When the next instruction can be handed out; None if a queue is full until something else starts."""
        index = len(handed_out)
        if index == len(program):
            return None
        time = handed_out[-1] + 1 if handed_out else 0
        module = module_of(program[index])
        if position[index] >= costs.queue_depth:
            start = starts[members[module][position[index] - costs.queue_depth]]
            return None if start is None else max(time, start + 1)
        return time

    def start_time(module: Module) -> int | None:
        """When the next instruction of a module can start; None if something must come first."""
        if not waiting[module] or waiting[module][0] >= len(handed_out):
            return None
        index = waiting[module][0]
        wanted = [tokens[queue] for queue in pops(program[index]).values()]
        if not all(wanted):
            return None
        return max(free[module], handed_out[index], *(queue[0] for queue in wanted))

    while any(waiting.values()):
        fetch = fetch_time()
        ready = [(time, module) for module in Module if (time := start_time(module)) is not None]
        if fetch is None and not ready:
            index = min(queue[0] for queue in waiting.values() if queue)
            raise VTAProgramError(
                f"instruction {index} can never start: {_stall(len(handed_out), len(program))}", instruction=index
            )
        if fetch is not None and (not ready or fetch <= min(ready)[0]):
            index = len(handed_out)
            if index % costs.fetch_instructions == 0:
                count = min(costs.fetch_instructions, len(program) - index)
                bus_free = max(fetch + costs.read_latency, bus_free) + costs.fetch_cycles(count)
                fetch = max(bus_free, fetch)
            handed_out.append(fetch)
            continue
        start, module = min(ready)
        index = waiting[module].popleft()
        instruction = program[index]
        for queue in pops(instruction).values():
            tokens[queue].popleft()
        end = start + costs.cycles(instruction, config)
        if isinstance(instruction, Load) and instruction.x_size and instruction.y_size:
            bus_free = max(start + costs.read_latency, bus_free) + costs.data_cycles(instruction, config)
            end = max(end, bus_free)
        for queue in pushes(instruction).values():
            tokens[queue].append(end)
        starts[index], free[module] = start, end
        intervals[index] = Interval(index, module, kind_of(instruction), start, end)
    multiplied = [i for i in program if isinstance(i, Gemm) and not i.reset_reg]
    steps = sum(step_count(gemm) for gemm in multiplied)
    done = tuple(interval for interval in intervals if interval is not None)
    return Timeline(costs, done, steps, steps * config.macs_per_step, bytes_moved(program, config))


def _stall(handed_out: int, instructions: int) -> str:
    if handed_out == instructions:
        return "it waits for a token that is not coming"
    return f"it waits for a token, and fetching stalls at instruction {handed_out}, whose module has a full queue"


def bytes_moved(program: Iterable[Instruction], config: VTAConfig) -> dict[str, int]:
    """Add up what instructions move: bytes by memory, and ``instructions``."""
    moved = dict.fromkeys(("uop", "wgt", "inp", "acc", "acc_8bit", "out", "instructions"), 0)
    for instruction in program:
        moved["instructions"] += 16
        if isinstance(instruction, Load | Store) and instruction.x_size and instruction.y_size:
            memory = "out" if isinstance(instruction, Store) else memory_name(instruction)
            memory = "acc_8bit" if instruction.memory_type == MemoryType.ACC_8BIT else memory
            size = element_bytes(instruction, config)
            moved[memory] += instruction.x_size * instruction.y_size * size
    return moved


def verify_timeline(timeline: Timeline, program: Sequence[Instruction], config: VTAConfig) -> None:
    """Check a timeline against what must hold of every run, without making one.

    Raises
    ------
    GraphError
        If a module runs two instructions at once or out of order, an instruction is shorter than it can be or takes a
        token before it was given, or more is read than the bus can move.
    """
    intervals = timeline.intervals
    if len(intervals) != len(program):
        raise GraphError(f"the timeline has {len(intervals)} intervals for {len(program)} instructions")
    previous: dict[Module, Interval] = {}
    given: dict[Queue, list[int]] = {queue: [] for queue in Queue}
    taken: dict[Queue, list[int]] = {queue: [] for queue in Queue}
    read = 0
    for index, (interval, instruction) in enumerate(zip(intervals, program, strict=True)):
        before = previous.get(interval.module)
        if interval.instruction != index or interval.module != module_of(instruction):
            raise GraphError(f"interval {index} is that of instruction {interval.instruction}")
        if before is not None and interval.start < before.end:
            raise GraphError(f"instruction {index} starts at {interval.start}, before {before.instruction} ends")
        if interval.end - interval.start < timeline.costs.cycles(instruction, config):
            raise GraphError(f"instruction {index} takes {interval.end - interval.start} cycles, which is too few")
        previous[interval.module] = interval
        for queue in pushes(instruction).values():
            given[queue].append(interval.end)
        for queue in pops(instruction).values():
            taken[queue].append(interval.start)
        if isinstance(instruction, Load) and instruction.x_size and instruction.y_size:
            read += timeline.costs.data_cycles(instruction, config)
    for queue in Queue:
        for number, time in enumerate(taken[queue]):
            if number >= len(given[queue]) or given[queue][number] > time:
                raise GraphError(f"token {number} of the queue {queue} is taken at cycle {time}, before it was given")
    if read > timeline.cycles:
        raise GraphError(f"loads keep the bus busy for {read} cycles of {timeline.cycles}")
