"""The mapping types derived from loops: they agree with the table for every operator that TVM lowers to loops."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.script import tirx as T

from tests.graph.operator_cases import CASES, build
from tvm_ext.graph import from_relax
from tvm_ext.graph.mapping_types import Mapping, MappingType, operator_mapping
from tvm_ext.graph.prim_func_mapping import prim_func_mapping

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
# A depth-to-space is lowered to a reshape, a transpose and a reshape, and their composition is Reorganize.
REORDERS = {REORGANIZE, SHUFFLE}


def both(name: str) -> list[tuple[str, Mapping, Mapping]]:
    """Operator, types by the table, types derived from the loops."""
    module = build(name)
    graph = from_relax(module)
    operators = [node for node in graph.nodes if node.op not in ("get_item", "tuple", "alias")]
    legal = relax.transform.LegalizeOps()(module)
    calls = [node for node in from_relax(legal).nodes if node.op == "call_tir"]
    functions = {variable.name_hint: func for variable, func in legal.functions_items()}
    if len(operators) != len(calls):
        return []
    return [
        (
            node.op,
            operator_mapping(
                node.op,
                [graph.tensors[name] for name in node.operands],
                [graph.tensors[name] for name in node.outputs],
                node.attributes,
            ),
            prim_func_mapping(functions[call.callee], range(len(node.operands))),
        )
        for node, call in zip(operators, calls, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_table(name: str) -> None:
    for op, table, loops in both(name):
        assert loops.node is table.node or {loops.node, table.node} == REORDERS, op
        if op.startswith("nn."):  # the loops also know small maxima along an axis for windows
            assert loops.is_disjoint_window == table.is_disjoint_window, op


def test_most_cases_are_compared() -> None:
    assert sum(bool(both(name)) for name in CASES) >= 0.9 * len(CASES)


@T.prim_func(s_tir=True)
def shift_and_scale(
    x: T.Buffer((4, 8), "float32"),
    bias: T.Buffer((8,), "float32"),
    rows: T.Buffer((4, 1), "float32"),
    y: T.Buffer((4, 8), "float32"),
):
    for i, j in T.grid(4, 8):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = (x[vi, vj] + bias[vj]) * rows[vi, 0]


def test_operands_that_are_given() -> None:
    assert prim_func_mapping(shift_and_scale).operands == (ONE_TO_ONE, ONE_TO_MANY, ONE_TO_MANY)
    assert prim_func_mapping(shift_and_scale, [1]).operands == (ONE_TO_ONE, ONE_TO_ONE, ONE_TO_MANY)
    assert prim_func_mapping(shift_and_scale).node is ONE_TO_ONE


@T.prim_func(s_tir=True)
def search(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):
    with T.sblock("search"):
        position = T.sblock_alloc_buffer((1,), "int32")
        position[0] = 0
        while x[position[0]] > 0:
            position[0] = position[0] + 1
        y[0] = position[0]


def test_what_cannot_be_analysed_is_opaque() -> None:
    assert prim_func_mapping(search).node is OPAQUE


def kernel(call: object, *shapes: tuple[object, ...]) -> Mapping:
    """Types of an operator lowered to loops."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(call(*parameters))  # type: ignore[operator]
        builder.emit_func_output(result)
    functions = relax.transform.LegalizeOps()(builder.get()).functions.values()
    return prim_func_mapping(next(func for func in functions if isinstance(func, tvm.tirx.PrimFunc)))


def test_symbolic_sizes() -> None:
    n = tvm.tirx.Var("n", "int64")
    assert kernel(lambda x, y: relax.op.add(x, y), (n, 8), (n, 8)).node is ONE_TO_ONE
    assert kernel(lambda x, y: relax.op.matmul(x, y), (n, 8), (8, 4)).node is MANY_TO_MANY
    assert kernel(lambda x: relax.op.permute_dims(x, [1, 0]), (n, 8)).node is SHUFFLE
    assert kernel(lambda x: relax.op.reshape(x, (n * 8,)), (n, 8)).node is REORGANIZE


def test_large_domains_are_sampled() -> None:
    shape = (2, 300, 70, 90)
    assert kernel(lambda x: relax.op.permute_dims(x, [0, 2, 3, 1]), shape).node is SHUFFLE
    assert kernel(lambda x: relax.op.reshape(x, (600, 6300)), shape).node is REORGANIZE
    assert kernel(lambda x, y: relax.op.concat([x, y], 1), shape, shape).node is ONE_TO_ONE
    assert kernel(lambda x: relax.op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)), shape).node is ONE_TO_MANY
    assert kernel(lambda x: relax.op.nn.max_pool2d(x, (2, 2), (2, 2)), shape).is_disjoint_window
    assert not kernel(lambda x: relax.op.nn.max_pool2d(x, (3, 3), (2, 2)), shape).is_disjoint_window


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_transpositions(order: list[int], shape: list[int]) -> None:
    """Against the definition, by moving every element: the same order is a reshape, another one a shuffle."""
    found = kernel(lambda x: relax.op.permute_dims(x, list(order)), tuple(shape))
    numbered = np.arange(np.prod(shape)).reshape(shape)
    moved = numbered.transpose(order)
    if order == sorted(order) or (moved.shape == tuple(shape) and (moved == numbered).all()):
        expected = ONE_TO_ONE
    else:
        expected = REORGANIZE if (moved.reshape(-1) == numbered.reshape(-1)).all() else SHUFFLE
    assert found.node is expected


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda x: relax.op.mean(x, [-1], keepdims=True), (12, 10)),
        (lambda x: relax.op.max(x, [1, 2]), (3, 40)),
        (lambda x: relax.op.nn.softmax(x, -1), (12, 10)),
        (lambda x: relax.op.sum(x, [0]), None),
        (lambda x: relax.op.sum(x, [1]), None),
        (lambda x: relax.op.exp(x), None),
    ],
)
def test_rows_of_reductions(make, rows: tuple[int, int] | None) -> None:
    """Neighbours that are reduced with one another: how many rows, and how long."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4, 10), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(make(x))
        builder.emit_func_output(result)
    functions = relax.transform.LegalizeOps()(builder.get()).functions.values()
    (kernel,) = (func for func in functions if isinstance(func, tvm.tirx.PrimFunc))
    assert prim_func_mapping(kernel).rows == rows
