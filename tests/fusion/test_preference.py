"""The better of two partitions, piece by piece: never worse than the other one, and still an order to run in."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from hypothesis import given
from hypothesis import strategies as st

from tests.fusion.random_operators import operator_graphs
from tests.zoo.nets.shape_graphs import vgg16
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.plan import plan_of_blocks
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.preference import Effort, effort, kept_kinds, pieces, prefer
from tvm_ext.fusion.verifier import verify_plan


def seconds(members: Collection[int]) -> float:
    return 1.0 + 0.01 * len(members)


def joined(graph: OperatorGraph, draws: list[bool]) -> list[set[int]]:
    """Partition a graph by other means: join an operator with one that it reads, where blocks can still be ordered."""
    blocks = [{index} for index in range(len(graph))]
    for index, wanted in zip(range(len(graph)), draws, strict=False):
        if wanted and graph.predecessors[index]:
            source = graph.predecessors[index][-1]
            ours = next(block for block in blocks if index in block)
            theirs = next(block for block in blocks if source in block)
            if ours is not theirs:
                changed = [block for block in blocks if block is not ours and block is not theirs] + [ours | theirs]
                if plan_of_blocks(graph, changed) is not None:
                    blocks = changed
    return blocks


@given(operator_graphs(), st.lists(st.booleans(), min_size=30, max_size=30))
def test_is_no_worse_than_the_other(graph: OperatorGraph, draws: list[bool]) -> None:
    plan, other = plan_fusion(graph), joined(graph, draws)
    found = prefer(plan, other, graph, seconds)
    verify_plan(found, graph, given=other)
    blocks = [set(block.operators) for block in found.blocks]
    for piece in pieces([set(block.operators) for block in plan.blocks], other, len(graph)):
        ours = effort(graph, [block for block in blocks if block <= piece], seconds)
        theirs = effort(graph, [block for block in other if block <= piece], seconds)
        kept = all(set(block.operators) in blocks for block in plan.blocks if set(block.operators) <= piece)
        assert kept or not ours.is_worse_than(theirs)


def test_pieces_are_unions_of_blocks() -> None:
    assert pieces([{0, 1}, {2, 3}, {4}], [{0}, {1, 2}, {3}, {4}], 5) == [{0, 1, 2, 3}]


def test_what_was_measured_counts_more_than_the_model() -> None:
    """The model says that one kernel is faster; it is taken unless the two were measured to take less time."""
    graph = operator_graph(vgg16())
    plan = plan_fusion(graph)
    block = next(set(item.operators) for item in plan.blocks if len(item.operators) == 2)
    inner = min(block)
    apart = [{index} for index in block]

    def measured(whole: float, single: float, known: bool = True) -> Collection[set[int]]:
        def look_up(members: Collection[int]) -> float | None:
            return whole if len(members) > 1 else single if known or inner not in members else None

        others = [set(item.operators) for item in plan.blocks if not block & set(item.operators)]
        found = prefer(plan, others, graph, seconds, look_up)
        return [set(item.operators) for item in found.blocks]

    assert block in measured(1.0, 1.0)
    assert block in measured(2.05, 1.0), "within what measurements vary by"
    assert all(part in measured(2.2, 1.0) for part in apart)
    assert block in measured(9.0, 1.0, known=False), "a part is not on record: the model decides"


def tried(efforts: dict[str, tuple[int, int]], asked: list[frozenset[str]]) -> object:
    """Kinds that change kernels and bytes by so much each; ``!`` cannot be ordered together with others."""

    def try_out(kinds: AbstractSet[str]) -> Effort | None:
        asked.append(frozenset(kinds))
        if "!" in kinds and len(kinds) > 1:
            return None
        changes = [efforts[kind] for kind in kinds]
        return Effort(100 + sum(kernels for kernels, _ in changes), 1000 + sum(size for _, size in changes), 0.0)

    return try_out


def test_all_pieces_are_kept_where_the_module_is_no_worse() -> None:
    asked: list[frozenset[str]] = []
    assert kept_kinds(["a", "b"], tried({"a": (-2, 5), "b": (1, -5)}, asked)) == {"a", "b"}  # type: ignore[arg-type]
    assert asked == [frozenset(), {"a", "b"}]


def test_pieces_that_make_the_module_worse_are_left_out() -> None:
    efforts = {"a": (-1, 0), "b": (-1, 8), "c": (1, -8), "d": (0, -4), "!": (-5, -5)}
    kept = kept_kinds(list(efforts), tried(efforts, []))  # type: ignore[arg-type]
    assert kept == {"a", "d"}
    assert kept_kinds(["!", "c"], tried(efforts, [])) == {"!"}  # type: ignore[arg-type]
    assert kept_kinds(["b"], tried(efforts, [])) == frozenset()  # type: ignore[arg-type]


def test_many_kinds_are_tried_in_sets() -> None:
    asked: list[frozenset[str]] = []
    efforts = {f"k{number}": (1 if number == 3 else -1, 0) for number in range(40)} | {"heavy": (0, 1)}
    kept = kept_kinds(list(efforts), tried(efforts, asked))  # type: ignore[arg-type]
    assert len(asked) == 10
    assert "heavy" not in kept
    assert len(kept) >= 30


def test_nothing_is_tried_without_pieces() -> None:
    asked: list[frozenset[str]] = []
    assert kept_kinds([], tried({}, asked)) == frozenset()  # type: ignore[arg-type]
    assert not asked
