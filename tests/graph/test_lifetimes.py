from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.random_graphs import graphs
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.graph import (
    DataflowGraph,
    LivenessOptions,
    Node,
    Tensor,
    breadth_first_order,
    depth_first_order,
    graph_of_sizes,
    liveness,
    peak_bytes,
    random_order,
    symbol,
    topological_orders,
)

# Three branches that widen before they narrow; the published answers are 16 (best) and 28 (worst) bytes.
BRANCHES = graph_of_sizes([[], [0], [0], [0], [1], [2], [3], [4, 5, 6], [7]], [4, 8, 8, 8, 2, 2, 2, 6, 1])
COUNTINGS = ("ignore", "until last use", "always")
OPTIONS = st.builds(
    LivenessOptions,
    inputs=st.sampled_from(COUNTINGS),
    constants=st.sampled_from(COUNTINGS),
    outputs=st.sampled_from(COUNTINGS),
)


def live_storages(graph: DataflowGraph, order, step: int, options: LivenessOptions, before_freeing: bool) -> set[str]:
    """Storages alive at a step by the definition: allocated by then, and still needed."""
    alive = set()
    for name, tensor in graph.tensors.items():
        if tensor.alias_of is not None:
            continue
        counting = {"input": options.inputs, "constant": options.constants, "output": options.outputs}.get(
            tensor.kind, "until last use"
        )
        family = {other for other, root in graph.storages.items() if root == name}
        touched = [
            s for s, index in enumerate(order) if family & {*graph.nodes[index].inputs, *graph.nodes[index].outputs}
        ]
        made = -1 if tensor.kind in ("input", "constant") else min(touched, default=len(order))
        is_made = made <= step
        needed = [s for s in touched if s > step] or (before_freeing and step in touched) or counting == "always"
        if counting != "ignore" and is_made and needed:
            alive.add(name)
    return alive


@settings(deadline=None)
@given(graphs(), OPTIONS, st.integers(0, 20))
def test_liveness_is_what_its_definition_says(graph, options, seed):
    order = random_order(graph, seed)
    found = liveness(graph, order, options)
    for step in range(len(order)):
        during = live_storages(graph, order, step, options, before_freeing=True)
        assert set(found.live_at(step)) == during
        assert found.during[step] == sum(graph.tensors[name].nbytes for name in during)
        after = live_storages(graph, order, step, options, before_freeing=False)
        assert found.after[step] == sum(graph.tensors[name].nbytes for name in after)
    if len(order):
        assert found.peak == max(found.during)
        assert found.during[found.peak_step] == found.peak
        assert sum(found.sizes[name] for name in found.live_at_peak) == found.peak


def simulated_peak(predecessors, sizes, order) -> int:
    """Allocate, then free what has no reader left: the step-by-step model for one result a node."""
    waiting = [sum(i in before for before in predecessors) for i in range(len(sizes))]
    current = peak = 0
    for index in order:
        current += sizes[index]
        peak = max(peak, current)
        for other in set(predecessors[index]):
            waiting[other] -= 1
            if waiting[other] == 0:
                current -= sizes[other]
    return peak


@settings(deadline=None)
@given(st.data())
def test_peak_agrees_with_a_step_by_step_simulation(data):
    count = data.draw(st.integers(1, 6))
    predecessors = [sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(count)]
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    graph = graph_of_sizes(predecessors, sizes)
    for order in topological_orders(graph):
        assert peak_bytes(graph, order) == simulated_peak(predecessors, sizes, order)


def test_peaks_of_three_branches():
    peaks = [peak_bytes(BRANCHES, order) for order in topological_orders(BRANCHES)]
    assert (min(peaks), peaks.count(16), max(peaks)) == (16, 6, 28)
    assert peak_bytes(BRANCHES, breadth_first_order(BRANCHES)) == 28
    assert peak_bytes(BRANCHES, (0, 1, 4, 2, 5, 3, 6, 7, 8)) == 16
    assert peak_bytes(BRANCHES, depth_first_order(BRANCHES)) == 16


def test_profile_of_three_branches():
    found = liveness(BRANCHES)
    assert found.during.tolist() == [4, 12, 20, 28, 26, 20, 14, 12, 7]
    assert found.after.tolist() == [4, 12, 20, 24, 18, 12, 6, 6, 1]
    assert found.peak_step == 3
    assert found.live_at_peak == ("t1", "t2", "t3", "t0")
    assert found.intervals["t0"] == (0, 3)
    assert found.intervals["t8"] == (8, 9)


