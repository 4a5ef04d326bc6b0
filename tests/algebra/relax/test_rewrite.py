"""Algebraic rewriting of Relax functions: the same values, fewer operations, the rest left alone."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.double_precision import double_precision_outputs, in_double_precision, relative_error
from tests.modules import MODULES, arguments, run
from tests.zoo import ZOO, get
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.frontend import import_model
from tvm_ext.graph import from_relax

TARGET = tvm.target.Target("llvm")
GENERATOR = np.random.default_rng(0)


def weight(*shape: int) -> relax.Expr:
    return relax.const(GENERATOR.uniform(0.5, 1.5, shape).astype("float32"))


def signed_weight(*shape: int) -> relax.Expr:
    """Weights without a common mean: a normalisation behind them does not cancel most of its digits."""
    return relax.const(GENERATOR.standard_normal(shape).astype("float32"))


def number(value: float) -> relax.Expr:
    return relax.const(np.float32(value))


def build(make: object, *shapes: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *parameters))  # type: ignore[operator]
        builder.emit_func_output(result)
    return builder.get()


def rewritten(mod: tvm.IRModule, mode: str = "strict") -> tvm.IRModule:
    after = rewrite_algebra(mode)(mod)  # type: ignore[arg-type]
    relax.analysis.well_formed(after)
    return after


def operators(mod: tvm.IRModule) -> list[str]:
    return [node.op for node in from_relax(mod).nodes]


def check(mod: tvm.IRModule, after: tvm.IRModule, values: list[np.ndarray] | None = None) -> None:
    values = arguments(mod) if values is None else values
    for got, expected in zip(
        run(tvm.compile(after, TARGET), values), run(tvm.compile(mod, TARGET), values), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * (np.std(expected) + 1e-6))


@pytest.mark.parametrize(
    ("make", "shapes", "expected"),
    [
        (
            lambda e, a: e(op.multiply(e(op.multiply(a, number(2))), number(3))),
            ((3, 4),),
            ["multiply"],
        ),
        (
            lambda e, a: e(op.multiply(e(op.add(e(op.matmul(a, weight(4, 5))), weight(5))), weight(5))),
            ((3, 4),),
            ["matmul", "add"],
        ),
        (
            lambda e, a: e(op.divide(e(op.add(e(op.matmul(a, weight(4, 5))), weight(5))), number(8))),
            ((3, 4),),
            ["matmul", "add"],
        ),
        (lambda e, a: e(op.matmul(e(op.multiply(a, weight(4))), weight(4, 5))), ((3, 4),), ["matmul"]),
        (
            lambda e, a: e(op.multiply(e(op.nn.conv2d(a, weight(4, 3, 3, 3))), number(2))),
            ((1, 3, 6, 6),),
            ["nn.conv2d"],
        ),
    ],
    ids=["numbers", "scale", "divide", "scale before", "convolution"],
)
def test_known_gains(make: object, shapes: tuple[tuple[int, ...], ...], expected: list[str]) -> None:
    mod = build(make, *shapes)
    after = rewritten(mod)
    assert sorted(name for name in operators(after) if name != "reshape") == sorted(expected)
    assert from_relax(after).flops.total < from_relax(mod).flops.total
    check(mod, after)


def test_scale_of_attention_moves_into_the_weights() -> None:
    """softmax((x w + b)^T k / 8): the division goes through the product, the transpose and the reshape."""

    def make(emit, x, k):
        query = emit(op.add(emit(op.matmul(x, weight(8, 8))), weight(8)))
        heads = emit(op.permute_dims(emit(op.reshape(query, (6, 2, 4))), [1, 0, 2]))
        return emit(op.nn.softmax(emit(op.divide(emit(op.matmul(heads, k)), number(2)))))

    mod = build(make, (6, 8), (2, 4, 6))
    after = rewritten(mod)
    assert "divide" not in operators(after)
    check(mod, after)


def test_residual_stream_is_centred() -> None:
    """The means of normalisations before each block vanish; one with another reader stays."""

    def normalised(emit, x):
        difference = emit(op.subtract(x, emit(op.mean(x, [-1], keepdims=True))))
        variance = emit(op.mean(emit(op.square(difference)), [-1], keepdims=True))
        return emit(op.divide(difference, emit(op.sqrt(emit(op.add(variance, number(1e-5)))))))

    def make(emit, x, is_returned=False):
        stream = emit(op.add(emit(op.matmul(x, signed_weight(8, 8))), signed_weight(8)))
        for _ in range(2):
            hidden = emit(op.nn.relu(emit(op.matmul(normalised(emit, stream), signed_weight(8, 16)))))
            stream = emit(op.add(stream, emit(op.add(emit(op.matmul(hidden, signed_weight(16, 8))), signed_weight(8)))))
        last = normalised(emit, stream)
        return emit(op.add(last, stream)) if is_returned else last

    mod = build(make, (6, 8))
    report = AlgebraReport()
    after = rewrite_algebra("strict", report)(mod)
    assert report.centred == 3
    assert operators(mod).count("mean") == 6
    assert operators(after).count("mean") == 3
    check(mod, after)
    kept = build(lambda emit, x: make(emit, x, True), (6, 8))
    report = AlgebraReport()
    check(kept, rewrite_algebra("strict", report)(kept))
    assert report.centred == 0


def test_modes() -> None:
    """A sum in front of a product may be near zero, where its parts are not."""
    mod = build(lambda e, a: e(op.matmul(e(op.add(a, weight(8))), weight(8, 5))), (3, 8))
    tvm.ir.assert_structural_equal(rewritten(mod), relax.transform.CanonicalizeBindings()(mod))
    assert operators(rewritten(mod, "fast")) == ["matmul", "add"]
    check(mod, rewritten(mod, "fast"))


def test_sum_of_factors_may_overflow() -> None:
    """a c + a b is finite where a is small, and b + c is not: only the fast mode factors a out."""
    mod = build(lambda e, a, b, c: e(op.add(e(op.multiply(a, b)), e(op.multiply(a, c)))), *((3, 4),) * 3)
    assert operators(rewritten(mod)) == ["multiply", "multiply", "add"]
    assert operators(rewritten(mod, "fast")) == ["add", "multiply"]
    check(mod, rewritten(mod, "fast"))


def test_shared_weights_stay_one_tensor() -> None:
    table = weight(300, 60)

    def make(emit, x, y):
        first = emit(op.matmul(emit(op.multiply(x, number(2))), table))
        return emit(op.add(first, emit(op.nn.softmax(emit(op.matmul(y, table))))))

    mod = build(make, (3, 300), (3, 300))
    after = rewritten(mod)
    assert len(from_relax(after).constants) == len(from_relax(mod).constants)
    check(mod, after)


def test_input_is_not_changed() -> None:
    mod = build(lambda e, a, b, c: e(op.add(e(op.multiply(a, b)), e(op.multiply(a, c)))), *((3, 4),) * 3)
    before = mod.script()
    rewritten(mod, "fast")
    assert mod.script() == before


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    check(MODULES[name], rewritten(MODULES[name]))


def zoo_agrees(name: str) -> None:
    entry = get(name)
    if reason := entry.missing():
        pytest.skip(reason)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    after = rewritten(mod)
    assert from_relax(after).flops.total <= from_relax(mod).flops.total
    if [node.op for node in from_relax(after).nodes] == [node.op for node in from_relax(mod).nodes]:
        return  # nothing was rewritten
    values = list(entry.inputs().values())
    pipeline = relax.get_pipeline("tvm_ext")
    found, before = (run(tvm.compile(each, TARGET, relax_pipeline=pipeline), values) for each in (after, mod))
    as_exact_as_the_original(mod, values, found, before)


def as_exact_as_the_original(
    mod: tvm.IRModule, values: list[np.ndarray], found: list[np.ndarray], before: list[np.ndarray]
) -> None:
    """Compare with the original: within 1e-5 of the largest value, or else no worse than the original in float32.

    Some networks amplify rounding, so that two right results differ by more. What counts then is the distance to the
    same network in float64: no larger than that of the original network as compiled by us or by TVM alone.
    """
    floats = [np.issubdtype(array.dtype, np.floating) for array in before]
    for is_float, got, expected in zip(floats, found, before, strict=True):
        if not is_float:
            np.testing.assert_array_equal(got, expected)
    errors = [relative_error(*pair) for is_float, *pair in zip(floats, found, before, strict=True) if is_float]
    if max(errors, default=0.0) <= 1e-5:
        return
    stock = run(tvm.compile(mod, TARGET), values)
    exact = double_precision_outputs(mod, values)
    for is_float, got, ours, theirs, reference in zip(floats, found, before, stock, exact, strict=True):
        if is_float:
            allowed = max(1e-5, relative_error(ours, reference), relative_error(theirs, reference))
            assert relative_error(got, reference) <= allowed


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "tiny_cell", "tiny_transformer", "tiny_lstm"])
def test_small_models(name: str) -> None:
    zoo_agrees(name)


def test_distance_to_double_precision_decides() -> None:
    """(x + 1000) - 1000 loses digits: a result that loses no more than it passes, one that loses more does not."""
    mod = build(lambda e, x: e(op.subtract(e(op.add(x, number(1000))), number(1000))), (4, 5))
    values = arguments(mod)
    (exact,) = double_precision_outputs(mod, values)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, values[0], rtol=1e-9, atol=1e-9)
    before = run(tvm.compile(mod, TARGET), values)
    assert relative_error(before[0], exact) > 1e-5
    as_exact_as_the_original(mod, values, [values[0]], before)
    with pytest.raises(AssertionError):
        as_exact_as_the_original(mod, values, [values[0] + np.float32(1e-3)], before)


def test_double_precision_reaches_every_operator() -> None:
    wide = from_relax(in_double_precision(MODULES["mlp"]))
    assert {tensor.dtype for tensor in wide.tensors.values()} == {"float64"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ZOO if not name.startswith("tiny")])
def test_whole_zoo(name: str) -> None:
    zoo_agrees(name)


_BINARY = [op.add, op.subtract, op.multiply, op.maximum]
_UNARY = [
    op.exp,
    op.negative,
    op.square,
    op.abs,
    op.tanh,
    lambda x: op.multiply(x, number(2)),
    lambda x: op.add(x, number(1)),
]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=8))
@settings(max_examples=10, deadline=None)
def test_random_functions(choices: list[tuple[int, int, int]]) -> None:
    def make(emit, x, y):
        values = [x, y]
        for kind, first, second in choices:
            a, b = values[first % len(values)], values[second % len(values)]
            if kind < 4:
                made = _BINARY[kind](a, b)
            elif kind < 11:
                made = _UNARY[kind - 4](a)
            else:
                made = op.matmul(a, weight(4, 4)) if kind == 11 else op.mean(a, [1], keepdims=True)
                made = made if kind == 11 else op.subtract(a, emit(made))
            values.append(emit(op.tanh(emit(made))))
        return values[-1]

    mod = build(make, (4, 4), (4, 4))
    check(mod, rewritten(mod))
