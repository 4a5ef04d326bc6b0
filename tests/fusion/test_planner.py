"""The planner: plans pass the verifier, are never slower than no fusion nor faster than the best of all plans."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fusion.random_operators import operator_graphs
from tests.zoo.nets.shape_graphs import c3d, vgg16
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.limits import FusionOptions
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph, operator_graph
from tvm_ext.fusion.plan import Block, FusionPlan, removable_operators
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
GROWN_ONLY = FusionOptions(refine=False)


def seconds(graph: OperatorGraph, plan: FusionPlan) -> float:
    return sum(LinearModel().seconds(graph, block.operators) for block in plan.blocks)


def chain(*mappings: MappingType, windows: Collection[int] = (), nbytes: int = 1000) -> OperatorGraph:
    operators = [
        Operator(
            f"o{index}",
            "op",
            mapping,
            (Edge(index - 1, mapping),) if index else (),
            nbytes=nbytes,
            is_output=index == len(mappings) - 1,
            is_disjoint_window=index in windows,
        )
        for index, mapping in enumerate(mappings)
    ]
    return OperatorGraph("chain", tuple(operators), {})


def blocks(graph: OperatorGraph, options: FusionOptions | None = None) -> list[tuple[int, ...]]:
    plan = plan_fusion(graph, options)
    verify_plan(plan, graph)
    return [block.operators for block in plan.blocks]


@pytest.mark.parametrize("options", [None, GROWN_ONLY], ids=["refined", "grown"])
def test_vgg16(options: FusionOptions | None) -> None:
    """The source's counts: 51 operators become 17 kernels, 161 MB of intermediate results become 52."""
    graph = operator_graph(vgg16())
    plan = plan_fusion(graph, options)
    verify_plan(plan, graph)
    assert len(graph) == 51
    assert len(plan.blocks) == 17
    assert round(graph.intermediate_bytes / 2**20, 2) == 161.04
    assert round(plan.written_bytes(graph) / 2**20, 2) == 51.72


def test_c3d() -> None:
    """The source has 27 operators, 16 kernels, 195 and 90 MB; here all five poolings are fused into their readers."""
    graph = operator_graph(c3d())
    plan = plan_fusion(graph)
    verify_plan(plan, graph)
    assert (len(graph), len(plan.blocks)) == (27, 11)
    assert round(graph.intermediate_bytes / 2**20) == 195
    assert round(plan.written_bytes(graph) / 2**20) == 89


def test_example_of_the_source() -> None:
    """Figure 3: GEMM, Add, Conv, ReLU, Mul, Sub: all but GEMM are one block, which a second reduction may not join."""
    found = blocks(chain(MANY_TO_MANY, ONE_TO_ONE, MANY_TO_MANY, ONE_TO_ONE, ONE_TO_ONE, ONE_TO_ONE), GROWN_ONLY)
    assert found == [(0,), (1, 2, 3, 4, 5)]


def test_an_addition_stays_with_the_product_it_follows() -> None:
    assert blocks(chain(MANY_TO_MANY, ONE_TO_ONE, MANY_TO_MANY)) == [(0, 1), (2,)]


def test_poolings_join_their_readers_only() -> None:
    assert blocks(chain(MANY_TO_MANY, MANY_TO_MANY, MANY_TO_MANY, windows=[1])) == [(0,), (1, 2)]
    assert blocks(chain(MANY_TO_MANY, MANY_TO_MANY, MANY_TO_MANY)) == [(0,), (1,), (2,)]


def test_a_layer_normalisation_is_two_blocks() -> None:
    """mean, x - mean, square, mean, sqrt, divide: the second mean takes everything but the first."""
    sizes = [10, 1000, 1000, 10, 10, 1000]
    mappings = [MANY_TO_MANY, ONE_TO_ONE, ONE_TO_ONE, MANY_TO_MANY, ONE_TO_ONE, ONE_TO_ONE]
    edges = [
        (),
        (Edge(0, ONE_TO_MANY),),
        (Edge(1, ONE_TO_ONE),),
        (Edge(2, MANY_TO_MANY),),
        (Edge(3, ONE_TO_ONE),),
        (Edge(1, ONE_TO_ONE), Edge(4, ONE_TO_MANY)),
    ]
    operators = [
        Operator(f"o{index}", "op", mapping, reads, nbytes=size)
        for index, (mapping, reads, size) in enumerate(zip(mappings, edges, sizes, strict=True))
    ]
    assert blocks(OperatorGraph("norm", tuple(operators), {})) == [(0,), (1, 2, 3, 4, 5)]


def test_two_convex_blocks_may_not_read_each_other() -> None:
    """0 -> 2 and 1 -> 3 with 2 == reader of 1's block: fusing (0, 3) and (1, 2) would be a cycle of kernels."""
    many, one = MANY_TO_MANY, ONE_TO_ONE
    operators = (
        Operator("a1", "op", many),
        Operator("b1", "op", many),
        Operator("a2", "op", one, (Edge(0, one), Edge(1, ONE_TO_MANY)), nbytes=10),
        Operator("b2", "op", one, (Edge(1, one), Edge(0, ONE_TO_MANY)), nbytes=10),
    )
    graph = OperatorGraph("cross", operators, {})
    assert len(blocks(graph)) >= 2
    crossed = FusionPlan((Block((0, 2), many), Block((1, 3), many)), ())
    with pytest.raises(GraphError, match="runs before operator"):
        verify_plan(crossed, graph)


