"""What other runs measured counts: of sketches alike but for a loop, and as TVM's own search records them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipes import recipe


def _kernel() -> tvm.IRModule:
    a, b = te.placeholder((32, 24), name="a"), te.placeholder((24, 48), name="b")
    k = te.reduce_axis((0, 24), "k")
    c = te.compute((32, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((32, 48), lambda i, j: te.max(c[i, j], 0.0), name="d")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def _sketches(mod: tvm.IRModule) -> list[Schedule]:
    """Two that differ in the loop that the last block goes to, and a third that leaves it where it is."""
    found = []
    for place in (0, 1, None):
        schedule = Schedule(mod, seed=3)
        block, last = schedule.get_sblock("c"), schedule.get_sblock("d")
        i, j, k = schedule.get_loops(block)
        rows = schedule.split(i, schedule.sample_perfect_tile(i, n=2, max_innermost_factor=16))
        columns = schedule.split(j, schedule.sample_perfect_tile(j, n=2, max_innermost_factor=16))
        schedule.reorder(rows[0], columns[0], k, rows[1], columns[1])
        if place is not None:
            schedule.reverse_compute_at(last, (rows[0], columns[0])[place])
        root = schedule.get_sblock("root")
        schedule.annotate(root, "meta_schedule.parallel", 32)
        found.append(schedule)
    return found


def _strategy(mod: tvm.IRModule, database: ms.Database, trials: int = 12) -> Any:
    made = TunerStrategy(recipe("random"), 0)._inst
    made.mod = mod
    made.pre_tuning(trials, trials, _sketches(mod), database)
    return made


def _traces(mod: tvm.IRModule) -> tuple[list[Trace], list[int]]:
    """Choose traces of all sketches; gives how many of each."""
    first = _strategy(mod, ms.database.MemoryDatabase())
    return [candidate.sch.trace for candidate in first.generate_measure_candidates()], list(first._given)


def _resumed(mod: tvm.IRModule, traces: list[Trace]) -> Any:
    database, target = ms.database.MemoryDatabase(), native_target()
    workload = database.commit_workload(mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
    for trace in traces:
        database.commit_tuning_record(ms.database.TuningRecord(trace, workload, [0.001], target, arguments))
    return _strategy(mod, database, 100)


def test_records_go_to_the_sketch_that_they_are_of() -> None:
    mod = _kernel()
    traces, given = _traces(mod)
    again = _resumed(mod, traces)
    assert again.trials == len(traces)
    assert again._given == given
    assert [len(tuner.measurements) for _, tuner in again.sketches] == given


def test_records_of_which_tvm_removed_what_nothing_depends_on_are_known() -> None:
    mod = _kernel()
    traces, given = _traces(mod)
    simplified = [trace.simplified(remove_postproc=False) for trace in traces]
    assert any(len(one.insts) < len(other.insts) for one, other in zip(simplified, traces, strict=True))
    again = _resumed(mod, simplified)
    assert again.trials == len(traces)
    assert [len(tuner.measurements) for _, tuner in again.sketches] == given


def test_records_with_another_share_of_threads_count_and_are_not_measured_again() -> None:
    """TVM's mutators change a number that is none of our knobs: nothing is learnt of that, but it was measured."""
    mod = _kernel()
    changed = [_with_parts(mod, trace, 4) for trace in _traces(mod)[0]]
    again = _resumed(mod, changed)
    assert again.trials == len(changed)
    assert [len(tuner.measurements) for _, tuner in again.sketches] == [0, 0, 0]
    assert len(again._seen) == len(changed)


def _with_parts(mod: tvm.IRModule, trace: Trace, parts: int) -> Trace:
    instructions, decisions = trace.simplified(remove_postproc=False).as_json()
    for name, inputs, attributes, _ in instructions:
        if name == "Annotate" and "meta_schedule.parallel" in attributes:
            inputs[1] = parts
    schedule = Schedule(mod)
    Trace.apply_json_to_schedule([instructions, decisions], schedule)
    assert schedule.trace is not None
    return schedule.trace
