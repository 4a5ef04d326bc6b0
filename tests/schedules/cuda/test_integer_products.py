"""Products of bytes on tensor cores, exactly, and of float32 rounded to tf32, as the emulator runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from tvm import relax

from tests.schedules.cuda_kernels import CUDA, cuda_source, kernels_of, schedule_graph, thread_extents
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.cuda import RULES, TF32_RULES
from tvm_ext.schedules.cuda.fragments import columns_fragment, rows_fragment
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, ScheduleRule

op = relax.op


def integers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """All values of the type, its extremes more often than others."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    drawn = rng.integers(info.min, info.max + 1, shape)
    return np.where(rng.random(shape) < 0.2, np.where(rng.random(shape) < 0.5, info.min, info.max), drawn).astype(dtype)


def emulated(
    build: Callable,
    inputs: Sequence[np.ndarray],
    shape: Sequence[int],
    dtype: str,
    rules: Sequence[ScheduleRule] = RULES,
) -> np.ndarray:
    """Run what must be one kernel on tensor cores; no fault may be found."""
    (kernel,) = kernels_of(schedule_graph(build, inputs, rules)).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul", kernel.attrs.get(FAULT_ATTRIBUTE)
    run = Emulator(kernel.with_attr("global_symbol", "main"), CUDA["sm_90"])([*inputs, np.zeros(shape, dtype)])
    assert not run.report.faults, str(run.report)
    return run.arrays[-1]


@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", [(33, 17, 129), (127, 300, 31), (8, 1024, 64)])
def test_products_of_bytes(shape: tuple[int, int, int], types: tuple[str, str]) -> None:
    rows, depth, columns = shape
    x, w = integers(types[0], rows, depth), integers(types[1], depth, columns, seed=1)
    got = emulated(lambda _, a, b: op.matmul(a, b, out_dtype="int32"), [x, w], (rows, columns), "int32")
    np.testing.assert_array_equal(got, x.astype("int32") @ w.astype("int32"))


@pytest.mark.parametrize("shape", [(1, 9, 7, 32), (2, 5, 5, 48), (1, 3, 3, 17)])
def test_channels_side_by_side(shape: Sequence[int]) -> None:
    """Both operands are stored with their depth innermost, and are copied many bytes at a time."""
    x, w = integers("uint8", *shape), integers("int8", 24, 3, 3, shape[3], seed=1)

    def build(_: relax.BlockBuilder, a: relax.Var, b: relax.Var) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        return op.nn.conv2d(a, b, padding=1, out_dtype="int32", **layouts)

    tensors = torch.from_numpy(x.astype("float64")).permute(0, 3, 1, 2), torch.from_numpy(w.astype("float64"))
    sums = torch.nn.functional.conv2d(tensors[0], tensors[1].permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)
    got = emulated(build, [x, w], tuple(sums.shape), "int32")
    np.testing.assert_array_equal(got, sums.numpy().astype("int32"))


@pytest.mark.parametrize(
    ("shape", "weight", "strides", "padding"),
    [
        ((1, 16, 14, 14), (32, 16, 3, 3), 1, 1),
        ((2, 32, 9, 9), (24, 32, 1, 1), 2, 0),
        ((1, 3, 17, 33), (16, 3, 7, 7), 2, 3),
        ((1, 64, 7, 7), (9, 64, 1, 1), 1, 0),
    ],
)
def test_convolutions_of_bytes(shape: Sequence[int], weight: Sequence[int], strides: int, padding: int) -> None:
    x, w = integers("uint8", *shape), integers("int8", *weight, seed=1)
    scale = np.float32(3e-4)

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        total = op.nn.conv2d(x, w, strides=strides, padding=padding, out_dtype="int32")
        scaled = op.multiply(op.astype(total, "float32"), relax.const(scale))
        return op.quantize(scaled, relax.const(1.0, "float32"), relax.const(117, "uint8"), axis=0, out_dtype="uint8")

    tensors = (torch.from_numpy(array.astype("float64")) for array in (x, w))
    sums = torch.nn.functional.conv2d(*tensors, stride=strides, padding=padding).numpy()
    expected = np.clip(np.rint(sums.astype("float32") * scale) + 117, 0, 255).astype("uint8")
    np.testing.assert_array_equal(emulated(build, [x, w], expected.shape, "uint8"), expected)


