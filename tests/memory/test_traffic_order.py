from __future__ import annotations

import random

import pytest

from tests.memory.graphs import large_graph, marked_graph, random_graph, stacked_cells
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.graph import check_order, count_topological_orders, topological_orders
from tvm_ext.memory import off_chip_traffic, plan_order, plan_traffic_order
from tvm_ext.memory.work import SECOND


@pytest.mark.parametrize("tile", [None, 2])
def test_small_graphs_are_near_the_best_order(tile):
    exact = tried = 0
    for seed in range(120):
        graph = marked_graph(seed, largest=6)
        if count_topological_orders(graph) > 100:
            continue
        capacity = random.Random(seed).randint(0, 25)
        plan = plan_traffic_order(graph, capacity, tile=tile, effort=60 * SECOND, trials=300)
        check_order(graph, plan.order)
        assert plan.traffic == off_chip_traffic(graph, capacity, plan.order, tile=tile)
        assert plan.given == off_chip_traffic(graph, capacity, tile=tile)
        orders = list(topological_orders(graph))
        best = min(off_chip_traffic(graph, capacity, order, tile=tile).total for order in orders)
        assert best <= plan.traffic.total <= plan.given.total
        tried += len(orders) > 1
        exact += plan.traffic.total == best and len(orders) > 1
    assert exact >= 0.9 * tried > 30


@pytest.mark.parametrize("seed", range(3))
def test_cells_move_fewer_bytes_than_with_the_lowest_peak(seed):
    graph = stacked_cells((33, 28, 29), seed)
    capacity = 64 << 10
    lowest = plan_order(graph).order
    plan = plan_traffic_order(graph, capacity, [lowest], effort=60 * SECOND, trials=1500)
    check_order(graph, plan.order)
    assert plan.traffic.total < off_chip_traffic(graph, capacity, lowest).total < plan.given.total
    again = plan_traffic_order(graph, capacity, [lowest], effort=60 * SECOND, trials=1500)
    assert again.order == plan.order


def test_nothing_is_searched_where_all_fits():
    graph = random_graph(30, 0.1, 0)
    plan = plan_traffic_order(graph, 10**6)
    assert plan.traffic.spilled == 0
    assert plan.trials <= 6


def test_time_is_kept():
    graph = large_graph(2000, 0)
    plan = plan_traffic_order(graph, 20_000, effort=0)
    assert (plan.trials, plan.order) == (1, tuple(range(2000)))
    plan = plan_traffic_order(graph, 20_000, effort=0.5 * SECOND)
    check_order(graph, plan.order)
    assert plan.traffic.total <= plan.given.total


def test_wrong_arguments_are_refused():
    graph = random_graph(5, 0.3, 0)
    with pytest.raises(OptionError, match="'capacity' is -1"):
        plan_traffic_order(graph, -1)
    with pytest.raises(GraphError, match="is missing"):
        plan_traffic_order(graph, 10, [(0, 1)])
