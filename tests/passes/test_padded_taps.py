"""Convolutions rewritten so as to read less padding give what they gave, with any window, step and padding."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax

import tvm_ext
from tests.cpu import needs_avx512_bf16
from tests.passes.test_transposed_phases import operators
from tvm_ext.passes import padded_taps as subject
from tvm_ext.passes.padded_taps import Axis, Block, blocks, divided, padded_taps, whole

CONVOLUTIONS = {
    1: (relax.op.nn.conv1d, torch.nn.functional.conv1d),
    2: (relax.op.nn.conv2d, torch.nn.functional.conv2d),
    3: (relax.op.nn.conv3d, torch.nn.functional.conv3d),
}


def module(data: NDArray, kernel: NDArray, **attributes: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data.shape, str(data.dtype)))
    with builder.function("main", [x]):
        with builder.dataflow():
            operator = CONVOLUTIONS[data.ndim - 2][0]
            out = builder.emit_output(operator(x, relax.const(kernel), **attributes))
        builder.emit_func_output(out)
    return builder.get()


def numbers(*shape: int) -> NDArray:
    """Integers, whose sums are exact in float32 in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype("float32")


def axis_of(extent: int, taps: int, stride: int, dilation: int, before: int, after: int) -> Axis:
    results = (extent + before + after - dilation * (taps - 1) - 1) // stride + 1
    return Axis(extent, results, taps, stride, dilation, before)


AXES = st.builds(
    axis_of, st.integers(1, 17), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 20),
    st.integers(0, 20),
).filter(lambda axis: axis.results > 0)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(AXES)
def test_taps_inside_are_those_that_meet_an_element(axis: Axis) -> None:
    for result in range(axis.results):
        places = [result * axis.stride - axis.before + tap * axis.dilation for tap in range(axis.taps)]
        assert list(axis.inside(result)) == [tap for tap, place in enumerate(places) if 0 <= place < axis.extent]


@settings(max_examples=200, deadline=None)
@given(AXES, st.floats(0, 30))
def test_blocks_are_the_cheapest_division(axis: Axis, price: float) -> None:
    if whole(axis) is None:
        return
    found = blocks(axis, price)
    assert [place for block in found for place in range(block.start, block.stop)] == list(range(axis.results))
    for block in found:
        met = [axis.inside(result) for result in range(block.start, block.stop)]
        assert block.taps == range(min(taps.start for taps in met), max(taps.stop for taps in met))
    cuts = [place for place in range(1, axis.results) if axis.inside(place) != axis.inside(place - 1)]

    def cost(chosen: tuple[int, ...]) -> float:
        ends = [0, *chosen, axis.results]
        total = 0.0
        for start, stop in pairwise(ends):
            taps = {tap for result in range(start, stop) for tap in axis.inside(result)}
            total += price + (stop - start) * (max(taps) - min(taps) + 1)
        return total

    if len(cuts) <= 8:
        least = min(cost(chosen) for count in range(len(cuts) + 1) for chosen in combinations(cuts, count))
        assert sum(block.products + price for block in found) == pytest.approx(least)


