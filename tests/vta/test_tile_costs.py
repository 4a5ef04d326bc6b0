"""What VTA expects of tiles before anything is counted, beside what was counted."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.bench_hardware_aware import described, landscapes
from scripts.glimpse.family import DESIGNS, LAYERS, describe, template
from scripts.glimpse.landscapes import load
from scripts.vta_landscapes import template as of_table
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.convergence import converge
from tvm_ext.tuners.validity import first_of_each


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"))


@pytest.mark.parametrize("number", [3, 48, 59, 106, 107])
def test_layers_of_the_table_are_ordered_as_their_cycles(number: int) -> None:
    landscape, cost = landscapes()[number], described(number).cost
    assert cost is not None
    at = np.flatnonzero(landscape.cycles)
    expected, counted = cost(landscape.space.vectors(at)), landscape.cycles[at].astype(np.float64)
    assert (expected > 0).all()
    assert np.corrcoef(ranks(expected), ranks(counted))[0, 1] > 0.6
    # Of the tenth that is thought fastest one is nearly the best.
    first = np.argsort(expected, kind="stable")[: max(len(at) // 10, 1)]
    assert counted[first].min() <= 1.05 * counted.min()


@pytest.mark.parametrize("design", ["1x16d", "2x32b", "1x32a"])
def test_designs_of_other_memories_and_buses(design: str) -> None:
    layer = "resnet18-8" if (design, "resnet18-8") in load() else "alexnet-3"
    landscape, cost = load()[design, layer], describe(DESIGNS[design], LAYERS[layer]).cost
    assert cost is not None
    at = np.flatnonzero(landscape.cycles)
    expected, counted = cost(landscape.space.vectors(at)), landscape.cycles[at].astype(np.float64)
    assert np.corrcoef(ranks(expected), ranks(counted))[0, 1] > 0.7
    assert np.abs(np.median(np.log(expected / counted))) < 0.25


def test_equal_programs_cost_the_same_and_all_configurations_have_a_cost() -> None:
    row, cost = (
        template(DESIGNS["1x16a"], LAYERS["resnet18-11"]),
        describe(DESIGNS["1x16a"], LAYERS["resnet18-11"]).cost,
    )
    assert cost is not None
    everything = row.space.vectors(np.arange(row.space.size))
    costs = cost(everything)
    assert np.isfinite(costs).all()  # of those that do not fit, too: a tuner without an oracle asks for them
    same: dict[object, set[float]] = {}
    for structure, value in zip(row.structures(everything), costs.tolist(), strict=True):
        same.setdefault(structure, set()).add(value)
    assert all(len(values) == 1 for values in same.values())
    assert cost(everything[:0]).shape == (0,)


@pytest.mark.parametrize("number", [48, 107])
def test_a_tuner_that_expects_finds_the_best_at_once(number: int) -> None:
    landscape = landscapes()[number]
    structures = of_table(number).structures

    def trials(name: str) -> list[int]:
        runs = [
            converge(
                name, recipe(name), landscape, seed, oracle=first_of_each(landscape.works, structures),
                description=described(number),
            )
            for seed in (100, 101)
        ]  # fmt: skip
        return [run.trials or 750 for run in runs]

    expected, exhaustive = trials("validity_expected"), trials("validity_exhaustive")
    assert max(expected) < min(exhaustive)
