"""Attention found in products and softmax, compiled to one kernel: same values, nothing taken that is used twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

import tvm_ext  # noqa: F401
from tests.layout.test_pack_matmul import Array, module, operators, packed, run
from tvm_ext.graph import from_relax
from tvm_ext.passes.decompose_attention import decompose_attention

Steps = Callable[[relax.BlockBuilder, relax.Expr, relax.Expr], relax.Expr]


def scaled_and_masked(builder: relax.BlockBuilder, scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
    scores = builder.emit(op.multiply(scores, relax.const(0.125, str(scores.ty.dtype))))
    return builder.emit(op.add(scores, mask))


def selected(builder: relax.BlockBuilder, scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
    shape = [int(extent) for extent in scores.ty.shape]
    kept = relax.const(np.tril(np.ones(shape[-2:], bool)))
    low = relax.const(-10000.0, str(scores.ty.dtype))
    return builder.emit(op.where(kept, builder.emit(op.divide(scores, relax.const(8.0, str(low.ty.dtype)))), low))


def untouched(builder: relax.BlockBuilder, scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
    return scores


def attention(steps: Steps, heads_inside: bool) -> Callable[..., relax.Expr]:
    """Build attention; with ``heads_inside`` the operands are (B, S, N, H), as projections leave them."""

    def build(builder: relax.BlockBuilder, *inputs: relax.Var) -> relax.Expr:
        query, key, value, mask = inputs
        if heads_inside:
            query, key, value = (builder.emit(op.permute_dims(item, [0, 2, 1, 3])) for item in (query, key, value))
        scores = builder.emit(op.matmul(query, builder.emit(op.permute_dims(key, [0, 1, 3, 2]))))
        weights = builder.emit(op.nn.softmax(steps(builder, scores, mask), -1))
        result = op.matmul(weights, value)
        return op.permute_dims(builder.emit(result), [0, 2, 1, 3]) if heads_inside else result

    return build


def oracle(steps: Steps, heads_inside: bool, query: Array, key: Array, value: Array, mask: Array) -> Array:
    dtype = query.dtype
    query, key, value, mask = (item.astype("float64") for item in (query, key, value, mask))
    if heads_inside:
        query, key, value = (item.transpose(0, 2, 1, 3) for item in (query, key, value))
    scores = query @ key.transpose(0, 1, 3, 2)
    if steps is scaled_and_masked:
        scores = scores * 0.125 + mask
    elif steps is selected:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores / 8, -10000.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ value
    return (result.transpose(0, 2, 1, 3) if heads_inside else result).astype(dtype)


def check(
    steps: Steps, heads_inside: bool, sizes: tuple[int, ...], dtype: str = "float32", shared_keys: bool = False
) -> None:
    batch, heads, rows, columns, depth, width = sizes
    shapes = [(batch, heads, rows, depth), (batch, heads, columns, depth), (batch, heads, columns, width)]
    if shared_keys:
        shapes = [shapes[0], *((1, 1, *shape[2:]) for shape in shapes[1:])]
    if heads_inside:
        shapes = [(shape[0], shape[2], shape[1], shape[3]) for shape in shapes]
    mod = module(attention(steps, heads_inside), *shapes, (batch, 1, 1, columns), dtype=dtype)
    assert operators(packed(mod)).count("attention") == 1
    assert "matmul" not in operators(packed(mod))
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal([int(extent) for extent in var.ty.shape]).astype(dtype) for var in mod["main"].params
    ]
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    expected = oracle(steps, heads_inside, *inputs)
    np.testing.assert_allclose(run(mod, inputs), expected, rtol=tolerance, atol=tolerance)


AWKWARD = [5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129]


@pytest.mark.parametrize(
    ("steps", "heads_inside"), list(product([untouched, scaled_and_masked, selected], [False, True]))
)
def test_steps_and_layouts(steps: Steps, heads_inside: bool) -> None:
    check(steps, heads_inside, (2, 3, 40, 40, 16, 24))


@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3]),
    *(st.sampled_from(AWKWARD) for _ in range(4)),
    st.booleans(),
)
@hypothesis_settings(max_examples=8)
def test_awkward_sizes(batch, heads, rows, columns, depth, width, heads_inside) -> None:
    check(scaled_and_masked, heads_inside, (batch, heads, rows, columns, depth, width))


def test_double_precision_and_shared_keys() -> None:
    check(scaled_and_masked, False, (1, 2, 17, 33, 8, 9), dtype="float64")
    check(scaled_and_masked, False, (1, 4, 13, 33, 16, 16), shared_keys=True)


def test_scores_are_not_in_memory() -> None:
    mod = module(attention(scaled_and_masked, False), *((1, 2, 64, 16),) * 3, (1, 1, 1, 64))
    scores = (1, 2, 64, 64)
    assert scores in [tensor.shape for tensor in from_relax(mod).tensors.values()]
    assert scores not in [tensor.shape for tensor in from_relax(packed(mod)).tensors.values()]


def reads_scores_twice(builder, query, key, value):
    scores = builder.emit(op.matmul(query, key))
    return op.add(builder.emit(op.matmul(builder.emit(op.nn.softmax(scores, -1)), value)), scores)


def softmax_over_rows(builder, query, key, value):
    return op.matmul(builder.emit(op.nn.softmax(builder.emit(op.matmul(query, key)), -2)), value)


def product_of_three(builder, query, key, value):
    return op.matmul(builder.emit(op.nn.relu(builder.emit(op.matmul(query, key)))), value)


@pytest.mark.parametrize("build", [reads_scores_twice, softmax_over_rows, product_of_three])
def test_what_is_no_attention_stays(build: Callable[..., relax.Expr]) -> None:
    mod = module(build, *((2, 16, 16),) * 3)
    assert "attention" not in operators(packed(mod))
    inputs = [np.random.default_rng(number).standard_normal((2, 16, 16)).astype("float32") for number in range(3)]
    np.testing.assert_allclose(run(mod, inputs), run(mod, inputs, "default"), rtol=1e-4, atol=1e-5)


def test_few_rows_stay_products() -> None:
    mod = module(attention(untouched, False), (1, 2, 1, 16), (1, 2, 40, 16), (1, 2, 40, 16), (1, 1, 1, 40))
    assert "attention" not in operators(packed(mod))


@pytest.mark.parametrize("causal", [None, "TopLeft", "BottomRight"])
@pytest.mark.parametrize("biased", [False, True])
def test_decomposition(causal: str | None, biased: bool) -> None:
    """The operator's own legalization is the oracle."""
    shapes = [(2, 9, 3, 16), (2, 21, 3, 16), (2, 21, 3, 8), *([(2, 3, 9, 21)] if biased else [])]

    def build(builder: relax.BlockBuilder, query, key, value, bias=None) -> relax.Expr:
        return op.nn.attention(query, key, value, bias, None if biased else 0.3, causal)

    mod = module(build, *shapes)
    assert operators(decompose_attention()(mod)).count("matmul") == 2
    inputs = [
        np.random.default_rng(number).standard_normal(shape).astype("float32") for number, shape in enumerate(shapes)
    ]
    np.testing.assert_allclose(run(mod, inputs), run(mod, inputs, "default"), rtol=1e-4, atol=1e-5)
