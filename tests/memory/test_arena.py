from __future__ import annotations

import importlib.util
import itertools
import random
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.graphs import large_graph, marked_graph, random_graph, stacked_cells
from tvm_ext.errors import GraphError, MissingPackageError, OptionError
from tvm_ext.graph import Liveness, liveness
from tvm_ext.memory import OrderOptions, plan_arena, plan_order, verify_arena
from tvm_ext.memory.work import SECOND

HAS_SOLVER = importlib.util.find_spec("ortools") is not None
INTERVALS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(-1, 6), st.integers(0, 4), st.integers(0, 200)),
    max_size=8,
)


def smallest(intervals: dict[str, tuple[int, int]], sizes: dict[str, int], alignment: int) -> int:
    """Place the storages in every order, each at its lowest place: one of these arenas is the smallest there is."""
    best = sum(-(-size // alignment) * alignment for size in sizes.values())
    for order in itertools.permutations(intervals):
        offsets: dict[str, int] = {}
        for name in order:
            first, last = intervals[name]
            others = [o for o in offsets if intervals[o][0] <= last and first <= intervals[o][1]]
            ends = [-(-(offsets[o] + sizes[o]) // alignment) * alignment for o in others]
            offsets[name] = min(
                place
                for place in (0, *ends)
                if all(place + sizes[name] <= offsets[o] or offsets[o] + sizes[o] <= place for o in others)
            )
        best = min(best, max((offsets[name] + sizes[name] for name in intervals), default=0))
    return best


def hard_to_place() -> Liveness:
    """Storages that first fit alone does not place in the smallest arena."""
    graph = stacked_cells((21, 19, 22), 1)
    return liveness(graph, plan_order(graph, OrderOptions(effort=60 * SECOND)).order)


@settings(deadline=None, max_examples=300)
@given(INTERVALS, st.sampled_from((1, 4, 64)))
def test_plans_hold_and_bounds_are_bounds(cases, alignment):
    intervals = {name: (first, first + length) for name, (first, length, _) in cases.items()}
    sizes = {name: size for name, (_, _, size) in cases.items()}
    plan = plan_arena(intervals, sizes, alignment, effort=20_000)
    verify_arena(plan, intervals, sizes)
    assert plan.size == max((plan.offsets[name] + sizes[name] for name in sizes), default=0)
    assert plan.lower_bound <= plan.size
    if len(cases) <= 5:
        best = smallest(intervals, sizes, alignment)
        assert plan.lower_bound <= best <= plan.size
        if HAS_SOLVER:
            exact = plan_arena(intervals, sizes, alignment, exact=True, effort=0)
            verify_arena(exact, intervals, sizes)
            assert (exact.size, exact.lower_bound) == (best, best)


def test_small_arenas_are_the_smallest():
    for seed in range(150):
        choose = random.Random(seed)
        intervals = {f"s{i}": (a := choose.randint(0, 5), a + choose.randint(0, 3)) for i in range(6)}
        sizes = {name: choose.randint(1, 9) for name in intervals}
        best = smallest(intervals, sizes, 1)
        assert plan_arena(intervals, sizes, 1).size == best
        if HAS_SOLVER:
            exact = plan_arena(intervals, sizes, 1, effort=0, exact=True)
            assert (exact.size, exact.optimal) == (best, True)


def test_the_bound_counts_padding_between_blocks_but_not_behind_the_last():
    plan = plan_arena({"a": (0, 1), "b": (0, 1), "c": (2, 3)}, {"a": 10, "b": 100, "c": 70}, 64)
    assert (plan.size, plan.lower_bound, plan.optimal) == (138, 138, True)
    assert sorted(plan.offsets.values()) == [0, 0, 128]


@pytest.mark.parametrize("counts", [(21, 19, 22), (33, 28, 29)])
@pytest.mark.parametrize("seed", range(8))
def test_cells_fit_into_little_more_than_their_peak(counts, seed):
    graph = stacked_cells(counts, seed)
    plan = plan_order(graph, OrderOptions(effort=60 * SECOND))
    alive = liveness(graph, plan.order)
    arena = plan_arena(alive.intervals, alive.sizes)
    verify_arena(arena, alive.intervals, alive.sizes)
    assert plan.peak <= arena.size <= 1.02 * plan.peak


def test_in_place_results_share_a_place():
    intervals = {"a": (0, 2), "b": (2, 3), "c": (3, 5), "d": (0, 4)}
    sizes = {"a": 64, "b": 64, "c": 64, "d": 128}
    in_place = {"b": "a", "c": "b"}
    plan = plan_arena(intervals, sizes, in_place=in_place)
    verify_arena(plan, intervals, sizes, in_place)
    assert plan.size == 192
    assert plan.offsets["a"] == plan.offsets["b"] == plan.offsets["c"]
    with pytest.raises(GraphError, match="overlap"):
        verify_arena(plan, intervals, sizes)


def test_arena_of_orders_with_all_that_counts():
    shared = 0
    for seed in range(300):
        graph = marked_graph(seed)
        alive = liveness(graph, plan_order(graph).order)
        plan = plan_arena(alive.intervals, alive.sizes, 1, in_place=alive.in_place)
        verify_arena(plan, alive.intervals, alive.sizes, alive.in_place)
        assert alive.peak <= plan.size
        shared += bool(alive.in_place)
    assert shared > 30


def test_the_same_input_gives_the_same_plan():
    graph = random_graph(40, 0.1, 1, largest=640)
    alive = liveness(graph)
    assert plan_arena(alive.intervals, alive.sizes) == plan_arena(alive.intervals, alive.sizes)


def test_five_thousand_storages_are_placed_in_seconds():
    alive = liveness(large_graph(5000, 0))
    started = time.process_time()
    plan = plan_arena(alive.intervals, alive.sizes)
    assert time.process_time() - started < 15
    verify_arena(plan, alive.intervals, alive.sizes)
    assert plan.size < 1.3 * alive.peak


@pytest.mark.skipif(not HAS_SOLVER, reason="ortools is not installed")
def test_the_solver_improves_on_first_fit():
    alive = hard_to_place()
    quick = plan_arena(alive.intervals, alive.sizes, 1, effort=0)
    exact = plan_arena(alive.intervals, alive.sizes, 1, effort=0, exact=True, solver_effort=30 * SECOND)
    verify_arena(exact, alive.intervals, alive.sizes)
    assert quick.size > exact.size == exact.lower_bound
    assert exact.method == "constraint solver"


def many_meetings(count: int) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Storages of which each meets about sixty others, for which no arena is proven to be the smallest."""
    choose = random.Random(6400)
    intervals, sizes = {}, {}
    for number in range(count):
        first = choose.randrange(count)
        intervals[str(number)] = (first, min(count, first + choose.randint(1, 80)))
        sizes[str(number)] = 64 * choose.randint(1, 200) + 32 * choose.randint(0, 1)
    return intervals, sizes


@pytest.mark.skipif(not HAS_SOLVER, reason="ortools is not installed")
def test_the_effort_of_the_solver_is_about_its_time():
    # By its own count of work, a second of the solver was up to fifty for storages that meet many others.
    intervals, sizes = many_meetings(160)
    started = time.process_time()
    plan = plan_arena(intervals, sizes, effort=0, exact=True, solver_effort=SECOND)
    assert time.process_time() - started < 8
    assert plan.method == "constraint solver"
    assert not plan.optimal


@pytest.mark.skipif(not HAS_SOLVER, reason="ortools is not installed")
def test_the_solver_is_not_asked_for_less_than_the_tolerance():
    alive = hard_to_place()
    quick = plan_arena(alive.intervals, alive.sizes, 1, effort=0)
    above = quick.size - quick.lower_bound
    assert above > 0
    assert plan_arena(alive.intervals, alive.sizes, 1, effort=0, exact=True, tolerance=above) == quick
    asked = plan_arena(alive.intervals, alive.sizes, 1, effort=0, exact=True, tolerance=above - 1)
    assert asked.method == "constraint solver"


def test_the_solver_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    alive = hard_to_place()
    with pytest.raises(MissingPackageError, match=r"install tvm-ext\[solve\]"):
        plan_arena(alive.intervals, alive.sizes, 1, effort=0, exact=True)


def test_what_cannot_be_placed_is_refused():
    with pytest.raises(GraphError, match="'a' has size None, expected bytes"):
        plan_arena({"a": (0, 1)}, {})
    with pytest.raises(GraphError, match="'a' has size -1"):
        plan_arena({"a": (0, 1)}, {"a": -1})
    with pytest.raises(GraphError, match="'a' is alive from step 2 to step 1"):
        plan_arena({"a": (2, 1)}, {"a": 1})
    with pytest.raises(GraphError, match="takes over from itself"):
        plan_arena({"a": (0, 1), "b": (1, 2)}, {"a": 1, "b": 1}, in_place={"a": "b", "b": "a"})
    with pytest.raises(OptionError, match="'alignment' is 0"):
        plan_arena({}, {}, 0)


def test_nothing_to_place():
    plan = plan_arena({}, {})
    verify_arena(plan, {}, {})
    assert (plan.size, plan.lower_bound, plan.offsets) == (0, 0, {})
    assert plan_arena({"a": (0, 1)}, {"a": 0}).size == 0
