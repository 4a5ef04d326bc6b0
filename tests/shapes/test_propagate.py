"""What propagation finds holds in runs of onnxruntime, for every tensor of a model at random sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from tests.shapes.dynamic_models import MODELS
from tvm_ext.dynamic import open_dimensions
from tvm_ext.errors import CheckError
from tvm_ext.frontend.onnx.operator_graph import operator_graph
from tvm_ext.graph.symbolic import symbol
from tvm_ext.shapes.dynamism import CONTRIB, ONNX, RELAX, Row, row_of
from tvm_ext.shapes.lattice import NOT_CONSTANT, UNDEFINED, Fact, kind_of, meet
from tvm_ext.shapes.operator_graph import Graph, Operator, bounds
from tvm_ext.shapes.propagate import propagate
from tvm_ext.shapes.subgraphs import shares
from tvm_ext.shapes.verify import verify


def everything(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make every tensor of the main graph an output."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    known = {value.name for value in copied.graph.output}
    for node in copied.graph.node:
        for name in node.output:
            if name and name not in known:
                copied.graph.output.append(helper.make_empty_tensor_value_info(name))
    return copied


@pytest.mark.parametrize("name", MODELS)
def test_facts_hold_in_runs(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    case = MODELS[name]()
    found = propagate(operator_graph(case.model, open_dimensions(case.dynamic)))
    whole = everything(case.model)
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    compared = 0
    for seed, sizes in enumerate(case.sizes(50)):
        run = dict(zip(names, session.run(names, case.feeds(sizes, seed)), strict=True))
        compared += verify(found, sizes, run)
    assert compared >= 50
    shared = shares(found)
    assert shared.known_parts >= 0.9 or name in ("found_places", "repeated")


def test_a_wrong_fact_is_found() -> None:
    case = MODELS["mlp"]()
    found = propagate(operator_graph(case.model, open_dimensions(case.dynamic)))
    with pytest.raises(CheckError, match=r"dimension 0 of y is 4, not n = 3"):
        verify(found, {"n": 3}, {"y": np.zeros((4, 9), "float32")})


def test_every_operator_has_a_class() -> None:
    missing = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} - set(ONNX)
    assert not missing
    left_out = (
        "backend",
        "builtin",
        "call_",
        "ccl",
        "dist",
        "grad",
        "inspect",
        "memory",
        "vm",
        "invoke",
        "hint",
        "to_v",
    )
    names = {str(name).removeprefix("relax.") for name in tvm.ir.Op.list_op_names() if str(name).startswith("relax.")}
    # What works on no tensor's values, or has no result of its own.
    others = {"assert_op", "print", "null_value", "make_closure", "call_py_func"}
    missing = {name for name in names if not name.startswith(left_out)} - set(RELAX) - others
    assert not missing
    assert set(RELAX) <= names
    assert all(row.dynamism == "ISDOS" for row in CONTRIB.values())


def test_constants_lower_a_class() -> None:
    assert row_of("Reshape").lowered({0: False, 1: False}) == "ISVDOS"
    assert row_of("Reshape").lowered({0: False, 1: True}) == "ISDOS"
    assert row_of("NonZero").lowered({0: True}) == "EDO"
    assert row_of("Shape").lowered({}) == "ISDO"
    assert row_of("NoSuchOperator", "x.y") == Row("EDO")


def test_the_lattice() -> None:
    n = symbol("n")
    assert [kind_of(x) for x in (UNDEFINED, 3, n, 2 * n, n + 1, NOT_CONSTANT)] == [
        "undefined", "known", "symbolic", "inferred", "inferred", "not constant",
    ]  # fmt: skip
    points = (UNDEFINED, 3, 4, n, n + 1, NOT_CONSTANT)
    for a in points:
        assert meet(UNDEFINED, a) is a or meet(UNDEFINED, a) == a
        assert meet(NOT_CONSTANT, a) is NOT_CONSTANT
        for b in points:
            assert str(meet(a, b)) == str(meet(b, a))
            for c in points:
                assert str(meet(meet(a, b), c)) == str(meet(a, meet(b, c)))


def test_bounds_hold() -> None:
    n, m = symbol("n"), symbol("m")
    limits = {"n": (1, 9), "m": (2, None)}
    for size in (3 * n - 4, n * n + 2, (n + 3) // 2, (n * 7) % 5, n - 2 * n + 1):
        low, high = bounds(size, limits)
        for value in range(1, 10):
            from tvm_ext.graph.symbolic import evaluate

            assert low <= evaluate(size, {"n": value}) <= high
    assert bounds(n + m, limits) == (3.0, float("inf"))


def test_shapes_go_backward_to_inputs_that_nothing_is_known_of() -> None:
    graph = Graph(
        (
            Operator("Unknown", ("a",), ("b",)),
            Operator("Relu", ("b",), ("c",)),
            Operator("Transpose", ("c",), ("d",), {"perm": (1, 0)}),
            Operator("Identity", ("d",), ("e",)),
        ),
        {"a": Fact((symbol("n"),), NOT_CONSTANT), "e": Fact((3, symbol("m")), NOT_CONSTANT)},
        {},
        ("e",),
    )
    found = propagate(graph)
    assert str(found.facts["b"].shape) == "(m, 3)"
    assert found.cuts == {0}


def test_a_branch_that_cannot_run_says_nothing() -> None:
    case = MODELS["one_rate"]()
    found = propagate(operator_graph(case.model, open_dimensions(case.dynamic)))
    assert str(found.facts["y"].shape) == "(n, 4, 10)"
    assert found.taken == {"y1": "then_branch"}
    (sentence,) = found.dropped
    assert sentence.startswith("left out the else branch")
    assert "Conv" in sentence
    assert not found.impossible
    assert len(found.bodies) == 1


def test_where_no_branch_can_run_both_stay() -> None:
    rank_2 = {"x": Fact((symbol("n"), 4), NOT_CONSTANT), "c": Fact((), NOT_CONSTANT)}
    bodies = {
        name: Graph((Operator("LSTM", ("x", "w", "r"), (name,), label=name),), {}, {}, (name,))
        for name in ("then_branch", "else_branch")
    }
    graph = Graph((Operator("If", ("c",), ("y",), bodies=bodies),), rank_2, {"w": (1, 8, 4), "r": (1, 8, 2)}, ("y",))
    found = propagate(graph)
    assert found.impossible == "then_branch"
    assert not found.taken
    assert not found.dropped
    assert len(found.bodies) == 2


def test_figure_5_4_needs_one_version() -> None:
    """Sigmoid of [I, 1, 1] is added to [I, J, K]: known shapes leave one of eight versions."""
    i, j, k = map(symbol, "ijk")
    graph = Graph(
        (Operator("Sigmoid", ("a",), ("s",)), Operator("Add", ("s", "b"), ("r",))),
        {"a": Fact((i, 1, 1), NOT_CONSTANT), "b": Fact((i, j, k), NOT_CONSTANT)},
        {},
        ("r",),
    )
    found = propagate(graph)
    assert found.facts["r"].shape == (i, j, k)
    assert not found.conditions
