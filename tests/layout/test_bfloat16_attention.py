"""Attention of ``precision="bfloat16"`` on a CPU: rounded operands of both products, the softmax in float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.cpu import needs_avx512_bf16
from tvm_ext.backends.cpu.target import native_target

Array = np.ndarray
op = relax.op

CASES = [
    # batch, heads, queries, keys, width of a head, width of the values
    (1, 3, 17, 17, 7, 33),
    (2, 2, 31, 31, 33, 1),
    (1, 1, 127, 7, 1, 31),
    (3, 2, 5, 127, 64, 3),
    (1, 2, 33, 1, 31, 17),
    (1, 4, 128, 128, 32, 32),
    (2, 1, 16, 48, 64, 80),
]


def rounded(values: Array) -> Array:
    return values.astype("float32").astype(ml_dtypes.bfloat16).astype("float64")


def attention(case: tuple[int, ...], masked: bool = False, dtype: str = "float32") -> tuple[tvm.IRModule, list[Array]]:
    """Make ``softmax(q k^T / 2 + mask) v`` of operands whose heads lie inside, and its inputs."""
    batch, heads, queries, keys, width, out = case
    rng = np.random.default_rng(sum(case))
    shapes = {"q": (batch, queries, heads, width), "k": (batch, keys, heads, width), "v": (batch, keys, heads, out)}
    if masked:
        shapes["mask"] = (batch, 1, queries, keys)
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            q, k, v = (
                builder.emit(op.permute_dims(value, axes))
                for value, axes in zip(params, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], strict=False)
            )
            scores = builder.emit(op.multiply(builder.emit(op.matmul(q, k)), relax.const(0.5, dtype)))
            scores = builder.emit(op.add(scores, params[3])) if masked else scores
            result = builder.emit(op.matmul(builder.emit(op.nn.softmax(scores)), v))
            result = builder.emit_output(op.permute_dims(result, (0, 2, 1, 3)))
        builder.emit_func_output(result)
    return builder.get(), [rng.standard_normal(shape).astype(dtype) for shape in shapes.values()]


def expected(inputs: list[Array], rounds: bool = True) -> Array:
    """Compute it in double precision, from operands rounded where the kernel rounds them."""
    cut = rounded if rounds else np.float64
    q, k, v = (np.moveaxis(cut(value), 1, 2) for value in inputs[:3])
    scores = (q @ k.swapaxes(-1, -2)) / 2
    if len(inputs) > 3:
        scores = scores + inputs[3]
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.moveaxis(cut(weights) @ v / weights.sum(-1, keepdims=True), 1, 2)


def compiled(mod: tvm.IRModule, cores: int = 0) -> Any:
    target = tvm.target.Target({**dict(native_target().export()), "num-cores": cores}) if cores else "native"
    return tvm_ext.compile(mod, target, precision="bfloat16")


def run(model: Any, inputs: list[Array]) -> Array:
    (result,) = model.run(inputs).values()
    return result


@needs_avx512_bf16
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_extents(case: tuple[int, ...], masked: bool) -> None:
    mod, inputs = attention(case, masked)
    model = compiled(mod, cores=2)
    # Products of one column stay in float32.
    rounds = case[3] > 1 and case[5] > 1
    assert model.metadata["decisions"]["precision"]["rounded_calls"] == rounds
    # A weight whose exponential is off in the last place may round to the next bfloat16: one of many.
    reference = expected(inputs, rounds)
    assert np.abs(run(model, inputs) - reference).max() <= 2**-9 * np.abs(reference).max()
    exact = expected(inputs, rounds=False)
    assert np.sqrt(np.mean((run(model, inputs) - exact) ** 2)) <= 0.01 * np.sqrt(np.mean(exact**2))


@needs_avx512_bf16
def test_what_is_masked_counts_for_nothing_and_nan_stays_in_its_row() -> None:
    mod, inputs = attention((1, 2, 19, 21, 16, 16), masked=True)
    inputs[3][..., 20] = -np.inf
    inputs[3][:, :, 4] = -np.inf  # nothing is left of this row
    inputs[0][0, 7, 1, 3] = np.nan
    result, reference = run(compiled(mod), inputs), expected(inputs)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(reference))
    assert np.isnan(result[0, 4]).all()
    assert np.isnan(result[0, 7, 1]).all()
    assert np.nanmax(np.abs(result - reference)) <= 2**-8
    changed = [value.copy() for value in inputs]
    changed[2][0, 20] += 100
    np.testing.assert_array_equal(run(compiled(mod), changed), result)


@needs_avx512_bf16
def test_doubles_are_not_rounded() -> None:
    mod, inputs = attention((1, 2, 17, 17, 16, 16), dtype="float64")
    np.testing.assert_allclose(run(compiled(mod), inputs), expected(inputs, rounds=False), rtol=1e-12)