def view_graph() -> DataflowGraph:
    """x -> a (16) -> b is a view of a -> c (4) reads b; the view keeps a alive."""
    tensors = {
        "x": Tensor("x", (16,), "uint8", 16, "input"),
        "a": Tensor("a", (16,), "uint8", 16),
        "b": Tensor("b", (4, 4), "uint8", 16, alias_of="a"),
        "d": Tensor("d", (8,), "uint8", 8),
        "c": Tensor("c", (4,), "uint8", 4, "output"),
    }
    nodes = (
        Node(0, "a", "relu", ("x",), ("x",), ("a",)),
        Node(1, "b", "reshape", ("a",), ("a",), ("b",)),
        Node(2, "d", "dead", ("x",), ("x",), ("d",)),
        Node(3, "c", "sum", ("b",), ("b",), ("c",)),
    )
    return DataflowGraph("main", nodes, tensors, ("x",), ("c",))


def test_a_view_costs_nothing_and_keeps_its_source():
    found = liveness(view_graph())
    assert found.during.tolist() == [16, 16, 24, 20]
    assert found.after.tolist() == [16, 16, 16, 4]
    assert set(found.intervals) == {"a", "d", "c"}


def test_inputs_count_as_asked():
    graph = view_graph()
    until = liveness(graph, options=LivenessOptions(inputs="until last use"))
    assert until.during.tolist() == [32, 32, 40, 20]
    held = liveness(graph, options=LivenessOptions(inputs="always"))
    assert held.during.tolist() == [32, 32, 40, 36]
    assert held.after.tolist() == [32, 32, 32, 20]
    assert liveness(graph, options=LivenessOptions(outputs="ignore")).during.tolist() == [16, 16, 24, 16]


def test_branches_count_while_they_run():
    def branch(name: str, size: int) -> DataflowGraph:
        tensors = {
            "x": Tensor("x", (4,), "uint8", 4, "input"),
            f"{name}.a": Tensor(f"{name}.a", (size,), "uint8", size),
            f"{name}.b": Tensor(f"{name}.b", (4,), "uint8", 4, "output"),
        }
        nodes = (
            Node(0, f"{name}.a", "op", ("x",), ("x",), (f"{name}.a",)),
            Node(1, f"{name}.b", "op", (f"{name}.a",), (f"{name}.a",), (f"{name}.b",)),
        )
        return DataflowGraph(name, nodes, tensors, ("x",), (f"{name}.b",))

    tensors = {
        "c": Tensor("c", (), "bool", 1, "input"),
        "x": Tensor("x", (4,), "uint8", 4),
        "y": Tensor("y", (4,), "uint8", 4, "output"),
    }
    nodes = (
        Node(0, "x", "op", ("c",), ("c",), ("x",)),
        Node(1, "y", "if", ("c", "x"), ("c", "x"), ("y",), regions=(branch("then", 100), branch("else", 10))),
    )
    graph = DataflowGraph("main", nodes, tensors, ("c",), ("y",))
    assert liveness(graph).during.tolist() == [4, 4 + 104]
    assert liveness(graph).after.tolist() == [4, 4]
    assert peak_bytes(graph, options=LivenessOptions(nested=False)) == 8


def test_a_graph_without_nodes():
    tensors = {"x": Tensor("x", (4,), "uint8", 4, "input")}
    graph = DataflowGraph("main", (), tensors, ("x",), ("x",))
    assert peak_bytes(graph) == 0
    assert peak_bytes(graph, options=LivenessOptions(inputs="always")) == 4


def test_symbolic_sizes_need_values():
    n = symbol("n")
    node = Node(0, "y", "op", ("x",), ("x",), ("y",))
    tensors = {"x": Tensor("x", (n,), "uint8", n, "input"), "y": Tensor("y", (n, 2), "uint8", 2 * n, "output")}
    graph = DataflowGraph("main", (node,), tensors, ("x",), ("y",))
    with pytest.raises(GraphError, match=r"tensor 'y' has 2 \* n bytes; give its symbols a value with bind\(\)"):
        liveness(graph)
    assert peak_bytes(graph.bind({"n": 3})) == 6
    unknown = DataflowGraph("main", (node,), {**tensors, "y": Tensor("y", None, "", None, "output")}, ("x",), ("y",))
    with pytest.raises(GraphError, match=r"the size of tensor 'y' \(\?\[\?\]\) is not known"):
        liveness(unknown)


def test_a_wrong_order_or_option_is_refused():
    with pytest.raises(GraphError, match="runs before node"):
        liveness(BRANCHES, tuple(reversed(range(9))))
    with pytest.raises(OptionError, match="'inputs' is 'never', expected one of ignore, until last use, always"):
        LivenessOptions(inputs="never")  # type: ignore[arg-type]


