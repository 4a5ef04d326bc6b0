from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, Flops, Node, Tensor, graph_of_sizes, peak_bytes
from tvm_ext.memory import OrderOptions, Rewriting, choose_rewritings, plan_order, rewritten
from tvm_ext.memory.work import SECOND

# One input, three branches, their concatenation, a convolution of it.
CONCAT = graph_of_sizes([[], [0], [0], [0], [1, 2, 3], [4]], [4, 8, 8, 8, 24, 6])


def new_node(name: str, *inputs: str, in_place: tuple[tuple[str, str], ...] = ()) -> Node:
    return Node(0, name, "op", inputs, inputs, (name,), flops=Flops(), in_place=in_place)


def tensor(name: str, size: int, kind: str = "intermediate") -> Tensor:
    return Tensor(name, (size,), "uint8", size, kind)


def partial_sums(in_place: bool) -> Rewriting:
    """The convolution of a concatenation as a sum of one convolution for each branch."""
    sums = [("s1", ("p1", "p2")), ("t5", ("s1", "p3"))]
    nodes = [new_node(f"p{i}", f"t{i}") for i in (1, 2, 3)]
    nodes += [new_node(name, *read, in_place=((name, read[0]),) if in_place else ()) for name, read in sums]
    tensors = {name: tensor(name, 6) for name in ("p1", "p2", "p3", "s1")}
    return Rewriting("partial sums", ("t4", "t5"), tuple(nodes), tensors)


def zero_copy() -> Rewriting:
    """The branches are written into their parts of the concatenation."""
    parts = {f"t{i}": replace(tensor(f"t{i}", 8), alias_of="t4", offset=8 * (i - 1)) for i in (1, 2, 3)}
    return Rewriting("parts", ("t4",), (new_node("t4", "t1", "t2", "t3"),), parts)


def offered(graph: DataflowGraph, *rewritings: Rewriting):
    return lambda names: rewritten(graph, [r for r in rewritings if r.name in names])


def test_the_worked_example():
    assert plan_order(CONCAT).peak == 48
    assert plan_order(rewritten(CONCAT, [zero_copy()])).peak == 30
    partial = rewritten(CONCAT, [partial_sums(in_place=False)])
    assert len(partial) == 9
    assert plan_order(partial).peak == 24
    plan = choose_rewritings(["partial sums"], offered(CONCAT, partial_sums(False)))
    assert (plan.chosen, plan.plan.peak, plan.without.peak, plan.complete) == (("partial sums",), 24, 48, True)


def test_in_place_sums_save_one_more():
    graph = rewritten(CONCAT, [partial_sums(in_place=True)])
    assert plan_order(graph).peak == 24
    wide = replace(partial_sums(True), tensors={name: tensor(name, 40) for name in ("p1", "p2", "p3", "s1")})
    out = replace(partial_sums(False), tensors=wide.tensors)
    big = graph_of_sizes([[], [0], [0], [0], [1, 2, 3], [4], [5]], [4, 8, 8, 8, 24, 40, 1])
    assert plan_order(rewritten(big, [wide])).peak < plan_order(rewritten(big, [out])).peak


def test_what_does_not_help_is_not_chosen():
    useless = Rewriting("useless", ("t5",), (new_node("q", "t4"), new_node("t5", "q")), {"q": tensor("q", 60)})
    plan = choose_rewritings(["useless"], offered(CONCAT, useless))
    assert (plan.chosen, plan.plan.peak, plan.trials) == ((), 48, 2)


