"""What running in parts takes: added up by hand, and never less than the rows that are computed twice."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.memory.test_patches import Chain, chains
from tvm_ext.memory.part_costs import EFFICIENCY, PartCosts
from tvm_ext.memory.patches import RowNode, RowReach, more_seconds, plans, seconds_of

COSTS = PartCosts(flops=1e9, kernel_seconds=1e-6, bandwidth=1e10, near=1000)


def test_sum_by_hand() -> None:
    """Two convolutions in two strips of 4 rows, with one row of halo each way: 10 rows of the first one for 8."""
    nodes = [
        RowNode("a", (("x", RowReach()),), 8, 4, 1000.0, is_kernel=True, weight_bytes=600),
        RowNode("b", (("a", RowReach(3, 1, 1)),), 8, 4, 3000.0, is_kernel=True, weight_bytes=700),
        RowNode("c", (("b", RowReach()),), 8, 4, 10.0),
        RowNode("results", (("c", None),), 1, 0),
    ]
    (plan,) = [
        plan for plan in plans(nodes, {"x": 8}, {"x": 4}) if (len(plan.strips), plan.first, plan.last) == (2, 0, 2)
    ]
    whole = 8 * 4010 / (EFFICIENCY * 1e9)
    assert seconds_of(nodes, COSTS) == pytest.approx(whole)
    halo = 2 * 1000 / (EFFICIENCY * 1e9)
    assert more_seconds(plan, nodes, COSTS) == pytest.approx(halo + 2e-6 + 1300 / 1e10)


@given(chains())
def test_calls_and_weights_come_on_top(chain: Chain) -> None:
    nodes, inputs = chain
    for plan in plans(nodes, inputs, {"x": 4}):
        longer = more_seconds(plan, nodes, COSTS)
        assert longer >= (plan.work - 1) * seconds_of(nodes, COSTS) * (1 - 1e-9) - 1e-15