@settings(max_examples=25, deadline=None)
@given(st.lists(AXES, min_size=1, max_size=3), st.sampled_from([1, 2]), st.integers(0, 1), st.booleans())
def test_any_convolution(axes: list[Axis], groups: int, batch: int, splits: bool) -> None:
    data = numbers(1 + batch, 2, *(axis.extent for axis in axes))
    kernel = numbers(4, 2 // groups, *(axis.taps for axis in axes))
    # As much padding behind as gives the results.
    after = [
        (axis.results - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1 - axis.extent - axis.before
        for axis in axes
    ]
    if min(after) < 0:
        return
    attributes = {
        "strides": [axis.stride for axis in axes], "dilation": [axis.dilation for axis in axes], "groups": groups,
        "padding": [*(axis.before for axis in axes), *after],
    }  # fmt: skip
    mod = module(data, kernel, **attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "BLOCK_PRODUCTS", 0)
        patch.setattr(subject, "LEAST_GAIN", 1.0)
        rewritten = padded_taps(splits)(mod)
    padded = np.pad(data, [(0, 0), (0, 0), *((axis.before, more) for axis, more in zip(axes, after, strict=True))])
    operator = CONVOLUTIONS[len(axes)][1]
    expected = operator(
        torch.from_numpy(padded), torch.from_numpy(kernel), None, attributes["strides"], 0, attributes["dilation"],
        groups,
    )  # fmt: skip
    executable = tvm.compile(rewritten, "llvm", relax_pipeline="default")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_array_equal(found, expected.numpy())


def filters(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Give the shapes of the filters of all convolutions."""
    found: list[tuple[int, ...]] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "").startswith("relax.nn.conv"):
            found.append(tuple(map(int, expr.args[1].ty.shape)))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_taps_outside_for_every_result_are_dropped() -> None:
    data, kernel = numbers(1, 2, 14, 14), numbers(3, 2, 3, 3)
    rewritten = padded_taps(False)(module(data, kernel, padding=24, dilation=24))
    assert filters(rewritten) == [(3, 2, 1, 1)]
    # One of two results meets the first tap, the other the second one.
    rewritten = padded_taps(False)(module(data[..., :3], kernel, padding=[1, 1, 1, 4], dilation=[1, 3]))
    assert filters(rewritten) == [(3, 2, 3, 2)]


def test_dilated_convolutions_are_divided_where_that_pays() -> None:
    data = numbers(1, 960, 14, 14)
    mod = module(data, numbers(256, 960, 3, 3), padding=12, dilation=12)
    assert operators(padded_taps(False)(mod)) == ["relax.nn.conv2d"]
    assert operators(padded_taps(True)(mod)).count("relax.nn.conv2d") == 9
    few = module(numbers(1, 4, 14, 14), numbers(4, 4, 3, 3), padding=12, dilation=12)
    assert operators(padded_taps(True)(few)) == ["relax.nn.conv2d"]
    near = module(numbers(1, 64, 56, 56), numbers(64, 64, 3, 3), padding=2, dilation=2)
    assert operators(padded_taps(True)(near)) == ["relax.nn.conv2d"]


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        (np.full((2, 2, 3, 3), np.inf, "float32"), {"padding": 24, "dilation": 24}),  # times zero: no number
        (np.ones((2, 2, 3, 3), "float32"), {"padding": 1}),
        (np.ones((2, 2, 1, 1), "float32"), {"padding": 1}),  # results that are all padding
    ],
)
def test_what_stays(kernel: NDArray, attributes: dict[str, Any]) -> None:
    mod = module(numbers(1, 2, 14, 14), kernel, **attributes)
    tvm.ir.assert_structural_equal(padded_taps(True)(mod), mod)


def test_a_price_joins_blocks() -> None:
    axis = axis_of(14, 3, 1, 12, 12, 12)
    assert blocks(axis, 0.0) == (Block(0, 2, range(1, 3)), Block(2, 12, range(1, 2)), Block(12, 14, range(2)))
    assert blocks(axis, 100.0) == (Block(0, 14, range(3)),)
    assert divided([axis, axis], 1) == [blocks(axis, 100.0)] * 2


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_avx512_bf16)])
def test_in_the_pipeline(precision: Any) -> None:
    data = np.random.default_rng(0).standard_normal((1, 260, 17, 13)).astype("float32")
    kernel = np.random.default_rng(1).standard_normal((120, 260, 3, 3)).astype("float32") / 50
    (found,) = tvm_ext.compile(module(data, kernel, padding=11, dilation=11), precision=precision).run([data]).values()
    expected = torch.nn.functional.conv2d(torch.from_numpy(data), torch.from_numpy(kernel), None, 1, 11, 11).numpy()
    bound = 1e-5 if precision == "float32" else 0.02
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
