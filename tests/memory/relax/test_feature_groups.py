"""Blocks between products group by group: values by numpy, and less memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op

from tests.memory.relax.modules import lowered, results_of
from tvm_ext.backends import common
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import lower
from tvm_ext.errors import MemoryLimitError
from tvm_ext.memory.part_costs import PartCosts
from tvm_ext.memory.relax import feature_blocks, feature_groups
from tvm_ext.memory.relax.around_blocks import surroundings
from tvm_ext.memory.relax.feature_blocks import FunctionBlocks
from tvm_ext.memory.relax.feature_groups import run_in_groups
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.options import PipelineOptions
from tvm_ext.relax_utils import static_shape
from tvm_ext.target import resolve_target

Array = np.ndarray


def transformer(rows: int, features: int, heads: int, hidden: int, packed: bool = False, masked: bool = False) -> Any:
    """Make a block of attention and feed-forward, and the same in numpy."""
    rng = np.random.default_rng(rows + features)
    depth = features // heads

    def random(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype("float32")

    w, b = random(features, 3 * features), random(3 * features)
    project, up, down = random(features, features), random(features, hidden), random(hidden, features)
    up_bias, down_bias = random(hidden), random(features)
    mask = np.where(rng.random((1, 1, 1, rows)) < 0.3, -1e4, 0).astype("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, rows, features), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():

            def product(value: Any, weight: Array, bias: Array | None = None) -> Any:
                y = builder.emit(op.matmul(value, relax.const(weight)))
                return y if bias is None else builder.emit(op.add(y, relax.const(bias)))

            if packed:
                split = builder.emit(op.split(product(x, w, b), 3, axis=2))
                parts = [builder.emit(relax.TupleGetItem(split, number)) for number in range(3)]
            else:
                ends = [(number * features, (number + 1) * features) for number in range(3)]
                parts = [product(x, w[:, first:last].copy(), b[first:last].copy()) for first, last in ends]
            parts = [builder.emit(op.reshape(part, (1, rows, heads, depth))) for part in parts]
            axes = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
            q, k, v = (builder.emit(op.permute_dims(part, order)) for part, order in zip(parts, axes, strict=True))
            scores = builder.emit(op.divide(builder.emit(op.matmul(q, k)), relax.const(float(np.sqrt(depth)))))
            if masked:
                scores = builder.emit(op.add(scores, relax.const(mask)))
            y = builder.emit(op.matmul(builder.emit(op.nn.softmax(scores)), v))
            y = builder.emit(op.reshape(builder.emit(op.permute_dims(y, [0, 2, 1, 3])), (1, rows, features)))
            y = builder.emit(op.add(x, product(y, project)))
            z = product(builder.emit(op.nn.relu(product(y, up, up_bias))), down, down_bias)
            result = builder.emit_output(op.tanh(builder.emit(op.add(z, y))))
        builder.emit_func_output(result)

    def oracle(value: Array) -> Array:
        value = value.astype("float64")
        q, k, v = (
            part.reshape(rows, heads, depth).transpose(1, 0, 2) for part in np.split((value @ w + b)[0], 3, axis=-1)
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(depth) + (mask[0] if masked else 0)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        y = value + (shares @ v).transpose(1, 0, 2).reshape(1, rows, features) @ project
        return np.tanh(np.maximum(y @ up + up_bias, 0) @ down + down_bias + y)

    return relax.transform.Normalize()(builder.get()), oracle


def fewer_by_length(mod: tvm.IRModule) -> int:
    """Count less memory the more operators there are, so that as many groups as there can be are taken."""
    return 10_000 - len(mod["main"].body.blocks[0].bindings)


CASES: list[dict[str, Any]] = [
    {"rows": 33, "features": 48, "heads": 6, "hidden": 96},
    {"rows": 17, "features": 60, "heads": 12, "hidden": 127},
    {"rows": 1, "features": 24, "heads": 2, "hidden": 36, "masked": True},
    {"rows": 31, "features": 32, "heads": 4, "hidden": 33, "packed": True},
    {"rows": 7, "features": 21, "heads": 3, "hidden": 63, "packed": True, "masked": True},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("groups", [(2, 3), (2, 3, 4, 6, 8)])
def test_values(case: dict[str, Any], groups: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A division gives the values of numpy; NaN stays NaN."""
    monkeypatch.setattr(feature_blocks, "GROUPS", groups)
    mod, oracle = transformer(**case)
    divided = run_in_groups(fewer_by_length)(mod)
    assert not tvm_ffi.structural_equal(divided["main"], mod["main"])
    value = np.random.default_rng(3).standard_normal((1, case["rows"], case["features"])).astype("float32")
    (found,) = results_of(lowered(divided), [value])
    np.testing.assert_allclose(found, oracle(value), rtol=2e-5, atol=2e-5)
    value[0, -1, 2] = np.nan
    (found,) = results_of(lowered(divided), [value])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(oracle(value)))


