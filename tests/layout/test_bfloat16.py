"""``precision="bfloat16"`` on a CPU: products and convolutions of rounded operands, against numpy and torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tvm import relax

import tvm_ext
from tests.commands import real_command
from tests.cpu import needs_avx512_bf16
from tests.layout.test_pack_matmul import module
from tests.zoo import ZOO
from tvm_ext.errors import OptionError

Array = np.ndarray
op = relax.op


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """Let a kernel that no rule could schedule fail the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def rounded(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype("float64")


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def computed(mod: Any, x: Array, **options: Any) -> Array:
    (result,) = tvm_ext.compile(mod, precision="bfloat16", **options).run([x]).values()
    return result


def product(shape: tuple[int, ...], weight: Array, bias: Array | None = None, transposed: bool = False) -> Any:
    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        value = builder.emit(op.permute_dims(x, [0, 2, 1])) if transposed else x
        result = op.matmul(value, relax.const(weight))
        return result if bias is None else op.nn.relu(builder.emit(op.add(builder.emit(result), relax.const(bias))))

    return module(build, shape)


@needs_avx512_bf16
@pytest.mark.parametrize(
    ("rows", "reduction", "columns"),
    [
        (1, 1, 1), (1, 1, 16), (1, 5, 1), (2, 2, 3), (3, 7, 17), (7, 17, 31), (17, 31, 33), (31, 33, 127),
        (33, 127, 1), (127, 3, 7), (1, 127, 1000), (5, 128, 48), (64, 256, 96), (200, 64, 513),
    ],
)  # fmt: skip
def test_products(rows: int, reduction: int, columns: int) -> None:
    weight, bias, x = random(reduction, columns), random(columns), random(rows, reduction)
    result = computed(product((rows, reduction), weight, bias), x)
    exact = columns == 1  # products of one column stay in float32
    expected = x.astype("float64") @ weight if exact else rounded(x) @ rounded(weight)
    np.testing.assert_allclose(result, np.maximum(expected + bias, 0), rtol=0, atol=2e-6 * max(8, reduction))


@needs_avx512_bf16
def test_rows_through_a_transpose_and_batches() -> None:
    weight, x = random(33, 40), random(2, 33, 9)
    result = computed(product((2, 33, 9), weight, transposed=True), x)
    np.testing.assert_allclose(result, rounded(x).swapaxes(1, 2) @ rounded(weight), rtol=0, atol=1e-4)
    weights, x = random(3, 17, 24), random(3, 5, 17)
    result = computed(product((3, 5, 17), weights), x)
    np.testing.assert_allclose(result, rounded(x) @ rounded(weights), rtol=0, atol=1e-4)


@needs_avx512_bf16
def test_nan_and_infinity() -> None:
    x, weight = random(6, 35), random(35, 20)
    x[0, 34], x[1, 0], x[2, 3], x[3, 3], x[3, 4] = np.nan, np.inf, -np.inf, np.inf, -np.inf
    x[4, 7] = 3.4e38  # beyond the largest bfloat16
    weight[5, 2] = np.inf
    with np.errstate(invalid="ignore"):
        expected = rounded(x) @ rounded(weight)
    np.testing.assert_allclose(computed(product((6, 35), weight), x), expected, rtol=0, atol=1e-4)


CONVOLUTIONS = [
    # batch, channels, rows, columns, outputs, taps, stride, padding, groups
    (1, 16, 5, 7, 16, 1, 1, 0, 1),
    (1, 64, 14, 14, 64, 1, 1, 0, 1),
    (1, 30, 7, 7, 17, 3, 2, 1, 1),
    (2, 33, 9, 31, 48, 3, 1, 1, 1),
    (1, 17, 1, 5, 1, 1, 1, 0, 1),
    (1, 20, 13, 9, 5, 5, 1, 2, 1),
    (1, 256, 7, 7, 128, 3, 1, 1, 1),
    (1, 64, 14, 14, 64, 3, 1, 1, 4),
    (1, 127, 31, 3, 33, 3, 1, 1, 1),
    (1, 40, 8, 8, 24, 2, 2, 0, 1),
]


@needs_avx512_bf16
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolutions(shape: tuple[int, ...]) -> None:
    batch, channels, height, width, outputs, taps, stride, padding, groups = shape
    x, weight = random(batch, channels, height, width), random(outputs, channels // groups, taps, taps)

    def build(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        result = op.nn.conv2d(data, relax.const(weight), strides=stride, padding=padding, groups=groups)
        return op.nn.relu(builder.emit(result))

    # Winograd's algorithm rounds what it transforms instead: tests/schedules/cpu/test_steady_winograd.py.
    result = computed(module(build, x.shape), x, winograd=False)
    operands = torch.from_numpy(rounded(x)), torch.from_numpy(rounded(weight))
    expected = torch.relu(torch.nn.functional.conv2d(*operands, None, stride, padding, 1, groups)).numpy()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * max(16, weight[0].size))


@needs_avx512_bf16
def test_convolutions_of_one_and_of_three_axes() -> None:
    x, weight = random(1, 24, 19), random(32, 24, 3)
    mod = module(lambda _, data: op.nn.conv1d(data, relax.const(weight), padding=1), x.shape)
    operands = torch.from_numpy(rounded(x)), torch.from_numpy(rounded(weight))
    expected = torch.nn.functional.conv1d(*operands, None, 1, 1).numpy()
    np.testing.assert_allclose(computed(mod, x), expected, rtol=0, atol=1e-4)
    x, weight = random(1, 18, 3, 5, 7), random(20, 18, 3, 3, 3)
    mod = module(lambda _, data: op.nn.conv3d(data, relax.const(weight), padding=1), x.shape)
    operands = torch.from_numpy(rounded(x)), torch.from_numpy(rounded(weight))
    expected = torch.nn.functional.conv3d(*operands, None, 1, 1).numpy()
    np.testing.assert_allclose(computed(mod, x), expected, rtol=0, atol=5e-4)


@needs_avx512_bf16
def test_what_is_not_finite_stays_in_its_window() -> None:
    x, weight = random(1, 20, 6, 6), random(18, 20, 3, 3)
    x[0, 3, 0, 0], x[0, 19, 5, 5] = np.nan, np.inf
    mod = module(lambda _, data: op.nn.conv2d(data, relax.const(weight), padding=1), x.shape)
    operands = torch.from_numpy(rounded(x)), torch.from_numpy(rounded(weight))
    expected = torch.nn.functional.conv2d(*operands, None, 1, 1).numpy()
    np.testing.assert_allclose(computed(mod, x), expected, rtol=0, atol=5e-4)


def convolved(x: torch.Tensor, weight: Array, padding: int = 0, groups: int = 1) -> torch.Tensor:
    """Convolve in double precision, with operands rounded unless every channel is by itself."""
    operands = x, torch.from_numpy(weight)
    if groups == 1:
        operands = tuple(torch.from_numpy(rounded(np.float32(operand.numpy()))) for operand in operands)
    return torch.nn.functional.conv2d(operands[0].double(), operands[1].double(), None, 1, padding, 1, groups)


@needs_avx512_bf16
@pytest.mark.parametrize("channels", [16, 30])
def test_between_convolutions(channels: int) -> None:
    """What only convolutions read, what others read as well, what pooling and depthwise convolutions make."""
    x = random(1, 20, 14, 14)
    shapes = (channels, 20, 3, 3), (channels, channels, 1, 1), (channels, 1, 3, 3), (24, channels, 1, 1), (17, 24, 3, 3)
    first, second, depthwise, third, last = (random(*shape) / shape[1] ** 0.5 / shape[2] for shape in shapes)
    conv2d, relu = op.nn.conv2d, op.nn.relu

    def build(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        emit = builder.emit
        start = emit(relu(emit(conv2d(data, relax.const(first), padding=1))))
        total = emit(op.add(start, emit(relu(emit(conv2d(start, relax.const(second)))))))
        deep = emit(relu(emit(conv2d(total, relax.const(depthwise), padding=1, groups=channels))))
        pooled = emit(op.nn.max_pool2d(emit(conv2d(deep, relax.const(third))), pool_size=2, strides=2))
        return conv2d(pooled, relax.const(last), padding=1)

    start = convolved(torch.from_numpy(x), first, 1).relu()
    total = start + convolved(start, second).relu()
    deep = convolved(total, depthwise, 1, channels).relu()
    pooled = torch.nn.functional.max_pool2d(convolved(deep, third), 2, 2)
    expected = convolved(pooled, last, 1).numpy()
    for options in ({}, {"memory": "optimal"}, {"fuse": "mapping-type"}, {"prologues": False}):
        result = computed(module(build, x.shape), x, **options)
        # A sum in another order now and then rounds to the next bfloat16.
        assert np.abs(result - expected).max() <= 0.01 * expected.std()


@needs_avx512_bf16
@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.kind == "tiny"])
def test_tiny_models(name: str) -> None:
    entry = ZOO[name]
    if reason := entry.missing():
        pytest.skip(reason)
    plain, compiled = (tvm_ext.compile(entry.onnx_model(), precision=it) for it in ("float32", "bfloat16"))
    reported = compiled.metadata["decisions"]["precision"]
    for seed in range(2):
        inputs = entry.inputs(seed)
        for value, exact in zip(compiled.run(inputs).values(), plain.run(inputs).values(), strict=True):
            if not reported["rounded_calls"] or exact.dtype.kind != "f":
                np.testing.assert_array_equal(value, exact)
                continue
            error = float(np.sqrt(np.mean((value - exact).astype("float64") ** 2)) / (exact.std() or 1.0))
            # As if every rounding came behind the others; attention with weights made up is 5 times as sensitive.
            assert error <= 8 * reported["operand_error"] * (2 * reported["rounded_calls"]) ** 0.5
            assert error > 0


@needs_avx512_bf16
def test_everything_else_is_computed_as_before() -> None:
    x, y = random(1, 32, 9, 9), random(32, 1, 3, 3)
    mod = module(lambda _, data: op.nn.conv2d(data, relax.const(y), padding=1, groups=32), x.shape)
    (exact,) = tvm_ext.compile(mod).run([x]).values()
    compiled = tvm_ext.compile(mod, precision="bfloat16")
    np.testing.assert_array_equal(next(iter(compiled.run([x]).values())), exact)
    assert compiled.metadata["decisions"]["precision"] == {"rounded_calls": 0, "operand_error": 2**-9}
    assert "precision" not in tvm_ext.compile(mod).metadata["decisions"]


@needs_avx512_bf16
def test_command_line_says_the_error(tmp_path: Path) -> None:
    entry = next(entry for entry in ZOO.values() if entry.kind == "tiny" and entry.family == "cnn")
    result = real_command("compile", entry.onnx_path(), "-o", tmp_path / "out", "--precision", "bfloat16", seconds=300)
    assert result.code == 0, result.stderr
    assert "products and convolutions of bfloat16, operands off by up to 0.2%" in result.stdout


def test_refused_where_there_are_no_instructions() -> None:
    mod = product((3, 16), random(16, 16))
    for target in ({"kind": "llvm", "mcpu": "znver3"}, {"kind": "llvm", "mcpu": "skylake-avx512"}):
        with pytest.raises(OptionError, match=f"precision: {target['mcpu']} has no instructions for bfloat16"):
            tvm_ext.compile(mod, target, precision="bfloat16")
    parts = {"kind": "llvm", "mcpu": "x86-64", "mattr": ["+avx512bf16", "+avx512vl"]}
    with pytest.raises(OptionError, match="x86-64 has avx512bf16 without avx512dq, which kernels use, too; add"):
        tvm_ext.compile(mod, parts, precision="bfloat16")
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1", "num-cores": 2}
    with pytest.raises(OptionError, match="precision: neoverse-v1 has no instructions for bfloat16 that are used here"):
        tvm_ext.compile(mod, arm, precision="bfloat16")
    with pytest.raises(OptionError, match="precision: float16 is for CUDA targets; for target llvm"):
        tvm_ext.compile(mod, precision="float16")
    with pytest.raises(OptionError, match="cuda_graphs is for CUDA targets"):
        tvm_ext.compile(mod, {"kind": "llvm", "mcpu": "znver4"}, precision="bfloat16", cuda_graphs=True)
    with pytest.raises(OptionError, match="C sources compute in float32, not in bfloat16"):
        tvm_ext.compile(mod, {"kind": "llvm", "mcpu": "znver4"}, precision="bfloat16", emit="c")