def test_time_grows_linearly():
    def seconds(count: int) -> float:
        graph = graph_of_sizes([[], [0]] + [[i, i + 1] for i in range(count)], [1] * (count + 2))
        assert len(graph.successors)
        assert len(graph.consumers)
        assert len(graph.storages)
        best = np.inf
        for _ in range(3):
            start = time.process_time()
            liveness(graph)
            best = min(best, time.process_time() - start)
        return best

    # Ten times the nodes: ten times the time if it is linear, a hundred if it is quadratic.
    assert seconds(20_000) < 40 * seconds(2_000)


def in_place_graph(first_kind: str = "intermediate", last_kind: str = "output", later_reader: bool = False):
    """x -> a -> b, b written over a if it may; c reads b, and a too if asked."""
    tensors = {
        "x": Tensor("x", (8,), "uint8", 8, "input"),
        "a": Tensor("a", (8,), "uint8", 8, first_kind),
        "b": Tensor("b", (8,), "uint8", 8),
        "c": Tensor("c", (1,), "uint8", 1, last_kind),
    }
    reads = ("b", "a") if later_reader else ("b",)
    nodes = (
        Node(0, "a", "op", ("x",), ("x",), ("a",)),
        Node(1, "b", "op", ("a",), ("a",), ("b",), in_place=(("b", "a"),)),
        Node(2, "c", "op", reads, reads, ("c",)),
    )
    outputs = ("a", "c") if first_kind == "output" else ("c",)
    return DataflowGraph("f", nodes, tensors, ("x",), outputs)


def test_a_result_takes_over_an_input_that_dies():
    found = liveness(in_place_graph())
    assert found.in_place == {"b": "a"}
    assert list(found.during) == [8, 8, 9]
    assert list(found.after) == [8, 8, 1]
    assert found.intervals == {"a": (0, 1), "b": (1, 2), "c": (2, 3)}


@pytest.mark.parametrize(
    ("graph", "peak"),
    [
        (in_place_graph(later_reader=True), 17),  # a is read again
        (in_place_graph(first_kind="output"), 17),  # the caller gets a
    ],
)
def test_a_result_takes_over_nothing_that_is_needed(graph, peak):
    found = liveness(graph)
    assert (found.in_place, found.peak) == ({}, peak)


@pytest.mark.parametrize("kind", ["input", "constant"])
def test_inputs_and_constants_are_not_written_over(kind):
    tensors = {"x": Tensor("x", (8,), "uint8", 8, kind), "y": Tensor("y", (8,), "uint8", 8, "output")}
    node = Node(0, "y", "op", ("x",), ("x",), ("y",), in_place=(("y", "x"),))
    graph = DataflowGraph("f", (node,), tensors, ("x",) if kind == "input" else (), ("y",))
    options = LivenessOptions(inputs="until last use", constants="until last use")
    assert (liveness(graph, options=options).in_place, peak_bytes(graph, None, options)) == ({}, 16)


def test_two_results_share_out_what_dies():
    sizes = {"a": 8, "b": 8, "y": 8, "z": 8, "w": 4, "end": 1}
    tensors = {name: Tensor(name, (size,), "uint8", size) for name, size in sizes.items()}
    pairs = (("y", "a"), ("z", "a"), ("z", "b"), ("w", "b"))
    nodes = (
        Node(0, "a", "op", outputs=("a",)),
        Node(1, "b", "op", outputs=("b",)),
        Node(2, "y", "op", ("a", "b"), ("a", "b"), ("y", "z", "w"), in_place=pairs),
        Node(3, "end", "op", ("y", "z", "w"), ("y", "z", "w"), ("end",)),
    )
    found = liveness(DataflowGraph("f", nodes, tensors))
    assert found.in_place == {"y": "a", "z": "b"}  # w has another size
    assert list(found.during) == [8, 16, 20, 21]


def test_a_storage_begins_with_its_first_part():
    tensors = {
        "a": Tensor("a", (4,), "uint8", 4, alias_of="whole"),
        "b": Tensor("b", (4,), "uint8", 4, alias_of="whole", offset=4),
        "whole": Tensor("whole", (8,), "uint8", 8),
        "end": Tensor("end", (1,), "uint8", 1, "output"),
    }
    nodes = (
        Node(0, "b", "op", outputs=("b",)),
        Node(1, "a", "op", outputs=("a",)),
        Node(2, "whole", "concat", ("a", "b"), ("a", "b"), ("whole",)),
        Node(3, "end", "op", ("whole",), ("whole",), ("end",)),
    )
    found = liveness(DataflowGraph("f", nodes, tensors, outputs=("end",)))
    assert list(found.during) == [8, 8, 8, 9]
    assert found.intervals == {"whole": (0, 3), "end": (3, 4)}
