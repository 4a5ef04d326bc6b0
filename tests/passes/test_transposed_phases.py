"""Transposed convolutions by phases give what the ones of TVM give, for any stride, window and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

import tvm_ext
from tvm_ext.passes.transposed_phases import taps_of, transposed_phases


def transposed(data: NDArray, kernel: NDArray, stride: int, padding: tuple[int, int], extra: int) -> NDArray:
    """Scatter every input to the outputs that it is in: the definition."""
    rank, length = data.ndim - 2, np.array(data.shape[2:])
    whole = (length - 1) * stride + np.array(kernel.shape[2:]) + extra
    found = np.zeros((data.shape[0], kernel.shape[1], *whole))
    for at in np.ndindex(*data.shape[2:]):
        place = tuple(slice(one * stride, one * stride + taps) for one, taps in zip(at, kernel.shape[2:], strict=True))
        value = np.einsum("ni,io...->no...", data[(..., *at)].astype(float), kernel.astype(float))
        found[(slice(None), slice(None), *place)] += value
    crop = tuple(slice(padding[0], extent - padding[1]) for extent in whole)
    return found[(slice(None), slice(None), *crop[:rank])]


def module(data: NDArray, kernel: NDArray, constant: bool = True, **attributes: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data.shape, str(data.dtype)))
    w = relax.const(kernel) if constant else relax.Var("w", relax.TensorType(kernel.shape, str(kernel.dtype)))
    operator = {
        3: relax.op.nn.conv1d_transpose, 4: relax.op.nn.conv2d_transpose, 5: relax.op.nn.conv3d_transpose,
    }[data.ndim]  # fmt: skip
    with builder.function("main", [x] if constant else [x, w]):
        with builder.dataflow():
            out = builder.emit_output(operator(x, w, **attributes))
        builder.emit_func_output(out)
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


CASES = [  # length, taps, stride, padding before and after, further outputs
    (7, 4, 2, (1, 1), 0), (7, 3, 2, (1, 1), 1), (5, 3, 2, (0, 0), 0), (5, 5, 3, (2, 0), 0), (1, 4, 2, (1, 1), 0),
    (6, 7, 3, (0, 4), 2), (9, 2, 2, (0, 1), 0), (4, 9, 2, (6, 5), 0), (3, 4, 4, (0, 0), 0), (2, 3, 3, (3, 2), 0),
]  # fmt: skip


@pytest.mark.parametrize(("length", "taps", "stride", "padding", "extra"), CASES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_phases_give_the_transposed_convolution(
    rank: int, length: int, taps: int, stride: int, padding: tuple[int, int], extra: int
) -> None:
    rng = np.random.default_rng(length)
    extents = (length, *(min(length, 3),) * (rank - 1))
    windows = (taps, *(min(taps, 2 + stride),) * (rank - 1))
    before, after = (padding[0], *(0,) * (rank - 1)), (padding[1], *(0,) * (rank - 1))
    data = rng.integers(-4, 5, (2, 3, *extents)).astype("float32")
    kernel = rng.integers(-4, 5, (3, 5, *windows)).astype("float32")
    further = (extra, *(0,) * (rank - 1))
    mod = module(data, kernel, strides=(stride,) * rank, padding=(*before, *after), output_padding=further)
    rewritten = transposed_phases(least_saved=0, pictures=True)(mod)
    expected = transposed(data, kernel, stride, (0, 0), extra)
    crop = tuple(slice(one, extent - other - (extra if at else 0)) for at, (one, other, extent) in
                 enumerate(zip(before, after, expected.shape[2:], strict=True)))  # fmt: skip
    expected = expected[(slice(None), slice(None), *crop)]
    for it in (mod, rewritten):
        executable = tvm.compile(it, "llvm", relax_pipeline="default")
        found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_array_equal(found, expected)
    assert not any("transpose" in name for name in operators(rewritten))


def test_a_kernel_of_the_size_of_its_stride_is_one_convolution() -> None:
    rng = np.random.default_rng(1)
    data, kernel = (rng.integers(-4, 5, shape).astype("float32") for shape in ((2, 3, 5, 7), (3, 4, 2, 3)))
    mod = module(data, kernel, strides=(2, 3))
    rewritten = transposed_phases(least_saved=0, pictures=True)(mod)
    assert operators(rewritten).count("relax.nn.conv2d") == 1
    assert operators(transposed_phases(least_saved=0)(mod)) == ["relax.nn.conv2d_transpose"]
    found = relax.VirtualMachine(tvm.compile(rewritten, "llvm", relax_pipeline="default"), tvm.cpu())["main"]
    expected = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="default"), tvm.cpu())["main"]
    given = tvm.runtime.tensor(data)
    np.testing.assert_array_equal(found(given).numpy(), expected(given).numpy())


def test_integers_in_the_pipeline() -> None:
    rng = np.random.default_rng(0)
    data, kernel = (rng.integers(-128, 128, shape).astype("int8") for shape in ((1, 257, 9), (257, 7, 4)))
    mod = module(data, kernel, strides=2, padding=(1, 1), out_dtype="int32")
    executable = tvm_ext.compile(mod, "native")
    found = np.asarray(executable.run([data])["output"])
    np.testing.assert_array_equal(found, transposed(data, kernel, 2, (1, 1), 0))


@pytest.mark.parametrize(
    "attributes", [{"strides": 1}, {"strides": 5}, {"strides": 2, "dilation": 2}, {"strides": 2, "constant": False}]
)
def test_what_is_not_split_stays(attributes: dict[str, Any]) -> None:
    mod = module(np.zeros((1, 2, 6), "float32"), np.zeros((2, 2, 4), "float32"), **attributes)
    assert operators(transposed_phases(least_saved=0)(mod)) == ["relax.nn.conv1d_transpose"]


def test_few_products_are_not_worth_joining_phases() -> None:
    for channels, kind in ((2, "transpose"), (257, "relax.nn.conv1d'")):
        mod = module(np.zeros((1, channels, 6), "float32"), np.zeros((channels, 2, 4), "float32"), strides=2)
        assert kind in str(operators(transposed_phases()(mod)))


def test_taps_of_all_phases_are_all_taps() -> None:
    for extent, stride, padding in np.ndindex(9, 5, 4):
        stride += 1
        found = [taps_of(extent, stride, padding, phase) for phase in range(stride)]
        taps = sorted(tap for first, count, _ in found for tap in range(first, first + count * stride, stride))
        assert taps == list(range(extent))