def test_less_memory() -> None:
    """Hidden features and heads in groups: a third less at least; a limit asks for as few groups as are enough."""
    mod, oracle = transformer(64, 96, 6, 384)
    target = resolve_target(None)
    whole = lower(mod, target, PipelineOptions())[1]
    grouped = lowered(mod, patches="always")
    least = lower(mod, target, PipelineOptions(patches="always"))[1]
    assert whole is not None
    assert least is not None
    assert least.planned_bytes < 0.67 * whole.planned_bytes
    note = memory_decisions(grouped)["main"]["groups"]
    assert note["products"] == 2
    assert note["after"] == least.planned_bytes
    value = np.random.default_rng(5).standard_normal((1, 64, 96)).astype("float32")
    np.testing.assert_allclose(results_of(grouped, [value])[0], oracle(value), rtol=2e-5, atol=2e-5)
    limit = least.planned_bytes + least.output_bytes
    limited = lower(mod, target, PipelineOptions(memory="arena", memory_limit=limit))
    assert memory_decisions(limited[0])["main"]["groups"]
    with pytest.raises(
        MemoryLimitError, match=r"with hidden features or heads in up to \d groups, for \d+ more"
    ) as error:
        lower(mod, target, PipelineOptions(memory="arena", memory_limit=64))
    assert f"raise the limit to {limit}B;" in str(error.value)
    roomy = lower(mod, target, PipelineOptions(memory="arena", memory_limit=4 * limit))
    assert "groups" not in memory_decisions(roomy[0])["main"]


