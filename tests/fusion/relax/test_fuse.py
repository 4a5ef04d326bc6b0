"""Kernels grouped by mapping types: the same values, fewer kernels, and functions that TVM merges."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.modules import MODULES, arguments, run
from tests.zoo import get
from tvm_ext.errors import OptionError
from tvm_ext.frontend import import_model
from tvm_ext.fusion.operator_graph import operator_graph
from tvm_ext.fusion.plan import FusionPlan
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types, kernel_mappings, kernel_tails
from tvm_ext.graph import from_relax

LOWER = tvm.transform.Sequential(
    [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant()]
)
FUSE_TIR = relax.transform.FuseTIR()
TARGET = tvm.target.Target("llvm")


def kernels(mod: tvm.IRModule) -> int:
    return sum(node.op == "call_tir" for node in from_relax(mod).nodes)


def outputs(mod: tvm.IRModule, values: list[np.ndarray]) -> list[np.ndarray]:
    return run(tvm.compile(mod, TARGET), values)


def check(mod: tvm.IRModule, values: list[np.ndarray]) -> tuple[int, int, int]:
    """Compare the results; give the kernels without fusion, with TVM's and with ours."""
    lowered = LOWER(mod)
    ours = FUSE_TIR(fuse_by_mapping_types()(lowered))
    stock = FUSE_TIR(relax.transform.FuseOps()(lowered))
    relax.analysis.well_formed(ours)
    for found, expected in zip(outputs(ours, values), outputs(lowered, values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return kernels(lowered), kernels(stock), kernels(ours)


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    check(MODULES[name], arguments(MODULES[name]))


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "tiny_cell", "tiny_transformer", "tiny_lstm"])
def test_models(name: str) -> None:
    entry = get(name)
    _, stock, ours = check(import_model(entry.onnx_path()).mod, list(entry.inputs().values()))
    assert ours <= stock


