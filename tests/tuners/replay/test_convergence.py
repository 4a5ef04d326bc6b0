"""Trials to the best configuration: counted by hand, and of tuners on small landscapes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.convergence import Convergence, converge, quartiles
from tvm_ext.tuners.replay.recorded import RecordedLandscape
from tvm_ext.tuners.space import ConfigSpace, Knob, Vector

LINE = ConfigSpace([Knob("x", tuple(range(12)))])


def line(cycles: list[int]) -> RecordedLandscape:
    return RecordedLandscape("line", LINE, np.array(cycles, np.uint32), 1.0)


@dataclass
class InOrder:
    """Suggests the configurations of a line in order, three at a time."""

    given: int = 0
    measured: list[Measurement] = field(default_factory=list)
    validity: Any = None

    def tuner(self, space: ConfigSpace, seed: int, oracle: Any = None, description: Any = None) -> InOrder:
        return self

    def suggest(self, count: int) -> list[Vector]:
        first, self.given = self.given, min(self.given + min(count, 3), LINE.size)
        return [(index,) for index in range(first, self.given)]

    def update(self, results: Any) -> None:
        self.measured += results


def run(cycles: list[int], budget: int = 750) -> tuple[Convergence, InOrder]:
    order: Any = InOrder()
    return converge("in order", order, line(cycles), 5, budget), order


def test_trials_are_counted_up_to_the_best_that_one_included() -> None:
    found, order = run([0, 40, 0, 30, 35, 0, 0, 10, 20, 50, 60, 70])
    assert (found.tuner, found.landscape, found.seed) == ("in order", "line", 5)
    assert (found.trials, found.measured, found.invalid) == (8, 8, 4)
    assert found.rises == ((2, 10 / 40), (4, 10 / 30), (8, 1.0))
    assert [row.seconds for row in order.measured[:3]] == [None, 40.0, None]
    assert [found.speed_after(trials) for trials in (0, 1, 2, 7, 8, 750)] == [0.0, 0.0, 0.25, 0.25 / 0.75, 1.0, 1.0]
    assert (found.trials_to(0.25), found.trials_to(0.3), found.trials_to(0.95)) == (2, 4, 8)


def test_a_budget_that_is_spent_finds_nothing() -> None:
    found, order = run([0, 40, 0, 30, 35, 0, 0, 10, 20, 50, 60, 70], budget=5)
    assert (found.trials, found.measured, found.invalid, len(order.measured)) == (None, 5, 2, 5)
    assert found.trials_to(0.95, budget=5) == 5
    assert run([0] * 3 + [1] + [0] * 8, budget=0)[0] == Convergence("in order", "line", 5, None, 0, 0, ())


def test_runs_are_written_and_read() -> None:
    found, _ = run([0, 40, 0, 30, 35, 0, 0, 10, 20, 50, 60, 70])
    assert Convergence.from_dump(json.loads(json.dumps(found.dump()))) == found


def test_runs_that_find_nothing_count_as_the_budget() -> None:
    def of(trials: int | None) -> Convergence:
        return Convergence("t", "l", 0, trials, 0, 0, ())

    assert quartiles([of(10), of(20), of(30), of(40), of(None)], budget=100) == (30.0, 20.0)
    assert quartiles([of(None)] * 3) == (750.0, 0.0)
    assert quartiles([of(7)]) == (7.0, 0.0)


@pytest.mark.parametrize("name", ["random", "autotvm_sa", "validity", "validity_asked"])
def test_tuners_find_the_best_of_a_small_landscape(name: str) -> None:
    """Every configuration is tried once at most, and an oracle is asked only by those that have use for one."""
    space = ConfigSpace([Knob("x", tuple(range(9))), Knob("y", tuple(range(7)))])
    x, y = np.divmod(np.arange(space.size), 7)
    cycles = np.where(x + y > 9, 0, 100 + 10 * (x - 3) ** 2 + 7 * (y - 5) ** 2)
    landscape = RecordedLandscape("bowl", space, cycles[np.random.default_rng(1).permutation(space.size)], 1.0)
    first = converge(name, recipe(name, 8, 8), landscape, 0, oracle=landscape.works)
    assert first == converge(name, recipe(name, 8, 8), landscape, 0, oracle=landscape.works)
    assert first.trials == first.measured <= space.size
    assert first.rises[-1] == (first.trials, 1.0)
    assert (first.asked > 0) == name.startswith("validity")