def test_what_is_needed_elsewhere_stays() -> None:
    """Features that something else reads would be computed twice: they are left alone."""
    x = relax.Var("x", relax.TensorType((3, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(op.nn.relu(builder.emit(op.matmul(x, relax.const(np.ones((8, 16), "float32"))))))
            y = builder.emit(op.matmul(hidden, relax.const(np.ones((16, 4), "float32"))))
            result = builder.emit_output(relax.Tuple([y, builder.emit(op.sum(hidden, axis=1))]))
        builder.emit_func_output(result)
    mod = builder.get()
    assert tvm_ffi.structural_equal(run_in_groups(fewer_by_length)(mod), mod)


FREE = PartCosts(flops=1e11, kernel_seconds=1e-9, bandwidth=1e13, near=1 << 20)
"""Of a machine that calls kernels and reads sums in no time."""


def feed_forward(hidden: Sequence[int], dtype: str = "float32", other: str = "", beside: int = 0) -> tvm.IRModule:
    """Make feed-forward blocks of 32 rows and 16 features, each of which ends in a softmax.

    ``other`` is the type of a product that belongs to no block; ``beside`` are tensors as large as a block's input that
    are alive all along.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 16), dtype))

    def product(value: Any, columns: int) -> Any:
        kind = str(value.ty.dtype)
        weight = np.random.default_rng(columns).standard_normal((int(value.ty.shape[1]), columns)) / 4
        return builder.emit(op.matmul(value, relax.const(weight.astype(kind), kind)))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.softmax(x))
            kept = [builder.emit(op.tanh(builder.emit(op.concat([y] * beside, axis=1))))] if beside else []
            for features in hidden:
                y = builder.emit(op.nn.softmax(product(builder.emit(op.nn.relu(product(y, features))), 16)))
            ends = [y, *kept, *([product(builder.emit(op.astype(y, other)), 3)] if other else [])]
            result = builder.emit_output(relax.Tuple([builder.emit(op.tanh(end)) for end in ends]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def note_of(mod: tvm.IRModule) -> dict[str, Any] | None:
    note = (mod["main"].attrs or {}).get(feature_groups.GROUPS_ATTRIBUTE)
    return None if note is None else json.loads(str(note))


@pytest.mark.parametrize(
    ("dtype", "other", "free"),
    [("float32", "", True), ("float64", "", False), ("float16", "", False), ("float32", "float64", False)],
)
def test_other_types_stay_whole_by_default(dtype: str, other: str, free: bool) -> None:
    """What products of other types cost is not known: nobody gets groups there without asking for less memory."""
    mod = feed_forward([128], dtype, other=other)
    assert (note_of(run_in_groups(largest_tensor, costs=FREE)(mod)) is not None) is free
    if dtype == "float64":
        assert note_of(run_in_groups(fewer_by_length)(mod)) is not None


def test_products_of_bfloat16_take_half_the_time() -> None:
    """So that the same calls and sums are twice the part of it."""
    target = resolve_target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    single, half = (
        common._part_costs(backend_of(target), target, PipelineOptions(precision=precision))
        for precision in ("float32", "bfloat16")
    )
    assert single is not None
    assert half == replace(single, flops=2 * single.flops)


def test_kinds_of_block_that_decide() -> None:
    """Blocks below the peak that groups leave stay whole, and do not lower that of the others."""
    note = note_of(run_in_groups(largest_tensor, costs=FREE)(feed_forward([256, 48, 256])))
    assert note is not None
    # The input of each block is needed by nothing else; 32 rows of 256 features, or of half as many.
    assert (note.pop("before"), note.pop("after")) == (4 * 32 * 256, 4 * 32 * 128)
    assert note == {"products": 2, "groups": [2], "more_calls": 4}  # two products a block


@pytest.mark.parametrize(("features", "products"), [(112, 2), (120, 4), (128, 4)])
def test_blocks_near_the_peak_that_groups_leave(features: int, products: int) -> None:
    """They are divided, too, as their peaks are counted roughly: 128 features are what groups of the others leave."""
    note = note_of(run_in_groups(largest_tensor, costs=FREE)(feed_forward([256, features])))
    assert note is not None
    assert note["more_calls"] == products


@pytest.mark.parametrize(("beside", "is_worth_it"), [(16, True), (63, True), (65, False), (200, False)])
def test_the_peak_of_the_whole_function_decides(beside: int, is_worth_it: bool) -> None:
    """What is alive beside a block and is not the block's makes what groups save a smaller part: a tenth at least."""
    mod = feed_forward([256, 256], beside=beside)
    note = note_of(run_in_groups(largest_tensor, costs=FREE)(mod))
    assert (note is not None) is is_worth_it
    if note is not None:
        kept = beside * 4 * 32 * 16
        assert (note["before"], note["after"]) == (kept + 4 * 32 * 256, kept + 4 * 32 * 128)


@pytest.mark.parametrize("beside", [0, 3])
def test_what_is_alive_around_blocks(beside: int) -> None:
    """By hand: between blocks a softmax reads one tensor of 2,048 bytes and writes one, beside what is kept."""
    func = feed_forward([256, 48], beside=beside)["main"]
    blocks = FunctionBlocks(func).blocks()
    found = surroundings(func, blocks)
    assert found is not None
    assert len(found.beside) == 2
    assert set(found.beside.values()) == {2048 * beside}
    assert found.between == 2048 * (beside + 2)


def test_a_residual_is_alive_beside_a_block_that_reads_something_else() -> None:
    """Lowered by itself, the block would compute it last."""
    mod, _ = transformer(31, 32, 4, 64)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((31, 32), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.softmax(x))
            z = builder.emit(op.nn.softmax(y))
            for columns in (64, 32):
                weight = relax.const(np.ones((int(z.ty.shape[1]), columns), "float32"))
                z = builder.emit(op.matmul(z, weight))
            result = builder.emit_output(op.tanh(builder.emit(op.add(z, y))))
        builder.emit_func_output(result)
    for func, beside in ((builder.get()["main"], 4 * 31 * 32), (mod["main"], 0)):
        blocks = FunctionBlocks(func).blocks()
        found = surroundings(func, blocks)
        assert found is not None
        assert max(found.beside.values()) == beside


def largest_tensor(mod: tvm.IRModule) -> int:
    """Bytes of the largest tensor that is computed."""
    bindings = mod["main"].body.blocks[0].bindings
    return max(4 * int(np.prod(static_shape(binding.var) or (0,))) for binding in bindings)


@pytest.mark.parametrize(
    ("kernel_seconds", "bandwidth", "free"), [(1e-9, 1e13, True), (1e-3, 1e13, False), (1e-9, 1e6, False)]
)
def test_groups_that_nobody_asked_for(kernel_seconds: float, bandwidth: float, free: bool) -> None:
    """Two groups where a machine calls kernels and reads sums in no time; none elsewhere."""
    mod, oracle = transformer(64, 96, 6, 384)
    costs = PartCosts(flops=1e11, kernel_seconds=kernel_seconds, bandwidth=bandwidth, near=1 << 20)
    divided = run_in_groups(largest_tensor, costs=costs)(mod)
    note = (divided["main"].attrs or {}).get(feature_groups.GROUPS_ATTRIBUTE)
    assert (note is not None) is free
    if free:
        assert json.loads(str(note))["groups"] == [2]
    value = np.random.default_rng(7).standard_normal((1, 64, 96)).astype("float32")
    np.testing.assert_allclose(results_of(lowered(divided), [value])[0], oracle(value), rtol=2e-5, atol=2e-5)