def random_offers(seed: int, count: int):
    """Made-up peaks: what a rewriting does depends on the others."""
    choose = random.Random(seed)
    names = [f"r{i}" for i in range(count)]
    limits = {name: choose.randint(5, 60) for name in names}
    costs = {name: choose.choice((-10, 0, 0, 5)) for name in names}

    def build(chosen: frozenset[str]) -> DataflowGraph:
        # The peak is the highest of several places, of which each rewriting lowers one.
        places = [limits[name] // 2 if name in chosen else limits[name] for name in names]
        whole = max(places) + sum(costs[name] for name in chosen)
        return graph_of_sizes([[]], [max(0, whole)])

    return names, build


@pytest.mark.parametrize("seed", range(20))
def test_few_are_tried_in_all_combinations(seed):
    names, build = random_offers(seed, 4)
    plan = choose_rewritings(names, build)
    peaks = {
        chosen: peak_bytes(build(frozenset(chosen)))
        for count in range(5)
        for chosen in itertools.combinations(names, count)
    }
    assert plan.plan.peak == min(peaks.values())
    assert len(plan.chosen) == min(len(c) for c, peak in peaks.items() if peak == plan.plan.peak)
    assert plan.complete
    assert plan.trials == 16


def test_many_are_near_the_best_and_none_is_idle():
    exact = 0
    for seed in range(40):
        names, build = random_offers(seed, 8)
        plan = choose_rewritings(names, build)
        subsets = (c for count in range(9) for c in itertools.combinations(names, count))
        best = min(peak_bytes(build(frozenset(chosen))) for chosen in subsets)
        assert best <= plan.plan.peak <= plan.without.peak
        assert not plan.complete
        chosen = frozenset(plan.chosen)
        assert all(peak_bytes(build(chosen - {name})) > plan.plan.peak for name in chosen)
        exact += plan.plan.peak == best
    assert exact >= 25


def test_rewritings_that_help_only_together_are_found():
    names = [f"r{i}" for i in range(7)]

    def build(chosen: frozenset[str]) -> DataflowGraph:
        return graph_of_sizes([[]], [10 if {"r1", "r4"} <= chosen else 20])

    assert choose_rewritings(names, build).chosen == ("r1", "r4")


def test_without_time_none_and_all_are_tried():
    names, build = random_offers(0, 9)
    plan = choose_rewritings(names, build, effort=0)
    assert plan.trials == 2
    assert plan.plan.peak == min(peak_bytes(build(frozenset())), peak_bytes(build(frozenset(names))))


def test_nothing_on_offer():
    plan = choose_rewritings([], lambda _: CONCAT, OrderOptions(effort=60 * SECOND))
    assert (plan.chosen, plan.plan.peak, plan.trials, plan.complete) == ((), 48, 1, True)


def test_wrong_rewritings_are_refused():
    with pytest.raises(GraphError, match="'x' removes 't9', but there is no such node"):
        rewritten(CONCAT, [Rewriting("x", ("t9",), (), {})])
    one, other = Rewriting("one", ("t5",), (new_node("t5", "t4"),), {}), Rewriting("other", ("t5",), (), {})
    with pytest.raises(GraphError, match="'other' removes 't5', but 'one' removes it, too"):
        rewritten(CONCAT, [one, other])
    with pytest.raises(GraphError, match="'t5' reads 't4', which is not defined yet"):
        rewritten(CONCAT, [Rewriting("x", ("t4",), (), {})])
    effect = replace(CONCAT, nodes=(*CONCAT.nodes[:-1], replace(CONCAT.nodes[-1], has_effect=True)))
    with pytest.raises(GraphError, match="removes node 't5', which has effects"):
        rewritten(effect, [Rewriting("x", ("t5",), (), {})])


def test_order_without_a_tensor_survives():
    nodes = (
        *CONCAT.nodes[:3],
        replace(CONCAT.nodes[3], after=(2,)),
        *CONCAT.nodes[4:],
        Node(6, "log", "print", after=(5,)),
    )
    graph = rewritten(replace(CONCAT, nodes=nodes), [partial_sums(False)])
    by_name = {node.name: node for node in graph.nodes}
    assert by_name["t3"].after == (2,)
    # It came after the convolution, so it comes after what that one needed.
    assert by_name["log"].after == (1, 2, 3)
