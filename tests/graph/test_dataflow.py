from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.graph.random_graphs import graphs
from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, Flops, Node, Tensor, graph_of_sizes, symbol
from tvm_ext.graph.dataflow import element_bytes, tensor_bytes
from tvm_ext.graph.flops import dearest

n = symbol("n")


def tensor(name: str, **fields) -> Tensor:
    return Tensor(name, (4,), "float32", 16, **fields)


def test_edges_of_a_small_graph():
    graph = graph_of_sizes([[], [0], [0], [1, 2]], [4, 8, 8, 1])
    assert graph.predecessors == ((), (0,), (0,), (1, 2))
    assert graph.successors == ((1, 2), (3,), (3,), ())
    assert graph.consumers == {"t0": (1, 2), "t1": (3,), "t2": (3,), "t3": ()}
    assert graph.producer == {"t0": 0, "t1": 1, "t2": 2, "t3": 3}
    assert graph.outputs == ("t3",)
    assert graph.tensors["t3"].kind == "output"
    assert graph.unknown_flops == ()
    assert graph.unknown_bytes == ()
    assert graph.symbols == frozenset()


@settings(deadline=None)
@given(graphs())
def test_edges_go_both_ways_and_forward(graph):
    for index, before in enumerate(graph.predecessors):
        assert all(other < index and index in graph.successors[other] for other in before)
        expected = {graph.producer[t] for t in graph.nodes[index].inputs if t in graph.producer}
        assert set(before) == expected | set(graph.nodes[index].after)
    assert sum(map(len, graph.predecessors)) == sum(map(len, graph.successors))


@settings(deadline=None)
@given(graphs())
def test_a_storage_is_the_end_of_the_chain_of_aliases(graph):
    for name in graph.tensors:
        chain = name
        while graph.tensors[chain].alias_of is not None:
            chain = graph.tensors[chain].alias_of
        assert graph.storages[name] == chain
        assert graph.storage(name) is graph.tensors[chain]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("float16", 2),
        ("bfloat16", 2),
        ("float8_e4m3fn", 1),
        ("int4", 1),
        ("uint1", 1),
        ("bool", 1),
        ("int64", 8),
        ("float32x4", 16),
        ("int8x3", 3),
        ("", None),
        ("custom", None),
    ],
)
def test_bytes_of_an_element(dtype, size):
    assert element_bytes(dtype) == size


def test_bytes_of_a_tensor():
    assert tensor_bytes((2, 3), "float32") == 24
    assert tensor_bytes((), "float64") == 8
    assert tensor_bytes((n, 3), "float16") == 6 * n
    assert tensor_bytes(None, "float16") is None
    assert tensor_bytes((2,), "") is None
    assert tensor_bytes(None, "shape") == 0


def test_bind_puts_numbers_for_symbols_everywhere():
    inside = DataflowGraph("branch", (), {"b": Tensor("b", (n,), "uint8", n, "input")}, ("b",), ("b",))
    nodes = (Node(0, "y", "if", ("x",), ("x",), ("y",), flops=Flops(add=2 * n), regions=(inside,)),)
    tensors = {"x": Tensor("x", (n, 2), "uint8", 2 * n, "input"), "y": Tensor("y", None, "uint8", None, "output")}
    graph = DataflowGraph("main", nodes, tensors, ("x",), ("y",))
    assert graph.symbols == {"n"}
    assert [t.name for t in graph.unknown_bytes] == ["y"]
    bound = graph.bind({"n": 5})
    assert bound.tensors["x"].shape == (5, 2)
    assert bound.tensors["x"].nbytes == 10
    assert bound.nodes[0].flops == Flops(add=10)
    assert bound.nodes[0].regions[0].tensors["b"].nbytes == 5
    assert bound.symbols == frozenset()
    assert graph.tensors["x"].nbytes == 2 * n


def test_flops_are_summed_over_what_is_known():
    nodes = (
        Node(0, "a", "op", flops=Flops(1, 2, 3)),
        Node(1, "b", "odd", flops=None),
        Node(2, "c", "op", flops=Flops(1)),
    )
    graph = DataflowGraph("main", nodes, {})
    assert graph.flops == Flops(2, 2, 3)
    assert graph.flops.total == 7
    assert [node.name for node in graph.unknown_flops] == ["b"]


