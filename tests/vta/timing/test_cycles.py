"""The cycle model against one that steps through every cycle, and against what must hold of all runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.vta.random_programs import closing, random_program
from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Gemm, Instruction, Load, MemoryType, decode_program
from tvm_ext.backends.vta.isa.modules import Module, Queue, module_of, pops, pushes
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.backends.vta.timing.costs import COSTS, CycleCosts, costs_named
from tvm_ext.backends.vta.timing.cycles import Interval, Timeline, time_program, verify_timeline
from tvm_ext.errors import GraphError, VTAProgramError

CHISEL = costs_named("chisel")


def step_through(program: list[Instruction], config: VTAConfig, costs: CycleCosts) -> list[tuple[int, int]]:
    """Step a clock; at each tick fetch hands out one instruction and each module starts one, if they can."""
    module_queues: dict[Module, list[int]] = {module: [] for module in Module}
    busy_until = dict.fromkeys(Module, 0)
    arriving: dict[Queue, list[int]] = {queue: [] for queue in Queue}
    spans: dict[int, tuple[int, int]] = {}
    fetched, buffered, fetch_at, bus_until, clock = 0, 0, 0, 0, 0
    while len(spans) < len(program):
        if fetched < len(program) and clock >= fetch_at:
            if not buffered and len(module_queues[module_of(program[fetched])]) < costs.queue_depth:
                buffered = min(costs.fetch_instructions, len(program) - fetched)
                bus_until = max(clock + costs.read_latency, bus_until) + costs.fetch_cycles(buffered)
                fetch_at = bus_until
            elif buffered and len(module_queues[module_of(program[fetched])]) < costs.queue_depth:
                module_queues[module_of(program[fetched])].append(fetched)
                fetched, buffered, fetch_at = fetched + 1, buffered - 1, clock + 1
        for module in Module:
            if not module_queues[module] or busy_until[module] > clock:
                continue
            index = module_queues[module][0]
            wanted = [arriving[queue] for queue in pops(program[index]).values()]
            if not all(queue and queue[0] <= clock for queue in wanted):
                continue
            module_queues[module].pop(0)
            for queue in wanted:
                queue.pop(0)
            instruction = program[index]
            end = clock + costs.cycles(instruction, config)
            if isinstance(instruction, Load) and instruction.x_size * instruction.y_size:
                bus_until = max(clock + costs.read_latency, bus_until) + costs.data_cycles(instruction, config)
                end = max(end, bus_until)
            busy_until[module] = end
            for out in pushes(instruction).values():
                arriving[out].append(end)
            spans[index] = (clock, end)
        clock += 1
        assert clock < 1_000_000
    return [spans[index] for index in range(len(program))]


@pytest.mark.parametrize("name", COSTS)
def test_stepping_through_every_cycle(name: str) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        config = VTAConfig()
        program = random_program(rng, config, length=int(rng.integers(0, 25))).instructions
        # Small chunks and queues, so that fetching matters.
        costs = replace(costs_named(name), fetch_instructions=int(rng.integers(1, 20)))
        timeline = time_program(program, config, costs)
        verify_timeline(timeline, program, config)
        spans = [(interval.start, interval.end) for interval in timeline.intervals]
        assert spans == step_through(program, config, costs)


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings(path: Path) -> None:
    recording = load_recording(path)
    program = decode_program(recording.words, recording.config)
    result = ReferenceSimulator(recording.config).run(recording.words, recording.before, recording.base)
    for costs in COSTS.values():
        timeline = time_program(program, recording.config, costs)
        verify_timeline(timeline, program, recording.config)
        assert timeline.gemm_steps == result.steps["gemm"]
        assert timeline.macs == timeline.gemm_steps * recording.config.macs_per_step
        assert timeline.bytes_moved == {**result.bytes_moved, "instructions": 16 * len(program)}
        assert sum(result.steps.values()) < timeline.busy["compute"] <= timeline.cycles
        assert timeline.seconds == timeline.cycles / (costs.clock_mhz * 1e6)


def test_a_shallow_queue_stalls_fetching() -> None:
    config = VTAConfig()
    gemm = Gemm(uop_end=1, iter_out=100, iter_in=1)
    program = [gemm] * 6 + [Load(memory_type=MemoryType.INP, dram_base=256, y_size=1, x_size=1), *closing()]
    deep, shallow = (time_program(program, config, replace(CHISEL, queue_depth=depth)) for depth in (512, 2))
    assert deep.intervals[6].start < deep.intervals[1].start
    # The seventh instruction is handed out after the sixth, which finds a place when the fourth has started.
    assert shallow.intervals[6].start == shallow.intervals[3].start + 2
    assert deep.intervals[5].end == shallow.intervals[5].end
    spans = step_through(program, config, replace(CHISEL, queue_depth=2))
    assert [(interval.start, interval.end) for interval in shallow.intervals] == spans


def test_double_buffering_hides_loads() -> None:
    """The same work, with one half of the input memory or two."""
    config = VTAConfig()
    load = Load(dram_base=256, y_size=1, x_size=200, x_stride=200, push_next=True)
    gemm = Gemm(uop_end=1, iter_out=20, iter_in=20, pop_prev=True, push_prev=True)
    turns = 12

    def program(buffers: int) -> list[Instruction]:
        body: list[Instruction] = []
        for turn in range(turns):
            body += [replace(load, pop_next=turn >= buffers), gemm]
        return body + [replace(load, x_size=0, pop_next=True)] * buffers + closing()

    single, double = (time_program(program(buffers), config, CHISEL) for buffers in (1, 2))
    assert single.cycles > turns * (400 + 425)
    assert double.cycles < (turns + 1) * 426 + 400
    assert double.occupancy > 0.85 > single.occupancy


def test_deadlocks() -> None:
    with pytest.raises(VTAProgramError, match="instruction 3 can never start: it waits for a token that is not coming"):
        time_program([Gemm(pop_prev=True), *closing()], VTAConfig(), CHISEL)
    program = [Gemm(pop_prev=True), Gemm(), Gemm(), Load(push_next=True), *closing()]
    time_program(program, VTAConfig(), CHISEL)
    with pytest.raises(VTAProgramError, match=r"instruction 0 .* stalls at instruction 2, whose module has a full"):
        time_program(program, VTAConfig(), replace(CHISEL, queue_depth=2))


def test_the_verifier_finds_what_cannot_be() -> None:
    config = VTAConfig()
    program: list[Instruction] = [
        Load(dram_base=256, y_size=1, x_size=4, push_next=True),
        Gemm(uop_end=1, iter_out=9, iter_in=1, pop_prev=True),
        Gemm(uop_end=1, iter_out=9, iter_in=1),
        *closing(),
    ]
    good = time_program(program, config, CHISEL)
    verify_timeline(good, program, config)

    def broken(index: int, **changes: int) -> Timeline:
        intervals = list(good.intervals)
        intervals[index] = replace(intervals[index], **changes)  # type: ignore[arg-type]
        return replace(good, intervals=tuple(intervals))

    first, second = good.intervals[1:3]
    for timeline, message in (
        (broken(2, start=first.end - 1), "instruction 2 starts at .*, before 1 ends"),
        (broken(2, end=second.end - 1), "instruction 2 takes 15 cycles, which is too few"),
        (broken(1, start=good.intervals[0].end - 1), "token 0 of the queue load to compute is taken"),
        (broken(1, instruction=2), "interval 1 is that of instruction 2"),
        (replace(good, intervals=good.intervals[:-1]), "has 6 intervals for 7 instructions"),
    ):
        with pytest.raises(GraphError, match=message):
            verify_timeline(timeline, program, config)


def test_loads_share_the_bus() -> None:
    config = VTAConfig()
    load = Load(dram_base=256, y_size=1, x_size=100, x_stride=100)
    program = [load, replace(load, memory_type=MemoryType.ACC, dram_base=64), *closing()]
    timeline = time_program(program, config, CHISEL)
    inputs, accumulators = timeline.intervals[:2]
    assert inputs.start + 1 == accumulators.start
    assert accumulators.end == inputs.end + CHISEL.data_cycles(program[1], config)  # type: ignore[arg-type]
    faked = Timeline(CHISEL, (Interval(0, Module.LOAD, "load inp", 0, 226),), 0, 0, {})
    verify_timeline(faked, [load], config)
