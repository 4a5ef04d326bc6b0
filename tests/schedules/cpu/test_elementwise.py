"""The rule for data-parallel kernels, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tvm import relax, te, tirx

import tvm_ext
from tests.schedules.kernels import AARCH64, AWKWARD, TARGETS, compile_graph, graph, lower
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.machine import machine_of

op = relax.op
RULES = (Elementwise(),)


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", AWKWARD)
def test_chain_with_a_broadcast(width: int, target: str) -> None:
    x, y = values(5, 3, width), values(3, 1, seed=1)
    compiled = compile_graph(lambda _, a, b: op.nn.relu(op.add(op.multiply(a, b), a)), [x, y], RULES, TARGETS[target])
    assert set(compiled.rules.values()) == {"cpu.elementwise"}
    np.testing.assert_allclose(compiled(x, y), np.maximum(x * y + x, 0), rtol=1e-6, atol=1e-6)


@given(
    shape=st.lists(st.sampled_from([1, 2, 7, 9, 16, 33]), min_size=1, max_size=4),
    dims=st.integers(0, 15),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64", "int8"]),
)
@settings(max_examples=20, deadline=None)
def test_any_broadcast_of_any_type(shape: list[int], dims: int, dtype: str) -> None:
    other = [1 if dims >> axis & 1 else extent for axis, extent in enumerate(shape)]
    random = np.random.default_rng(0)
    x, y = random.integers(-9, 9, shape).astype(dtype), random.integers(-9, 9, other).astype(dtype)
    compiled = compile_graph(lambda _, a, b: op.maximum(op.subtract(a, b), b), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), np.maximum(x - y, y))


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "sigmoid", "tanh"])
def test_activations(name: str) -> None:
    x = values(33, 65) * 4
    build = {"sigmoid": op.sigmoid, "tanh": op.tanh}.get(name) or getattr(op.nn, name)
    reference = getattr(torch.nn.functional, name)(torch.from_numpy(x.astype(np.float64))).numpy()
    compiled = compile_graph(lambda _, v: build(v), [x], RULES)
    np.testing.assert_allclose(compiled(x), reference, rtol=2e-6, atol=2e-7)


def test_comparisons_and_choices() -> None:
    x, y = values(9, 31), values(9, 31, seed=1)
    compiled = compile_graph(lambda _, a, b: op.where(op.less(a, b), a, b), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), np.minimum(x, y))
    compiled = compile_graph(lambda _, a, b: op.less(a, b), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), x < y)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_and_split(axis: int) -> None:
    x = values(4, 6, 10)
    y = values(*(extent + 3 if number == axis else extent for number, extent in enumerate(x.shape)), seed=1)
    compiled = compile_graph(lambda _, a, b: op.concat([a, op.tanh(b)], axis), [x, y], RULES)
    np.testing.assert_allclose(compiled(x, y), np.concatenate([x, np.tanh(y)], axis), rtol=1e-6)
    compiled = compile_graph(lambda _, a: op.split(a, 2, axis), [x], RULES)
    for part, expected in zip(compiled.all(x), np.split(x, 2, axis), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_gather_pad_resize_and_slices() -> None:
    table, rows = values(50, 33), np.array([[3, 49, 0], [7, 7, 12]], np.int64)
    compiled = compile_graph(lambda _, a, b: op.take(a, b, 0), [table, rows], RULES)
    np.testing.assert_array_equal(compiled(table, rows), table[rows])
    compiled = compile_graph(lambda _, a: op.nn.pad(a, [1, 2, 3, 4]), [table], RULES)
    np.testing.assert_array_equal(compiled(table), np.pad(table, [(1, 2), (3, 4)]))
    compiled = compile_graph(lambda _, a: op.strided_slice(a, [0, 1], [1, 2], [41, 31], [2, 3]), [table], RULES)
    np.testing.assert_array_equal(compiled(table), table[1:41:2, 2:31:3])
    image = values(1, 3, 9, 11)
    for method, mode in (("nearest_neighbor", "nearest"), ("linear", "bilinear")):
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        compiled = compile_graph(
            lambda _, a, m=method, c=coordinates: op.image.resize2d(
                a, (18, 22), layout="NCHW", method=m, coordinate_transformation_mode=c, rounding_method="floor"
            ),
            [image],
            RULES,
        )
        expected = torch.nn.functional.interpolate(torch.from_numpy(image), size=(18, 22), mode=mode).numpy()
        np.testing.assert_allclose(compiled(image), expected, rtol=1e-5, atol=1e-6)


def test_symbolic_extents() -> None:
    n = tirx.Var("n", "int64")
    module = graph(lambda _, a: op.nn.relu(op.add(a, a)), [((n, 33), "float32")])
    compiled = lower(module, TARGETS["native"], RULES)
    assert set(compiled.rules.values()) == {"cpu.elementwise"}
    for rows in (1, 5, 40):
        x = values(rows, 33)
        np.testing.assert_array_equal(compiled(x), np.maximum(x + x, 0))
    module = graph(lambda _, a: op.tanh(a), [((n,), "float32")])
    compiled = lower(module, TARGETS["native"], RULES)
    for length in (1, 15, 16, 47):
        np.testing.assert_allclose(compiled(values(length)), np.tanh(values(length)), rtol=1e-6)


def test_large_kernels_are_shared_out_and_small_ones_not() -> None:
    small, large = values(8, 64), values(512, 1024)
    for x, parallel in ((small, False), (large, True)):
        (kernel,) = compile_graph(lambda _, a: op.nn.relu(a), [x], RULES).kernels.values()
        two_cores = compile_graph(lambda _, a: op.nn.relu(a), [x], RULES, TARGETS["avx2"]).kernels
        assert ("T.parallel" in str(*two_cores.values())) == parallel
        assert isinstance(kernel, tirx.PrimFunc)


def test_kernels_that_are_no_single_elements_are_declined() -> None:
    from tvm import te

    source = te.placeholder((8,), "float32", "source")

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        i = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
        return tirx.For(i, 0, 8, tirx.ForKind.SERIAL, tirx.BufferStore(outs[0], tirx.BufferLoad(ins[0], [i]), [i]))

    func = te.create_prim_func([source, te.extern((8,), [source], body, name="copy", dtype="float32")])
    assert Elementwise().apply(func, TARGETS["native"]) is None


def test_aarch64_compiles() -> None:
    assert compile_graph(lambda _, v: op.nn.gelu(v), [values(5, 33)], RULES, AARCH64).executable is not None


@pytest.mark.parametrize("shape", [(1, 32, 16, 16), (2, 3, 7, 31), (1, 1, 5, 8), (2, 17, 1, 33)])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_channels_are_sampled_at_the_same_places(shape: tuple[int, ...], mode: str) -> None:
    batch, _, height, width = shape
    random = np.random.default_rng(width)
    x = random.standard_normal(shape).astype(np.float32)
    grid = random.uniform(-1.3, 1.3, (batch, height, width, 2)).astype(np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode)
    inputs = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in (("x", x), ("grid", grid))]
    graph = helper.make_graph([node], "sampled", inputs, [helper.make_tensor_value_info("y", 1, shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)])
    found = tvm_ext.compile(model).run({"x": x, "grid": grid})["y"]
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x), torch.from_numpy(grid), mode=mode, align_corners=False
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_places_computed_from_data_are_computed_once_for_all_channels() -> None:
    table = te.placeholder((16, 32), "int64", "table")
    source = te.placeholder((8, 100), "float32", "source")
    sampled = te.compute((8, 16, 32), lambda c, h, w: source[c, tirx.max(tirx.min(table[h, w], 99), 0)], name="sampled")
    schedule = Elementwise().apply(te.create_prim_func([table, source, sampled]), TARGETS["native"])
    assert schedule is not None
    *_, inside, _ = schedule.get_loops(schedule.get_sblock("sampled"))
    assert int(schedule.get(inside).extent) == 8


@pytest.mark.parametrize("width", [31, 32, 100, 256])
def test_values_that_depend_on_an_axis_are_computed_along_the_axes_behind_it(width: int) -> None:
    x = values(3, 64, width)
    compiled = compile_graph(lambda _, a: op.tril(a, 2), [x], RULES)
    np.testing.assert_array_equal(compiled(x), np.tril(x, 2))
    # Of rows that are shorter than four vectors, as those of 31 on AVX2, rows and columns are divided out of a number.
    lanes = machine_of(TARGETS["native"]).vector_bits // 32
    is_short = f"T.serial(T.int64({width})," not in str(*compiled.kernels.values())
    assert is_short == (width < 4 * lanes)
    y = values(3, 16, width)
    compiled = compile_graph(lambda _, a, b: op.concat([a, b], 1), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), np.concatenate([x, y], 1))


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_the_same_in_all_lanes_is_added_to_each_address(target: str) -> None:
    """The places of a vector are taken out of it once for all rows, of which each begins elsewhere."""
    table, source = values(33, dtype="float32") * 20, values(5, 7, 16)
    places = te.placeholder((33,), "float32", "places")
    data = te.placeholder((5, 7, 16), "float32", "data")

    def element(c: Any, h: Any, w: Any) -> Any:
        place = tirx.Cast("int64", tirx.floor(places[w]))
        inside = tirx.if_then_else(tirx.all(place >= 0, place < 16), data[c, h, tirx.max(tirx.min(place, 15), 0)], -1.0)
        return inside + data[c, tirx.max(tirx.min(place, 6), 0), tirx.Cast("int64", w % 16)]

    func = te.create_prim_func([places, data, te.compute((5, 7, 33), element, name="sampled")])
    schedule = Elementwise().apply(func, TARGETS[target])
    assert schedule is not None
    with TARGETS[target]:
        lowered = vector_code()(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}))
    assert "T.Shuffle(" in str(lowered["main"])
    result = tvm.runtime.tensor(np.zeros((5, 7, 33), np.float32))
    tvm.compile(lowered, TARGETS[target])["main"](tvm.runtime.tensor(table), tvm.runtime.tensor(source), result)
    place = np.floor(table).astype(np.int64)
    first = np.where((place >= 0) & (place < 16), source[:, :, np.clip(place, 0, 15)], -1.0)
    second = source[:, np.clip(place, 0, 6), np.arange(33) % 16]
    np.testing.assert_array_equal(result.numpy(), (first + second[:, None]).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [36, 12, 7])
def test_vectors_of_bytes_are_no_longer_than_a_block(channels: int, target: str) -> None:
    """Two tensors in blocks of 16 channels are joined where a block of both is parts of two of the second."""
    blocks = -(-channels // 16)
    arrays = [values(blocks, 9, 16, seed=seed).view("uint8")[..., :16].copy() for seed in range(2)]
    first, second = (te.placeholder((blocks, 9, 16), "uint8", name) for name in ("first", "second"))

    def joined(block: Any, pixel: Any, lane: Any) -> Any:
        number = block * 16 + lane
        sides = [source[at // 16, pixel, at % 16] for source, at in ((first, number), (second, number - channels))]
        return tirx.if_then_else(
            number < 2 * channels, tirx.if_then_else(number >= channels, sides[1], sides[0]), tirx.const(0, "uint8")
        )

    shape = (-(-2 * channels // 16), 9, 16)
    schedule = Elementwise().apply(
        te.create_prim_func([first, second, te.compute(shape, joined, name="joined")]), TARGETS[target]
    )
    assert schedule is not None
    assert int(schedule.get(schedule.get_loops(schedule.get_sblock("joined"))[-1]).extent) == 16
    with TARGETS[target]:
        lowered = vector_code()(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}))
    result = tvm.runtime.tensor(np.zeros(shape, np.uint8))
    tvm.compile(lowered, TARGETS[target])["main"](*map(tvm.runtime.tensor, arrays), result)
    flat = [array.transpose(1, 0, 2).reshape(9, -1)[:, :channels] for array in arrays]
    expected = np.zeros((9, 16 * shape[0]), np.uint8)
    expected[:, : 2 * channels] = np.concatenate(flat, 1)
    np.testing.assert_array_equal(result.numpy(), expected.reshape(9, shape[0], 16).transpose(1, 0, 2))