def build(make: object, *shapes: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = make(builder.emit, *parameters)  # type: ignore[operator]
            if isinstance(result, list):
                outputs = relax.Tuple([builder.emit_output(item) for item in result])
            else:
                outputs = builder.emit_output(result)
        builder.emit_func_output(outputs)
    return builder.get()


def test_several_results() -> None:
    """A value that the block and others need is written and passed on."""

    def make(emit, x, y):
        a = emit(op.add(x, y))
        b = emit(op.exp(a))
        c = emit(op.matmul(a, y))
        return [emit(op.multiply(b, a)), emit(op.negative(c)), a]

    mod = build(make, (8, 8), (8, 8))
    assert check(mod, arguments(mod))[2] == 1


def test_data_movement_joins_products() -> None:
    """TVM's patterns leave a transpose behind a product alone; here the three are one kernel."""
    mod = build(
        lambda emit, x, y: emit(op.reshape(emit(op.permute_dims(emit(op.matmul(x, y)), [1, 0])), (4, 16))),
        (8, 4),
        (4, 8),
    )
    assert check(mod, arguments(mod))[2] == 1


def test_scalars() -> None:
    mod = build(lambda emit, x: emit(op.exp(emit(op.negative(emit(op.sum(x)))))), (4, 4))
    assert check(mod, arguments(mod))[2] == 1


def test_tuples_between_members_do_not_hang() -> None:
    """a -> (a, x) -> field -> b: the tuple cannot stand between two halves of one kernel."""

    def make(emit, x):
        a = emit(op.exp(x))
        pair = emit(relax.Tuple([a, x]))
        return emit(op.add(emit(relax.TupleGetItem(pair, 0)), a))

    mod = build(make, (4, 4))
    check(mod, arguments(mod))


def plan_of(mod: tvm.IRModule) -> FusionPlan:
    graph = from_relax(mod)
    return plan_fusion(operator_graph(graph, kernel_mappings(mod, graph), kernel_tails(mod, graph)))


def test_kernels_marked_opaque_stay_alone() -> None:
    mod = LOWER(build(lambda emit, x: emit(op.exp(emit(op.negative(x)))), (4, 4)))
    assert len(plan_of(mod).blocks) == 1
    for variable, func in mod.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            mod.update_func(variable, func.with_attr("op_pattern", 8))
    assert len(plan_of(mod).blocks) == 2


def test_types_come_from_the_loops() -> None:
    mod = LOWER(MODULES["kernel"])
    assert [str(mapping.node) for mapping in kernel_mappings(mod, from_relax(mod)).values()] == ["One-to-One"]


def test_input_is_not_changed() -> None:
    mod = LOWER(MODULES["mlp"])
    before = mod.script()
    fuse_by_mapping_types()(mod)
    assert mod.script() == before


UNARY = [
    op.exp,
    op.negative,
    op.tanh,
    op.nn.relu,
    lambda x: op.permute_dims(x, [1, 0]),
    lambda x: op.reshape(x, (6, 6)),
]
ROWS = [
    lambda x: op.nn.softmax(x, -1),
    lambda x: op.sum(x, [1], keepdims=True),
    lambda x: op.max(x, [0], keepdims=True),
]
BINARY = [op.add, op.multiply, op.matmul, op.maximum]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=9))
@settings(max_examples=8, deadline=None)
def test_random_functions(choices: list[tuple[int, int, int]]) -> None:
    def make(emit, x, y):
        values = [x, y]
        for kind, first, second in choices:
            square = [value for value in values if [int(extent) for extent in value.ty.shape] == [6, 6]]
            a, b = square[first % len(square)], values[second % len(values)]
            if kind < 6:
                values.append(emit(UNARY[kind](a)))
            elif kind < 9:
                values.append(emit(ROWS[kind - 6](a)))
            else:
                b = square[second % len(square)] if kind == 11 else b
                values.append(emit(BINARY[kind - 9](a, b)))
        return [values[-1], values[len(values) // 2]] if len(values) > 3 else values[-1]

    mod = build(make, (6, 6), (6, 6))
    before, _, after = check(mod, [value * 0.3 for value in arguments(mod)])
    assert after <= before


@pytest.mark.parametrize("options", [{"fuse": "mapping-type"}, {"fuse": "mapping-type", "rewrite": "fast"}])
def test_pipeline(options: dict[str, str]) -> None:
    entry = get("tiny_cell")
    mod, values = import_model(entry.onnx_path()).mod, list(entry.inputs().values())
    expected, found = (
        run(tvm.compile(mod, TARGET, relax_pipeline=relax.get_pipeline("tvm_ext", **keywords)), values)
        for keywords in ({}, options)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"fuse": "all"}, {"rewrite": "on"}])
def test_unknown_choices(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"unknown value .*, candidates are (stock, mapping-type|off, strict, fast)"):
        relax.get_pipeline("tvm_ext", **options)


def test_groups_take_open_extents_that_no_tensor_has_as_such() -> None:
    """Behind a padding only ``h + 2`` is an extent, and the result has ``h``."""
    model = graph(
        "g (float[n,5,h,w] x) => (float[n,8,h,w] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, first) b = Conv<pads=[1,1,1,1]>(a, second) y = Relu(b) }",
        first=np.random.default_rng(0).standard_normal((8, 5, 3, 3)).astype("float32"),
        second=np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype("float32"),
    )
    results = []
    for fuse in ("stock", "mapping-type"):
        compiled = tvm_ext.compile(model, dynamic="n=0..,h=1..,w=1..", fuse=fuse)
        results.append(
            [
                compiled.run({"x": np.random.default_rng(2).standard_normal(shape).astype("float32")})["y"]
                for shape in ((1, 5, 7, 9), (2, 5, 1, 1), (0, 5, 3, 3), (1, 5, 33, 31))
            ]
        )
    for stock, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)


def test_kernels_of_open_extents_are_fused_as_by_tvm() -> None:
    """The planner knows nothing of them, and without rules nobody is asked for TVM's groups."""
    builder = relax.BlockBuilder()
    rows = tirx.Var("n", "int64")
    x, w = relax.Var("x", relax.TensorType((rows, 32), "float32")), relax.Var("w", relax.TensorType((32, 7), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))
            result = builder.emit_output(relax.op.exp(builder.emit(relax.op.add(product, relax.const(1.0)))))
        builder.emit_func_output(result)
    mod = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(builder.get()))
    fused = relax.transform.FuseTIR()(fuse_by_mapping_types()(mod))
    kernels = [func for func in fused.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert len(kernels) == 1
