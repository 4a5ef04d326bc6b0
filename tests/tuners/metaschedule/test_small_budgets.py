"""With small budgets and several sketches a tuner searches, and does not only draw."""

from __future__ import annotations

import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tests.tuners.metaschedule.kernels import matmul, tiled
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipes import recipe


def _sketches(count: int) -> tuple[tvm.IRModule, list[Schedule]]:
    mod, found = matmul(64, 64, 64), []
    for number in range(count):
        schedule = Schedule(mod, seed=number + 1)
        tiled(schedule)
        if number:
            schedule.annotate(schedule.get_loops(schedule.get_sblock("c"))[0], "pragma_sketch", number)
        found.append(schedule)
    return mod, found


@pytest.mark.parametrize(
    ("sketches", "trials", "by_model"),
    [
        (1, 16, 0.7),
        (1, 64, 0.7),
        (2, 16, 0.4),
        (2, 32, 0.4),
        (3, 16, 0.2),
        (3, 32, 0.4),
        (3, 64, 0.5),
    ],
)
def test_the_model_proposes_most_of_a_small_budget(sketches: int, trials: int, by_model: float) -> None:
    mod, spaces = _sketches(sketches)
    made = TunerStrategy(recipe("chameleon"), 0)._inst  # the object itself, without TVM between
    made.mod = mod
    made.pre_tuning(trials, 64, spaces)  # as many at a time as MetaSchedule's default
    proposed, measured, batches = 0, [0] * sketches, []
    while True:
        before = [tuner.effort.iterations for _, tuner in made.sketches]
        candidates = made.generate_measure_candidates()
        if candidates is None:
            break
        batches.append(len(candidates))
        for number, _ in made._pending:
            measured[number] += 1
            proposed += made.sketches[number][1].effort.iterations > before[number]
        results = [
            ms.runner.RunnerResult([tvm.tirx.FloatImm("float32", 1e-6 * (1 + sum(vector)))], None)
            for _, vector in made._pending
        ]
        made.notify_runner_results(candidates, results)
    assert sum(measured) == sum(batches) == trials
    assert all(measured), "no sketch is left out"
    assert batches[0] <= trials // 2, "nothing is known when the first batch is drawn"
    assert proposed >= by_model * trials


def test_random_search_learns_nothing() -> None:
    """Not even where its batches are smaller than what it draws from."""
    mod, (schedule,) = _sketches(1)
    made = TunerStrategy(recipe("random"), 0)._inst
    made.mod = mod
    made.pre_tuning(16, 4, [schedule])
    ((_, tuner),) = made.sketches
    for _ in range(4):
        candidates = made.generate_measure_candidates()
        made.notify_runner_results(candidates, [ms.runner.RunnerResult([1e-6], None) for _ in candidates])
    assert made.trials == 16  # those that give a kernel once more are told to the tuner and cost none
    assert len(tuner.measurements) >= 16
    assert tuner.effort.iterations == 0
