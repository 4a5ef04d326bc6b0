"""The rule for row reductions, against numpy, on every instruction set that runs here."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.schedules.kernels import AARCH64, AWKWARD, TARGETS, Compiled, assembly, compile_graph
from tvm_ext.schedules.cpu.row_reduction import RowReduction

op = relax.op
RULES = (RowReduction(),)


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def taken(compiled: Compiled) -> bool:
    return set(compiled.rules.values()) == {RowReduction.name}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", AWKWARD)
def test_softmax(length: int, target: str) -> None:
    x = values(3, 5, length)
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [x], RULES, TARGETS[target])
    assert length == 1 or taken(compiled)
    np.testing.assert_allclose(compiled(x), torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=2e-6)


@given(shape=st.lists(st.sampled_from([1, 2, 3, 7, 9, 17, 33]), min_size=2, max_size=4), data=st.data())
@settings(max_examples=20, deadline=None)
def test_reductions_over_any_axes(shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    name = data.draw(st.sampled_from(["sum", "mean", "max", "min"]))
    keepdims = data.draw(st.booleans())
    x = values(*shape)
    compiled = compile_graph(lambda _, v: getattr(op, name)(v, axes, keepdims), [x], RULES)
    expected = getattr(np, name)(x.astype(np.float64), axis=tuple(axes), keepdims=keepdims)
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)


@given(shape=st.lists(st.sampled_from([2, 3, 8, 15, 49]), min_size=2, max_size=4), data=st.data())
@settings(max_examples=12, deadline=None)
def test_softmax_along_any_axis(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    name = data.draw(st.sampled_from(["softmax", "log_softmax"]))
    x = values(*shape)
    compiled = compile_graph(lambda _, v: getattr(op.nn, name)(v, axis), [x], RULES)
    assert taken(compiled)
    expected = getattr(torch, name)(torch.from_numpy(x), axis).numpy()
    np.testing.assert_allclose(compiled(x), expected, rtol=2e-6, atol=1e-6)


def test_a_row_that_is_masked_out_in_part() -> None:
    x = values(4, 37)
    x[:, ::3] = -np.inf
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [x], RULES)
    np.testing.assert_allclose(compiled(x), torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=2e-6)


@pytest.mark.parametrize("length", [3, 16, 49, 312, 768])
def test_layer_norm(length: int) -> None:
    x, gamma, beta = values(2, 9, length), values(length, seed=1), values(length, seed=2)
    compiled = compile_graph(lambda _, v, g, b: op.nn.layer_norm(v, g, b, [-1]), [x, gamma, beta], RULES)
    assert taken(compiled)
    expected = torch.nn.functional.layer_norm(
        *map(torch.from_numpy, (x,)), (length,), *map(torch.from_numpy, (gamma, beta))
    )
    np.testing.assert_allclose(compiled(x, gamma, beta), expected.numpy(), rtol=1e-4, atol=2e-5)


def test_rms_norm() -> None:
    x, gamma = values(5, 100), values(100, seed=1)
    compiled = compile_graph(lambda _, v, g: op.nn.rms_norm(v, g, [-1], 1e-5), [x, gamma], RULES)
    assert taken(compiled)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * gamma
    np.testing.assert_allclose(compiled(x, gamma), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("height", [1, 7, 9])
def test_group_norm_and_instance_norm(height: int) -> None:
    x, gamma, beta = values(2, 12, height, 5), values(12, seed=1), values(12, seed=2)
    tensors = [torch.from_numpy(array) for array in (x, gamma, beta)]
    group = compile_graph(lambda _, v, g, b: op.nn.group_norm(v, g, b, 4, 1, [2, 3]), [x, gamma, beta], RULES)
    assert taken(group)
    expected = torch.nn.functional.group_norm(tensors[0], 4, tensors[1], tensors[2]).numpy()
    np.testing.assert_allclose(group(x, gamma, beta), expected, rtol=1e-4, atol=1e-4)
    instance = compile_graph(lambda _, v, g, b: op.nn.instance_norm(v, g, b, 1, [2, 3]), [x, gamma, beta], RULES)
    assert taken(instance)
    expected = torch.nn.functional.instance_norm(tensors[0], weight=tensors[1], bias=tensors[2]).numpy()
    np.testing.assert_allclose(instance(x, gamma, beta), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_variances_far_from_zero(dtype: str, target: str) -> None:
    x = values(2, 12, 7, 5, dtype=dtype) + np.array(1000, dtype)
    x[0] = 100.3  # nothing but the rounding of the mean is left of it
    gamma, beta = values(12, seed=1, dtype=dtype), values(12, seed=2, dtype=dtype)
    builds = {
        4: lambda _, v, g, b: op.nn.group_norm(v, g, b, 4, 1, [2, 3]),
        12: lambda _, v, g, b: op.nn.instance_norm(v, g, b, 1, [-2, -1]),
    }
    for groups, build in builds.items():
        compiled = compile_graph(build, [x, gamma, beta], RULES, TARGETS[target])
        assert taken(compiled)
        parts = x.astype(np.float64).reshape(2, groups, -1)
        normal = parts - parts.mean(-1, keepdims=True)
        normal /= np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
        expected = normal.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
        close = 2e-2 if dtype == "float32" else 1e-9
        np.testing.assert_allclose(compiled(x, gamma, beta), expected, rtol=0, atol=close)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_argmax(axis: int) -> None:
    x = values(4, 33, 17)
    compiled = compile_graph(lambda _, v: op.argmax(v, axis), [x], RULES)
    np.testing.assert_array_equal(compiled(x), x.argmax(axis))


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "float16"])
def test_other_types(dtype: str) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (5, 33)).astype(dtype)
    compiled = compile_graph(lambda _, v: op.max(v, -1), [x], RULES)
    assert taken(compiled)
    np.testing.assert_array_equal(compiled(x), x.max(-1))


def test_what_reads_elements_twice_is_declined() -> None:
    x, w = values(9, 17), values(17, 5)
    assert not taken(compile_graph(lambda _, a, b: op.matmul(a, b), [x, w], RULES))
    image = values(1, 3, 9, 9)
    assert not taken(compile_graph(lambda _, v: op.nn.max_pool2d(v, (3, 3), (2, 2)), [image], RULES))


def test_softmax_calls_no_function_and_uses_whole_vectors() -> None:
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [values(64, 128)], RULES)
    text = assembly(*compiled.kernels.values(), TARGETS["avx2"])
    assert "expf" not in text
    assert "vmaxps" in text
    assert "%ymm" in text


def test_aarch64_compiles() -> None:
    x = values(5, 33)
    assert taken(compile_graph(lambda _, v: op.nn.softmax(v, -1), [x], RULES, AARCH64))


def test_a_streamed_result_and_buffers_of_each_thread() -> None:
    """Operand and result are past the 20 MiB that the row of an instruction set keeps of both."""
    x = values(2600, 1040)
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [x], RULES, TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    text = assembly(kernel, TARGETS["avx2"])
    assert all(part in text for part in ("movntps", "sfence"))
    expected = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    for _ in range(3):
        np.testing.assert_allclose(compiled(x), expected, rtol=2e-6)


@pytest.mark.parametrize("length", [16, 1000])
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_the_next_row_is_fetched_while_one_is_computed(name: str, length: int) -> None:
    """From beyond the L2 cache, in the last pass over a row; the last row of all has no next one to run past."""
    x, ones = values(-(-(1 << 18) // length), length), np.ones(length, np.float32)

    def build(_: object, v: relax.Var) -> relax.Expr:
        scale = relax.const(ones)
        return op.nn.softmax(v, -1) if name == "softmax" else op.nn.layer_norm(v, scale, scale, [-1])

    compiled = compile_graph(build, [x], RULES, TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    assert "prefetch" in assembly(kernel, TARGETS["avx2"])
    tensor = torch.from_numpy(x).double()
    expected = torch.softmax(tensor, -1) if name == "softmax" else torch.nn.functional.layer_norm(tensor, (length,)) + 1
    np.testing.assert_allclose(compiled(x), expected.numpy(), rtol=1e-4, atol=2e-5)
    small = compile_graph(build, [x[:9]], RULES, TARGETS["avx2"])
    (kernel,) = small.kernels.values()
    assert "prefetch" not in assembly(kernel, TARGETS["avx2"])


@pytest.mark.parametrize(
    ("mcpu", "length", "fetch"),
    [
        ("znver5", 1, ""),
        ("znver5", 17, "prefetcht0"),
        ("znver5", 1024, "prefetcht0"),
        ("znver5", 8191, "prefetcht1"),
        ("znver4", 1024, "prefetcht1"),
        ("x86-64-v3", 1024, "prefetcht1"),
    ],
)
def test_where_the_next_row_is_fetched_to(mcpu: str, length: int, fetch: str) -> None:
    """The L1 cache, where it waits for many lines; a long row would push out of it what is computed with."""
    x = values(-(-(1 << 19) // length), length)
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [x], RULES, target)
    (kernel,) = compiled.kernels.values()
    assert set(re.findall(r"prefetch\w+", assembly(kernel, target))) == ({fetch} if fetch else set())
    if mcpu == "x86-64-v3":
        expected = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-9)


def test_one_pass_over_a_row_needs_no_fetches() -> None:
    x = values(1024, 1024)
    compiled = compile_graph(lambda _, v: op.sum(v, [-1]), [x], RULES, TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    assert "prefetch" not in assembly(kernel, TARGETS["avx2"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_nan_takes_its_row_wherever_it_stands(name: str, target: str) -> None:
    """The maximum of a softmax need not hand it on."""
    x = values(35, 33)
    for place in range(33):
        x[place, place] = [np.nan, np.inf, -np.inf][place % 3]
    x[33] = -np.inf
    compiled = compile_graph(lambda _, v: getattr(op.nn, name)(v, -1), [x], RULES, TARGETS[target])
    expected = getattr(torch, name)(torch.from_numpy(x), -1).numpy()
    np.testing.assert_allclose(compiled(x), expected, rtol=2e-6, atol=1e-6)


def test_a_maximum_that_something_else_uses_keeps_nan() -> None:
    def graph(_: relax.BlockBuilder, v: relax.Expr) -> relax.Expr:
        largest = op.max(v, -1, True)
        sums = op.sum(op.exp(op.subtract(v, largest)), -1, True)
        return op.add(op.log(sums), largest)

    x = values(4, 40)
    x[1, 7], x[2, 39] = np.nan, np.inf
    compiled = compile_graph(graph, [x], RULES)
    with np.errstate(invalid="ignore"):
        largest = x.max(-1, keepdims=True)
        expected = np.log(np.exp(x - largest).sum(-1, keepdims=True)) + largest
    np.testing.assert_allclose(compiled(x), expected, rtol=2e-6)


def test_the_maximum_of_a_softmax_compares_nothing_with_nan() -> None:
    compiled = compile_graph(lambda _, v: op.nn.softmax(v, -1), [values(64, 1024)], RULES, TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    text = assembly(kernel, TARGETS["avx2"])
    assert "vmaxps" in text
    assert "unordps" not in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(4, 33), (1, 8, 17), (6, 65), (2, 4, 31), (64, 1), (8, 3000)])
def test_rows_that_go_through_a_pass_together(shape: tuple[int, ...], target: str) -> None:
    x, weights = values(*shape), values(shape[-1], seed=1)
    scale = relax.const(weights)
    compiled = compile_graph(
        lambda b, v: op.nn.layer_norm(b.emit(op.nn.softmax(v, -1)), scale, scale, axes=[-1]),
        [x],
        RULES,
        TARGETS[target],
    )
    tensor = torch.from_numpy(weights)
    expected = torch.nn.functional.layer_norm(torch.softmax(torch.from_numpy(x), -1), shape[-1:], tensor, tensor)
    np.testing.assert_allclose(compiled(x), expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("rows", "width"), [(16, 300), (3, 769), (5, 1001), (1, 777), (2, 1023), (1, 40961)])
@pytest.mark.parametrize("name", ["sum", "max", "mean"])
def test_strips_of_neighbouring_rows(name: str, rows: int, width: int) -> None:
    """Strips divide the rows or take them all, so that no vector has a condition; a prime of many rows may."""
    x = values(rows, 9, width)
    compiled = compile_graph(lambda _, v: getattr(op, name)(v, [1]), [x], RULES, TARGETS["avx2"])
    assert taken(compiled)
    (kernel,) = compiled.kernels.values()
    assert ("T.where" in kernel.script()) == (width == 40961)
    np.testing.assert_allclose(compiled(x), getattr(np, name)(x.astype(np.float64), axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "width", "strip"), [(1, 1024, 128), (1, 768, 128), (2, 1024, 1024), (1, 1000, 40)])
def test_strips_of_what_is_read_once(rows: int, width: int, strip: int) -> None:
    """A mean keeps sums alone: its strips are whole, or several cache lines where cores divide them."""
    x = values(rows, 37, width)
    mean = compile_graph(lambda _, v: op.mean(v, [1]), [x], RULES, TARGETS["avx2"])
    softmax = compile_graph(lambda _, v: op.nn.softmax(v, 1), [x], RULES, TARGETS["avx2"])
    assert taken(mean)
    assert taken(softmax)
    (kernel,) = mean.kernels.values()
    assert f"T.serial(T.int64({strip}), " in kernel.script()
    (kernel,) = softmax.kernels.values()
    assert ("T.serial(T.int64(32), " in kernel.script()) == (width % 32 == 0)
    np.testing.assert_allclose(mean(x), x.astype(np.float64).mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("shape", "inside"), [
    ((8, 37, 32, 32), True), ((3, 5, 7, 33), True), ((4, 3, 2, 3, 17), True), ((2, 9, 1, 31), False),
    ((1, 9, 16, 16), False), ((2, 9, 64, 64), False), ((17, 4, 3, 1), False),
])  # fmt: skip
def test_sums_over_channels_read_whole_images(shape: tuple[int, ...], inside: bool, keeps: bool) -> None:
    """Unless an image is too large to keep its sums at hand, or cores would have none."""
    x = values(*shape)
    for name in ("sum", "max", "mean"):
        compiled = compile_graph(lambda _, v, name=name: getattr(op, name)(v, [1], keeps), [x], RULES, TARGETS["avx2"])
        assert taken(compiled)
        (kernel,) = compiled.kernels.values()
        loops = ", ".join(f"T.int64({extent})" for extent in shape[1:-1])
        assert (f"T.grid({loops})" in kernel.script()) == inside
        exact = getattr(np, name)(x.astype(np.float64), axis=1, keepdims=keeps)
        np.testing.assert_allclose(compiled(x), exact, rtol=1e-4, atol=1e-5)


def test_a_dear_value_is_not_computed_for_each_of_many_uses() -> None:
    """Each step uses the one before three times, and would have three times its logarithms."""
    x = values(4, 33)

    def make(builder: object, v: relax.Expr) -> relax.Expr:
        emit = builder.emit  # type: ignore[attr-defined]
        result = emit(op.nn.log_softmax(v))
        for _ in range(3):
            result = emit(op.multiply(emit(op.where(emit(op.isnan(result)), relax.const(1.0), result)), result))
        return result

    compiled = compile_graph(make, [x], RULES, TARGETS["avx2"])
    assert sum(kernel.script().count("T.log(") for kernel in compiled.kernels.values()) <= 9
    exact = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True))
    np.testing.assert_allclose(compiled(x), exact**8, rtol=1e-5)
