"""Which factors vanish: plans on graphs of plain data, each with one thing that must prevent it."""

from __future__ import annotations

import pytest

from tvm_ext.algebra.scaling import Edit, Scaling, plan_scaling
from tvm_ext.graph.dataflow import DataflowGraph, Node, Tensor

Row = tuple[str, str, tuple[str, ...], tuple[int, ...]]
CONSTANTS = {"k": (), "row": (8,), "w": (8, 6), "u": (8, 6), "b": (6,), "table": (4, 6), "x": (4, 8)}
NUMBERS = {"k": 0.125}


def graph(rows: list[Row], outputs: tuple[str, ...], **constants: tuple[int, ...]) -> DataflowGraph:
    """Make a function of ``a`` (4 x 8) and ``c`` (4 x 6) from rows: name, operator, operands, shape."""
    tensors = {name: Tensor(name, shape, "float32", 0, "constant") for name, shape in (CONSTANTS | constants).items()}
    tensors["a"], tensors["c"] = Tensor("a", (4, 8), "float32", 0, "input"), Tensor("c", (4, 6), "float32", 0, "input")
    nodes = []
    for index, (name, op, operands, shape) in enumerate(rows):
        tensors[name] = Tensor(name, shape, "float32", 0)
        nodes.append(Node(index, name, op, tuple(dict.fromkeys(operands)), operands, (name,)))
    return DataflowGraph("f", tuple(nodes), tensors, ("a", "c"), outputs)


def test_all_readers_take_up_a_row() -> None:
    """h = a * row; g = h w; r = reshape(h) u: both weights take the row."""
    found = graph(
        [
            ("h", "multiply", ("a", "row"), (4, 8)),
            ("g", "matmul", ("h", "w"), (4, 6)),
            ("v", "reshape", ("h",), (2, 2, 8)),
            ("r", "matmul", ("v", "u"), (2, 2, 6)),
        ],
        ("g", "r"),
    )
    assert plan_scaling(found, NUMBERS) == (Scaling(0, 1, (Edit(1, 1, -2), Edit(3, 1, -2))),)


@pytest.mark.parametrize(
    "more",
    [
        [("o", "exp", ("h",), (4, 8))],
        [("o", "matmul", ("h", "d"), (4, 4))],
        [("o", "reshape", ("h",), (32,))],
        [("o", "matmul", ("e", "h"), (2, 8))],
    ],
    ids=["read", "weight of the run", "reshaped apart", "second operand"],
)
def test_a_reader_that_cannot_keeps_the_row(more: list[Row]) -> None:
    rows: list[Row] = [
        ("d", "permute_dims", ("a",), (8, 4)),
        ("e", "strided_slice", ("a",), (2, 4)),
        ("h", "multiply", ("a", "row"), (4, 8)),
        ("g", "matmul", ("h", "w"), (4, 6)),
        *more,
    ]
    assert plan_scaling(graph(rows, ("g", "o")), NUMBERS) == ()


def turned(last: str = "multiply") -> list[Row]:
    """Rotary embedding: s = k (q * table + turned(q) * table), q = a w."""
    return [
        ("q", "matmul", ("a", "w"), (4, 6)),
        ("first", "strided_slice", ("q",), (4, 3)),
        ("second", "strided_slice", ("q",), (4, 3)),
        ("other", "negative", ("second",), (4, 3)),
        ("joined", "concat", ("other", "first"), (4, 6)),
        ("cosine", "multiply", ("q", "table"), (4, 6)),
        ("sine", "multiply", ("joined", "c"), (4, 6)),
        ("sum", "add", ("cosine", "sine"), (4, 6)),
        ("s", last, ("sum", "k"), (4, 6)),
    ]


def test_a_number_goes_back_to_the_weights() -> None:
    """The table could take it, but ``sine`` leads to ``q``, so that ``q`` has to be scaled, and once."""
    assert plan_scaling(graph(turned(), ("s",)), NUMBERS) == (Scaling(8, 1, (Edit(0, 1),)),)


@pytest.mark.parametrize(
    ("rows", "outputs", "numbers"),
    [
        (turned(), ("s", "q"), NUMBERS),
        ([*turned(), ("o", "exp", ("joined",), (4, 6))], ("s", "o"), NUMBERS),
        (turned(), ("s",), {"k": 8.0}),
        (turned("divide"), ("s",), NUMBERS),
        (turned(), ("s",), {"k": 2.0**-11}),
        (turned(), ("s",), {"k": 0.0}),
        (turned(), ("s",), {"k": float("nan")}),
        ([("p", "multiply", ("c", "c"), (4, 6)), ("s", "multiply", ("p", "k"), (4, 6))], ("s",), NUMBERS),
        ([("p", "exp", ("c",), (4, 6)), ("s", "multiply", ("p", "k"), (4, 6))], ("s",), NUMBERS),
    ],
    ids=["returned", "read", "grows", "quotient grows", "too small", "zero", "nan", "square", "no linear operator"],
)
def test_what_keeps_a_number(rows: list[Row], outputs: tuple[str, ...], numbers: dict[str, float]) -> None:
    assert plan_scaling(graph(rows, outputs), numbers) == ()


@pytest.mark.parametrize(("number", "count"), [(0.125, 1), (-0.125, 0)])
def test_only_positive_numbers_pass_what_is_monotone(number: float, count: int) -> None:
    rows: list[Row] = [
        ("q", "matmul", ("a", "w"), (4, 6)),
        ("p", "add", ("q", "b"), (4, 6)),
        ("r", "nn.relu", ("p",), (4, 6)),
        ("s", "multiply", ("r", "k"), (4, 6)),
    ]
    assert len(plan_scaling(graph(rows, ("s",)), {"k": number})) == count


def test_a_large_weight_with_another_reader_is_not_kept_twice() -> None:
    rows: list[Row] = [
        ("q", "matmul", ("a", "w"), (4, 4096)),
        ("s", "multiply", ("q", "k"), (4, 4096)),
        ("o", "matmul", ("a", "w"), (4, 4096)),
    ]
    assert plan_scaling(graph(rows, ("s", "o"), w=(8, 4096)), NUMBERS) == ()
    assert plan_scaling(graph(rows, ("s", "o"), w=(8, 16)), NUMBERS)


def test_products_of_two_tensors_are_passed_in_fast_mode_only() -> None:
    """Hard swish before a product: a * (c / 6) may be finite where a * c is not."""
    rows: list[Row] = [
        ("d", "multiply", ("a", "k"), (4, 8)),
        ("p", "multiply", ("d", "e"), (4, 8)),
        ("g", "matmul", ("p", "w"), (4, 6)),
    ]
    rows = [("e", "exp", ("a",), (4, 8)), *rows]
    assert plan_scaling(graph(rows, ("g",)), NUMBERS) == ()
    assert plan_scaling(graph(rows, ("g",)), NUMBERS, "fast") == (Scaling(1, 1, (Edit(3, 1),)),)


def test_factors_that_were_removed_are_passed() -> None:
    """Two numbers one after the other both end at the weight."""
    rows: list[Row] = [
        ("q", "matmul", ("a", "w"), (4, 6)),
        ("s", "multiply", ("q", "k"), (4, 6)),
        ("t", "divide", ("s", "j"), (4, 6)),
    ]
    plan = plan_scaling(graph(rows, ("t",), j=()), NUMBERS | {"j": 2.0})
    assert plan == (Scaling(1, 1, (Edit(0, 1),)), Scaling(2, 1, (Edit(0, 1),)))
