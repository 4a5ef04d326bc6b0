from __future__ import annotations

import itertools
import random
import statistics

import pytest

from tests.memory.graphs import marked_graph, random_graph, stacked_cells
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.graph import (
    DataflowGraph,
    LivenessOptions,
    Node,
    Tensor,
    graph_of_sizes,
    liveness,
    peak_bytes,
    random_order,
    symbol,
)
from tvm_ext.memory import off_chip_traffic, plan_order
from tvm_ext.memory.accesses import Access
from tvm_ext.memory.traffic import simulate


def least_traffic(trace, capacity: int, kept: set[str]) -> int:
    """Try every choice of what stays on the chip: the least bytes moved by any replacement."""
    last = {a.unit: place for place, (_, group) in enumerate(trace) for a in group}
    sizes = {a.unit: a.size for _, group in trace for a in group}
    states = {(frozenset(), frozenset()): 0}  # on the chip, changed there -> bytes moved so far
    for place, (_, group) in enumerate(trace):
        mine = {a.unit: a for a in group}
        fits = sum(a.size for a in group) <= capacity
        following: dict[tuple[frozenset, frozenset], int] = {}
        for (here, changed), cost in states.items():
            fetched = sum(a.size for a in group if a.reads and a.unit not in here)
            everything = sorted(here | set(mine))
            for count in range(len(everything) + 1):
                for during in map(frozenset, itertools.combinations(everything, count)):
                    if sum(sizes[u] for u in during) > capacity or (fits and not set(mine) <= during):
                        continue
                    # What is of no use any more goes, whatever else stays.
                    after = frozenset(u for u in during if last[u] > place or u[0] in kept)
                    new = {u for u in after if u in changed or (u in mine and mine[u].writes)}
                    lost = [
                        u
                        for u in everything
                        if u not in after
                        and (u in changed or (u in mine and mine[u].writes))
                        and (last[u] > place or u[0] in kept)
                    ]
                    total = cost + fetched + sum(sizes[u] for u in lost)
                    key = (after, frozenset(new))
                    following[key] = min(total, following.get(key, total))
        states = following
    return min(cost + sum(sizes[u] for u in changed if u[0] in kept) for (_, changed), cost in states.items())


def random_trace(choose: random.Random, sizes: tuple[int, ...], writes: bool, at_once: int):
    """Groups of uses; a unit is written before it is read, or begins off the chip."""
    units = [(f"u{i}", 0) for i in range(5)]
    size = {unit: choose.choice(sizes) for unit in units}
    trace = []
    for step in range(choose.randint(1, 8)):
        group = []
        for unit in choose.sample(units, choose.randint(1, at_once)):
            is_write = writes and choose.random() < 0.4
            group.append(Access(unit, size[unit], not is_write or choose.random() < 0.3, is_write))
        trace.append((step, tuple(group)))
    return trace


def test_farthest_next_use_is_the_best_choice_for_equal_units_that_are_read():
    for seed in range(300):
        choose = random.Random(seed)
        trace = random_trace(choose, (1,), writes=False, at_once=choose.choice((1, 2)))
        capacity = choose.randint(0, 4)
        found = simulate(trace, capacity, len(trace), set())
        assert found.total == found.read == least_traffic(trace, capacity, set()), seed


def test_with_writes_and_unequal_units_it_is_near_the_best():
    ratios = []
    for seed in range(300):
        choose = random.Random(seed)
        trace = random_trace(choose, (1, 2, 3), writes=True, at_once=2)
        capacity, kept = choose.randint(0, 8), {"u0"}
        found = simulate(trace, capacity, len(trace), kept)
        best = least_traffic(trace, capacity, kept)
        assert found.total >= best, seed
        if best:
            ratios.append(found.total / best)
    assert statistics.fmean(ratios) < 1.02
    assert max(ratios) < 2


def test_a_chain_by_hand():
    # x(4) -> a(8) -> b(2) -> c(6), the result.
    graph = graph_of_sizes([[], [0], [1], [2]], [4, 8, 2, 6])
    assert off_chip_traffic(graph, 12).total == 6  # a and x fit together; the result leaves at the end
    assert off_chip_traffic(graph, 12).spilled == 0
    # With 10 bytes x and a do not; a stays, since x is of no use any more.
    small = off_chip_traffic(graph, 10)
    assert (small.read, small.written, small.compulsory) == (0, 6, 6)
    # With 7 bytes a is written through and fetched again.
    tiny = off_chip_traffic(graph, 7)
    assert (tiny.read, tiny.written, tiny.by_step) == (8, 8 + 6, (0, 8, 8, 6))
    none = off_chip_traffic(graph, 0)
    assert (none.read, none.written) == (4 + 8 + 2, 4 + 8 + 2 + 6)


