"""Which means vanish: plans on graphs of plain data, each with one thing that must prevent it."""

from __future__ import annotations

import pytest

from tvm_ext.algebra.centering import CenteringPlan, plan_centering
from tvm_ext.graph.dataflow import DataflowGraph, Node, Tensor

WIDTH = 8


def stream(**change: object) -> DataflowGraph:
    """x = take(table, i) + p; d = x - mean(x); y = x + matmul(relu(d), w); e = y - mean(y)."""
    constants = {"table": (50, WIDTH), "p": (4, WIDTH), "w": (WIDTH, WIDTH)} | dict(change.get("constants", {}))  # type: ignore[call-overload]
    tensors = {name: Tensor(name, shape, "float32", 0, "constant") for name, shape in constants.items()}
    tensors["i"] = Tensor("i", (4,), "int64", 32, "input")
    mean = {"axis": (-1,), "keepdims": True} | dict(change.get("mean", {}))  # type: ignore[call-overload]
    rows: list[tuple[str, str, tuple[str, ...], dict[str, object]]] = [
        ("rows", "take", ("table", "i"), {"axis": 0}),
        ("x", "add", ("rows", "p"), {}),
        ("m", "mean", ("x",), mean),
        ("d", "subtract", ("x", "m"), {}),
        ("h", "nn.relu", ("d",), {}),
        ("product", "matmul", ("h", "w"), {}),
        ("y", "add", ("x", "product"), {}),
        ("n", "mean", ("y",), mean),
        ("e", "subtract", ("y", "n"), {}),
        *change.get("more", ()),  # type: ignore[misc]
    ]
    nodes = []
    for index, (name, op, operands, attributes) in enumerate(rows):
        shape = (4, 1) if op == "mean" else (4, WIDTH)
        tensors[name] = Tensor(name, shape, "float32", 0)
        nodes.append(Node(index, name, op, operands, operands, (name,), attributes=attributes))
    outputs = ("e", *change.get("outputs", ()))  # type: ignore[misc]
    return DataflowGraph("stream", tuple(nodes), tensors, ("i",), outputs)


def test_the_whole_stream() -> None:
    """Both differences vanish; the table, the positions and the product's weights are centred."""
    assert plan_centering(stream()) == CenteringPlan((3, 8), ((0, 0), (1, 1), (5, 1)))


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": ("y",)},
        {"more": [("other", "exp", ("y",), {})], "outputs": ("other",)},
        {"more": [("other", "exp", ("n",), {})], "outputs": ("other",)},
        {"mean": {"axis": (0,)}},
        {"mean": {"keepdims": False}},
        {"constants": {"p": (4, 1)}},
    ],
    ids=["returned", "read", "mean read", "other axis", "axis dropped", "broadcast"],
)
def test_what_prevents_it(change: dict[str, object]) -> None:
    assert plan_centering(stream(**change)) == CenteringPlan((), ())


def test_a_norm_after_the_addition_stays() -> None:
    """x is scaled between the normalisation and the next sum, so its mean is not that of its parts."""
    more = [("scaled", "multiply", ("e", "p"), {}), ("z", "add", ("scaled", "product"), {})]
    more += [("o", "mean", ("z",), {"axis": (-1,), "keepdims": True}), ("f", "subtract", ("z", "o"), {})]
    plan = plan_centering(stream(more=more, outputs=("f",)))
    assert 12 not in plan.differences