def test_limits() -> None:
    graph = chain(*[ONE_TO_ONE] * 10)
    assert blocks(graph) == [tuple(range(10))]
    assert max(map(len, blocks(graph, FusionOptions(max_operators=4)))) == 4
    reads = tuple(Edge(index, ONE_TO_ONE) for index in range(6))
    wide = [Operator(f"o{index}", "op", OPAQUE, nbytes=8) for index in range(6)]
    sums = [Operator(f"s{index}", "op", ONE_TO_ONE, reads[index : index + 2], nbytes=8) for index in range(5)]
    total = Operator("t", "op", ONE_TO_ONE, tuple(Edge(6 + index, ONE_TO_ONE) for index in range(5)), nbytes=8)
    graph = OperatorGraph("wide", (*wide, *sums, total), {})
    assert (6, 7, 8, 9, 10, 11) in blocks(graph)
    assert (6, 7, 8, 9, 10, 11) not in blocks(graph, FusionOptions(max_operands=3))
    readers = (Operator(f"r{index}", "op", ONE_TO_ONE, (Edge(0, ONE_TO_ONE),)) for index in range(4))
    fan = OperatorGraph("fan", (Operator("o", "op", ONE_TO_ONE, nbytes=8), *readers), {})
    assert len(blocks(fan)) == 1
    assert len(blocks(fan, FusionOptions(max_results=2))) > 1
    assert len(blocks(fan, FusionOptions(max_anchored_results=1))) == 1


def test_results_behind_an_operator_that_decides_the_loops() -> None:
    readers = (Operator(f"r{index}", "op", ONE_TO_ONE, (Edge(0, ONE_TO_ONE),)) for index in range(2))
    fan = OperatorGraph("fan", (Operator("o", "op", MANY_TO_MANY, nbytes=8), *readers), {})
    assert blocks(fan) == [(0, 1, 2)]
    assert (0,) in blocks(fan, FusionOptions(max_anchored_results=1))


@pytest.mark.parametrize("name", ["max_operators", "max_operands", "max_results", "max_anchored_results"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        FusionOptions(**{name: 0})


def test_yellow_combinations_ask_for_the_latency() -> None:
    graph = chain(MANY_TO_MANY, SHUFFLE)
    asked: list[frozenset[int]] = []

    def slow_when_fused(_: OperatorGraph, members: Collection[int]) -> float:
        asked.append(frozenset(members))
        return 10.0 if len(members) > 1 else 1.0

    assert len(plan_fusion(graph, latency=slow_when_fused).blocks) == 2
    assert frozenset({0, 1}) in asked
    assert len(plan_fusion(graph, latency=lambda _, members: 1.0).blocks) == 1


@given(operator_graphs(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_graphs(graph: OperatorGraph, refine: bool) -> None:
    plan = plan_fusion(graph, FusionOptions(refine=refine))
    verify_plan(plan, graph)
    grown = plan_fusion(graph, GROWN_ONLY)
    assert seconds(graph, plan) <= seconds(graph, grown) * (1 + 1e-9)
    assert FusionPlan.from_json(plan.to_json()) == plan
    assert plan.written_bytes(graph) <= graph.intermediate_bytes
    assert len(plan.to_text(graph).splitlines()) == len(plan.blocks)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in partitions(rest):
        for number, subset in enumerate(smaller):
            yield [*smaller[:number], [first, *subset], *smaller[number + 1 :]]
        yield [[first], *smaller]


def all_plans(graph: OperatorGraph) -> Iterator[FusionPlan]:
    """Every valid plan whose blocks hang together, by trying all partitions."""
    links = nx.Graph((source, index) for index in range(len(graph)) for source in graph.predecessors[index])
    links.add_nodes_from(range(len(graph)))
    for parts in partitions(list(range(len(graph)))):
        if not all(nx.is_connected(links.subgraph(part)) for part in parts):
            continue
        waiting, ordered, done = [sorted(part) for part in parts], [], set()
        while waiting:
            ready = [p for p in waiting if all(s in done or s in p for i in p for s in graph.predecessors[i])]
            if not ready:
                break
            ordered.append(ready[0])
            done |= set(ready[0])
            waiting.remove(ready[0])
        if waiting:
            continue
        removable = tuple(sorted(index for part in ordered for index in removable_operators(graph, part)))
        plan = FusionPlan(tuple(Block(tuple(part), ONE_TO_ONE) for part in ordered), removable)
        try:
            verify_plan(plan, graph)
        except GraphError:
            continue
        yield plan


@given(operator_graphs(max_operators=6))
@settings(max_examples=60, deadline=None)
def test_against_all_plans(graph: OperatorGraph) -> None:
    """No valid plan is missed by the verifier's rules: the planner's is among them, and at most half again as slow."""
    best = min(seconds(graph, plan) for plan in all_plans(graph))
    found = seconds(graph, plan_fusion(graph))
    assert best <= found * (1 + 1e-9)
    assert found <= 1.5 * best


def test_products_are_computed_where_they_are_needed() -> None:
    """A result scaled for three readers is written once, and not three times."""
    many, one = MANY_TO_MANY, ONE_TO_ONE
    operators = [Operator("conv", "op", many, nbytes=1_000_000)]
    operators += [Operator(f"scale{i}", "op", one, (Edge(0, one),), nbytes=1_000_000) for i in range(3)]
    operators += [Operator(f"reader{i}", "op", many, (Edge(1 + i, many),), nbytes=10) for i in range(3)]
    assert blocks(OperatorGraph("fan", tuple(operators), {})) == [(0,), (1, 4), (2, 5), (3, 6)]
