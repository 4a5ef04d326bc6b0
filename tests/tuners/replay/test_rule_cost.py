"""The rule's cost of simulated tiles, beside the rule itself."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.schedules.cpu.conv_tile import tile_cost
from tvm_ext.tuners.replay.rule_cost import costed_space, machine_row
from tvm_ext.tuners.replay.simulator import SimulatedMachine
from tvm_ext.tuners.replay.tasks import TASKS


@pytest.mark.parametrize("task", [TASKS[0], TASKS[7], TASKS[25]], ids=lambda task: task.name)
def test_costs_are_those_of_the_rule(task) -> None:
    space, cpu = costed_space(task), SimulatedMachine()
    vectors = space.random(np.random.default_rng(0), 300)
    assert space.cost is not None
    for vector, found in zip(vectors, space.cost(vectors), strict=True):
        values = space.values(vector)
        filters, columns = values["tile_f"][2], values["tile_y"][2] * values["tile_x"][2]
        reduction = values["tile_rc"][1] * values["tile_ry"][1] * values["tile_rx"][1]
        wide = -(-filters // cpu.lanes)
        if columns * wide + wide + 1 >= cpu.registers:
            assert found == np.inf
            continue
        slots = tile_cost(task.output_size**2, (columns, wide), reduction, machine_row(cpu))
        assert found == pytest.approx(slots * wide * cpu.lanes / filters)
    assert np.isfinite(space.cost(vectors)).any()