def test_what_tensor_cores_do_not_take() -> None:
    """Products of a few rows, and those before sm_80, are multiplied and added one by one, exactly too."""
    x, w = integers("uint8", 3, 70), integers("int8", 70, 33, seed=1)
    build = lambda _, a, b: op.matmul(a, b, out_dtype="int32")  # noqa: E731
    for inputs, arch in (([x, w], "sm_90"), ([integers("uint8", 40, 70), w], "sm_75")):
        (kernel,) = kernels_of(schedule_graph(build, inputs, RULES, arch)).values()
        assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.matmul"
        result = np.zeros((len(inputs[0]), 33), "int32")
        run = Emulator(kernel.with_attr("global_symbol", "main"), CUDA[arch])([*inputs, result])
        assert not run.report.faults, str(run.report)
        np.testing.assert_array_equal(run.arrays[-1], inputs[0].astype("int32") @ w.astype("int32"))


@pytest.mark.parametrize("per", [1, 2, 4])
@pytest.mark.parametrize("place", [rows_fragment, columns_fragment])
def test_a_fragment_has_every_element_once(place: Callable, per: int) -> None:
    found = {place(i, k, per) for i in range(16) for k in range(8 * per)}
    assert found == {(lane, local) for lane in range(32) for local in range(4 * per)}


def tf32(array: np.ndarray) -> np.ndarray:
    """Round to the nearest number with ten bits of mantissa, halves away from zero: by division, not by bits."""
    mantissa, exponent = np.frexp(array.astype("float64"))
    scaled = mantissa * 2.0**11
    return np.ldexp(np.sign(scaled) * np.floor(np.abs(scaled) + 0.5), exponent - 11)


@pytest.mark.parametrize("shape", [(33, 17, 129), (127, 300, 31), (64, 128, 64)])
def test_products_in_tf32(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, depth), "float32"), rng.standard_normal((depth, columns), "float32")
    got = emulated(lambda _, a, b: op.matmul(a, b), [x, w], (rows, columns), "float32", TF32_RULES)
    np.testing.assert_allclose(got, tf32(x) @ tf32(w), rtol=1e-5, atol=1e-4)
    assert np.abs(got - x.astype("float64") @ w).max() > 1e-4  # it is rounded


def test_infinities_and_nan_in_tf32() -> None:
    x = np.ones((16, 16), "float32")
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = np.inf, -np.inf, np.nan, np.finfo("float32").max
    w = np.ones((16, 16), "float32")
    got = emulated(lambda _, a, b: op.matmul(a, b), [x, w], (16, 16), "float32", TF32_RULES)
    assert np.isposinf(got[0]).all()
    assert np.isneginf(got[1]).all()
    assert np.isnan(got[2]).all()
    assert np.isposinf(got[3]).all()  # the largest number is rounded up, as the instruction does


def test_the_instructions_are_in_the_source() -> None:
    build = lambda _, a, b: op.matmul(a, b, out_dtype="int32")  # noqa: E731
    source = cuda_source(schedule_graph(build, [integers("uint8", 64, 64), integers("int8", 64, 64)], RULES))
    assert "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" in source
    floats = [np.zeros((64, 64), "float32")] * 2
    module = schedule_graph(lambda _, a, b: op.matmul(a, b), floats, TF32_RULES)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in cuda_source(module)
    (kernel,) = kernels_of(module).values()
    assert thread_extents(kernel)["threadIdx.x"] == 32
    (kernel,) = kernels_of(schedule_graph(lambda _, a, b: op.matmul(a, b), floats, RULES)).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.matmul"  # only where it is asked for


def test_a_number_beside_an_edge_has_its_bits_read_when_compiling() -> None:
    """The columns of a convolution are padded to a tile with zeros, which have no address in C++."""
    inputs = [np.zeros((1, 3, 9, 9), "float32"), np.zeros((16, 3, 3, 3), "float32")]
    module = schedule_graph(lambda _, a, b: op.nn.conv2d(a, b, padding=1), inputs, TF32_RULES)
    (kernel,) = kernels_of(module).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul"
    source = cuda_source(module)
    assert "2139095040" in source  # it is rounded
    assert not re.search(r"\(&\(-?0x", source)