def test_inputs_are_fetched_and_constants_only_if_asked():
    tensors = {
        "x": Tensor("x", (10,), "uint8", 10, "input"),
        "w": Tensor("w", (30,), "uint8", 30, "constant"),
        "y": Tensor("y", (5,), "uint8", 5, "output"),
    }
    graph = DataflowGraph("f", (Node(0, "y", "op", ("x", "w"), ("x", "w"), ("y",)),), tensors, ("x",), ("y",))
    found = off_chip_traffic(graph, 100)
    assert (found.read, found.written, found.compulsory) == (10, 5, 15)
    assert off_chip_traffic(graph, 100, constants=True).read == 40


def test_views_parts_and_in_place_results_move_nothing():
    tensors = {
        "x": Tensor("x", (4,), "uint8", 4, "input"),
        "a": Tensor("a", (8,), "uint8", 8, alias_of="whole"),
        "b": Tensor("b", (8,), "uint8", 8, alias_of="whole", offset=8),
        "whole": Tensor("whole", (16,), "uint8", 16),
        "flat": Tensor("flat", (16,), "uint8", 16, alias_of="whole"),
        "y": Tensor("y", (16,), "uint8", 16),
        "z": Tensor("z", (1,), "uint8", 1, "output"),
    }
    nodes = (
        Node(0, "a", "op", ("x",), ("x",), ("a",)),
        Node(1, "b", "op", ("x",), ("x",), ("b",)),
        Node(2, "whole", "concat", ("a", "b"), ("a", "b"), ("whole",)),
        Node(3, "flat", "reshape", ("whole",), ("whole",), ("flat",)),
        Node(4, "y", "relu", ("flat",), ("flat",), ("y",), in_place=(("y", "flat"),)),
        Node(5, "z", "op", ("y",), ("y",), ("z",)),
    )
    graph = DataflowGraph("f", nodes, tensors, ("x",), ("z",))
    assert peak_bytes(graph, None, LivenessOptions(inputs="until last use")) == 20
    for tile in (None, 3):
        roomy = off_chip_traffic(graph, 20, tile=tile)
        assert (roomy.read, roomy.written, roomy.spilled) == (4, 1, 0)
        none = off_chip_traffic(graph, 0, tile=tile)
        assert none.read == 4 + 4 + 16 + 16
        assert none.written == 8 + 8 + 16 + 1


@pytest.mark.parametrize("tile", [None, 1, 4])
def test_nothing_spills_where_all_that_lives_fits(tile):
    for seed in range(200):
        graph = marked_graph(seed)
        order = random_order(graph, seed)
        peak = peak_bytes(graph, order, LivenessOptions(inputs="until last use"))
        assert off_chip_traffic(graph, peak, order, tile=tile).spilled == 0, seed
        less = off_chip_traffic(graph, peak // 3, order, tile=tile)
        assert less.spilled >= 0
        assert sum(less.by_step) == less.total


def test_small_tiles_need_less_than_whole_tensors():
    graph = stacked_cells((21, 19, 22), 0)
    order = plan_order(graph).order
    for capacity in (32 << 10, 64 << 10, 90 << 10):
        whole = off_chip_traffic(graph, capacity, order)
        tiles = off_chip_traffic(graph, capacity, order, tile=1024)
        assert tiles.total < whole.total
        more = off_chip_traffic(graph, capacity + (8 << 10), order, tile=1024)
        assert more.total <= tiles.total


def test_an_order_with_a_lower_peak_moves_less():
    ratios = []
    for seed in range(6):
        graph = stacked_cells((21, 19, 22), seed)
        plan = plan_order(graph)
        capacity = plan.peak
        assert off_chip_traffic(graph, capacity, plan.order).spilled == 0
        ratios.append(off_chip_traffic(graph, capacity).spilled)
    assert sum(spilled > 0 for spilled in ratios) >= 4


def test_what_cannot_be_simulated_is_refused():
    graph = random_graph(5, 0.3, 0)
    with pytest.raises(OptionError, match="'capacity' is -1"):
        off_chip_traffic(graph, -1)
    with pytest.raises(OptionError, match="'tile' is 0"):
        off_chip_traffic(graph, 1, tile=0)
    with pytest.raises(GraphError, match="is missing"):
        off_chip_traffic(graph, 1, (0, 1))
    n = symbol("n")
    tensors = {
        "x": Tensor("x", (n,), "uint8", n, "input"),
        "y": Tensor("y", (1,), "uint8", 1, "output"),
    }
    symbolic = DataflowGraph("f", (Node(0, "y", "op", ("x",), ("x",), ("y",)),), tensors, ("x",), ("y",))
    with pytest.raises(GraphError, match="the size of tensor 'x' in bytes is n; give its symbols a value"):
        off_chip_traffic(symbolic, 1)


def test_a_large_network_is_simulated_in_seconds():
    graph = stacked_cells((40,) * 20, 0)
    assert len(list(liveness(graph).order)) == 800
    found = off_chip_traffic(graph, 32 << 10, tile=512)
    assert found.spilled > 0