def test_the_dearest_branch_counts():
    assert dearest([]) == Flops()
    assert dearest([Flops(1), Flops(add=3), Flops()]) == Flops(add=3)
    assert dearest([Flops(n), Flops()]) == Flops(n)
    assert dearest([Flops(n), Flops(add=2)]).substitute({"n": 9}) == Flops(9, 2)


def test_walk_finds_each_graph_inside_once():
    inner = DataflowGraph("inner", (), {})
    middle = DataflowGraph(
        "middle", (Node(0, "a", "call", regions=(inner,)), Node(1, "b", "call", regions=(inner,))), {}
    )
    outer = DataflowGraph("outer", (Node(0, "c", "call", regions=(middle,)),), {})
    assert [graph.name for graph in outer.walk()] == ["outer", "middle", "inner"]


@pytest.mark.parametrize(
    ("nodes", "tensors", "fields", "message"),
    [
        ([Node(1, "a", "op")], [], {}, "node 'a' has index 1 at place 0"),
        ([Node(0, "a", "op", inputs=("x",))], ["x"], {}, "node 'a' reads 'x', which is not defined yet"),
        (
            [Node(0, "a", "op", outputs=("x",)), Node(1, "b", "op", outputs=("x",))],
            ["x"],
            {},
            "'x' of node 'b' is defined twice",
        ),
        ([Node(0, "a", "op", outputs=("x",))], [], {}, "'x' of node 'a' has no entry in tensors"),
        ([Node(0, "a", "op", after=(0,))], [], {}, "node 'a' must run after a node that is not before it"),
        ([], [], {"outputs": ("y",)}, "returns 'y', which no node defines"),
    ],
)
def test_a_graph_that_does_not_fit_together_is_refused(nodes, tensors, fields, message):
    with pytest.raises(GraphError, match=message):
        DataflowGraph("main", tuple(nodes), {name: tensor(name) for name in tensors}, **fields)


def part(name: str, offset: int) -> Tensor:
    return Tensor(name, (4,), "float32", 16, alias_of="whole", offset=offset)


def test_parts_of_a_storage_can_come_before_it():
    tensors = {"a": part("a", 0), "b": part("b", 16), "whole": Tensor("whole", (8,), "float32", 32)}
    nodes = (
        Node(0, "a", "op", outputs=("a",)),
        Node(1, "b", "op", outputs=("b",)),
        Node(2, "whole", "concat", inputs=("a", "b"), operands=("a", "b"), outputs=("whole",)),
    )
    graph = DataflowGraph("f", nodes, tensors, outputs=("whole",))
    assert graph.storages == {"a": "whole", "b": "whole", "whole": "whole"}
    assert graph.wholes == {"whole"}
    assert graph_of_sizes([[], [0]], [1, 1]).wholes == frozenset()
    moving = DataflowGraph("f", nodes, tensors | {"b": Tensor("b", (n,), "uint8", n, alias_of="whole", offset=n)})
    assert moving.bind({"n": 8}).tensors["b"].offset == 8


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": tensor("a", alias_of="b"), "b": tensor("b", alias_of="a")}, "alias of itself, in a circle"),
        ({"a": tensor("a", alias_of="a")}, "'a' is an alias of itself, in a circle"),
        ({"a": tensor("a", alias_of="c")}, "'a' is an alias of 'c', which is no tensor of it"),
    ],
)
def test_aliases_of_nothing_are_refused(tensors, message):
    with pytest.raises(GraphError, match=message):
        DataflowGraph("f", (), tensors)


@pytest.mark.parametrize("pair", [("x", "y"), ("y", "y"), ("y", "z")])
def test_in_place_is_from_an_input_to_an_output(pair):
    tensors = {"x": tensor("x", kind="input"), "y": tensor("y")}
    with pytest.raises(GraphError, match="expected one of its outputs and one of its inputs"):
        DataflowGraph("f", (Node(0, "y", "op", ("x",), ("x",), ("y",), in_place=(pair,)),), tensors, ("x",))
