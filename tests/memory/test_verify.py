from __future__ import annotations

from dataclasses import replace

import pytest

from tests.memory.graphs import BRANCHES
from tvm_ext.errors import GraphError
from tvm_ext.memory import ArenaPlan, OrderPlan, plan_order, verify_arena, verify_order

GOOD = plan_order(BRANCHES)
INTERVALS = {"a": (0, 2), "b": (1, 3), "c": (3, 4)}
SIZES = {"a": 10, "b": 20, "c": 10}


def arena(alignment: int = 1, size: int = 40, **offsets: int) -> ArenaPlan:
    return ArenaPlan(offsets, size, 0, alignment, "by hand")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": (0, 1, 4, 2, 5, 3, 6, 8, 7)}, r"node 8 \('t8'\) runs before node 7"),
        ({"order": GOOD.order[:-1]}, r"node 8 \('t8'\) is missing"),
        ({"peak": 15}, "its peak is 16 bytes, the plan says 15"),
        ({"order": (0, 1, 2, 3, 4, 5, 6, 7, 8)}, "its peak is 28 bytes, the plan says 16"),
        ({"lower_bound": 17}, "16 bytes is below the lower bound 17"),
    ],
)
def test_wrong_orders_are_found(change, message):
    verify_order(GOOD, BRANCHES)
    with pytest.raises(GraphError, match=message):
        verify_order(replace(GOOD, **change), BRANCHES)


def test_an_order_worse_than_the_given_one_is_found():
    worse = OrderPlan((0, 2, 1, 3, 4, 5, 6, 7, 8), 28, 28, 16, "by hand", (9,), 0, 0.0, 0.0)
    verify_order(worse, BRANCHES)
    graph = replace(BRANCHES, nodes=BRANCHES.nodes)
    best = plan_order(graph)
    reordered = replace(
        graph,
        nodes=tuple(replace(graph.nodes[old], index=new) for new, old in enumerate(best.order)),
    )
    back = tuple(best.order.index(old) for old in range(9))
    with pytest.raises(GraphError, match="28 bytes is above the 16 of the given order"):
        verify_order(OrderPlan(back, 28, 16, 16, "by hand", (9,), 0, 0.0, 0.0), reordered)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (arena(a=0, b=5, c=0), r"'a' \(bytes 0 to 10\) and 'b' \(bytes 5 to 25\) overlap .* steps 1 to 2"),
        (arena(a=0, b=10, c=20), r"'b' \(bytes 10 to 30\) and 'c' .* at steps 3 to 3"),
        (arena(a=0, b=10), "'c' has no offset"),
        (arena(a=0, b=10, c=31), "'c' takes bytes 31 to 41, outside of the arena of 40 bytes"),
        (arena(a=-1, b=10, c=0), "outside"),
        (arena(a=0, b=10, c=0, alignment=4), "offset 10 of storage 'b' is not a multiple of 4"),
    ],
)
def test_wrong_arenas_are_found(plan, message):
    verify_arena(arena(a=0, b=10, c=0), INTERVALS, SIZES)
    with pytest.raises(GraphError, match=message):
        verify_arena(plan, INTERVALS, SIZES)


def test_taking_over_is_checked():
    sizes = {"a": 10, "b": 20, "c": 20}
    verify_arena(arena(a=20, b=0, c=0), INTERVALS, sizes, {"c": "b"})
    with pytest.raises(GraphError, match="'c' takes over 'b' but lies at byte 20, not at 0"):
        verify_arena(arena(a=20, b=0, c=20), INTERVALS, sizes, {"c": "b"})
    with pytest.raises(GraphError, match="overlap"):  # a is needed when b begins
        verify_arena(arena(a=0, b=0, c=20), INTERVALS, {"a": 10, "b": 10, "c": 10}, {"b": "a"})
