"""Plans of convolutions and products on numbers: each is valid, and every way to break one is noticed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_ext
from tests.zoo import get
from tvm_ext.errors import GraphError
from tvm_ext.graph.decisions import Decision, layout_decisions, with_decisions
from tvm_ext.layout.convolution_plan import (
    ConvolutionShape,
    plan_convolution,
    plan_open_convolution,
    plan_phases,
)
from tvm_ext.layout.integer_plan import plan_integer_convolution
from tvm_ext.layout.product_plan import plan_open_product, plan_product
from tvm_ext.layout.verify import verify_open_plan, verify_open_product, verify_phases, verify_plan, verify_product
from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.schedules.cpu.machine import ROWS

MACHINES = [replace(row, cores=cores) for (_, row), cores in zip(ROWS, itertools.cycle((1, 2, 16)))]
AWKWARD = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129])


@st.composite
def shapes(draw: st.DrawFn) -> ConvolutionShape:
    rank = draw(st.integers(2, 3))
    kernel = tuple(draw(st.sampled_from([1, 2, 3, 3, 5])) for _ in range(rank))
    dilation = tuple(draw(st.sampled_from([1, 1, 1, 2])) for _ in range(rank))
    reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    extents = tuple(size + draw(AWKWARD) for size in reach)
    kind = draw(st.sampled_from(["plain", "grouped", "depthwise"]))
    channels, results = draw(AWKWARD), draw(AWKWARD)
    groups = {"plain": 1, "grouped": draw(st.sampled_from([2, 3, 8])), "depthwise": channels}[kind]
    if kind == "depthwise":
        results = channels
    elif kind == "grouped":
        channels, results = channels * groups, results * groups
    return ConvolutionShape(
        draw(st.sampled_from([1, 1, 3])), channels, results, groups, extents, kernel,
        tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank)),
        tuple(draw(st.integers(0, 2)) for _ in range(2 * rank)), dilation,
    )  # fmt: skip


@given(shapes(), st.sampled_from(MACHINES), st.booleans(), st.sampled_from([0, 4, 8, 16]), st.booleans())
def test_every_plan_is_valid(shape: ConvolutionShape, machine, winograd: bool, stored: int, bfloat16: bool) -> None:
    plan = plan_convolution(shape, machine, stored, winograd, bfloat16)
    if plan is not None:
        verify_plan(plan, shape)
        summed = plan.block_sum or plan.block_in
        assert plan.rounds == (bfloat16 and plan.form in ("rows", "pixels") and summed % 2 == 0)
        assert winograd or plan.form != "winograd"
    integers = plan_integer_convolution(shape, machine, 4, stored)
    if integers is not None:
        verify_plan(integers, shape)
        assert integers.form in ("rows", "depthwise")


LARGE = ConvolutionShape(1, 64, 64, 1, (56, 56), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
STRIDED = replace(LARGE, strides=(2, 2), extents=(57, 57))
GROUPED = replace(LARGE, groups=4, strides=(2, 1))
SHORT = replace(LARGE, extents=(3, 3), kernel=(1, 1), padding=(0, 0, 0, 0), in_channels=256, out_channels=512)
AVX512 = replace(ROWS[0][1], cores=2)


@pytest.mark.parametrize(
    ("channels", "block", "summed"),
    [(16, 16, 16), (24, 16, 8), (8, 16, 8), (3, 16, 4), (40, 16, 8), (31, 16, 16), (25, 16, 4), (6, 8, 8), (3, 4, 4)],
)
def test_fewer_lanes_of_zeros_are_multiplied(channels: int, block: int, summed: int) -> None:
    plan = plan_convolution(replace(STRIDED, in_channels=channels), AVX512, block)
    assert plan is not None
    assert (plan.block_in, plan.block_sum) == (block, summed)
    with pytest.raises(GraphError, match=r"sums of 5 channels are no parts of blocks"):
        verify_plan(replace(plan, block_sum=5), replace(STRIDED, in_channels=channels))


def test_forms() -> None:
    forms = [
        (plan.form if plan else "")
        for plan in (
            plan_convolution(LARGE, AVX512),
            plan_convolution(LARGE, AVX512, winograd=False),
            plan_convolution(STRIDED, AVX512),
            plan_convolution(GROUPED, AVX512),
            plan_convolution(SHORT, AVX512),
            plan_convolution(replace(LARGE, groups=64), AVX512),
            plan_convolution(replace(LARGE, groups=32), AVX512),
        )
    ]
    assert forms == ["winograd", "rows", "rows", "rows", "pixels", "depthwise", ""]


@pytest.mark.parametrize(
    ("shape", "winograd", "broken", "message"),
    [
        (LARGE, False, {"chunks": 3}, "3 blocks of 16 hold no 64 channels"),
        (LARGE, False, {"computed": 55}, "55 of 56 columns"),
        (SHORT, True, {"computed": 8}, "8 of 9 pixels"),
        (GROUPED, True, {"block_in": 32, "block_sum": 32}, "sums of 32 channels are no parts"),
        (GROUPED, True, {"block_out": 32}, "blocks of 32 reach beyond groups of 16 results"),
        (LARGE, True, {"winograd": None}, "do not belong together"),
        (LARGE, True, {"winograd": {"rows": 195}}, "195 of 196 tiles"),
        (LARGE, True, {"winograd": {"strip": 15}}, "strips of 15 rows"),
        (LARGE, True, {"winograd": {"tile": (0, 1)}}, "mixes positions"),
    ],
)
def test_a_broken_plan_is_noticed(shape: ConvolutionShape, winograd: bool, broken: dict, message: str) -> None:
    plan = plan_convolution(shape, AVX512, 0, winograd)
    assert plan is not None
    if isinstance(broken.get("winograd"), dict):
        assert plan.winograd is not None
        broken = {"winograd": replace(plan.winograd, **broken["winograd"])}
    with pytest.raises(GraphError, match=message):
        verify_plan(replace(plan, **broken), shape)


def test_winograds_algorithm_is_for_its_windows_only() -> None:
    plan = plan_convolution(LARGE, AVX512)
    assert plan is not None
    for other in (replace(LARGE, strides=(2, 2)), replace(LARGE, kernel=(5, 5)), replace(LARGE, groups=4)):
        with pytest.raises(GraphError, match="3 x 3 taps"):
            verify_plan(plan, other)


@given(AWKWARD, AWKWARD, AWKWARD, st.sampled_from(["float32", "float64"]), st.sampled_from(MACHINES))
def test_products_are_covered(rows: int, reduction: int, columns: int, dtype: str, machine) -> None:
    shape = MatmulShape((rows, reduction), (reduction, columns))
    plan = plan_product(shape, (0, 1), dtype, machine)
    verify_product(plan, shape)
    with pytest.raises(GraphError, match="do not cover it"):
        verify_product(replace(plan, chunks=plan.chunks - plan.tile[1]), shape)
    if rows % plan.tile[0]:
        with pytest.raises(GraphError, match="do not cover it"):
            verify_product(replace(plan, copy_rows=False), shape)


@given(st.none() | AWKWARD, st.none() | AWKWARD, st.sampled_from(["float32", "float64"]), st.sampled_from(MACHINES))
def test_columns_of_open_products_are_covered(columns: int | None, reduction: int | None, dtype: str, machine) -> None:
    plan = plan_open_product(columns, reduction, dtype, machine)
    verify_open_product(plan, columns)
    open_columns = plan_open_product(None, reduction, dtype, machine)
    verify_open_product(open_columns, 0)
    with pytest.raises(GraphError, match="no whole register tiles"):
        verify_open_product(replace(plan, tile=(0, plan.tile[1])), columns)


@given(AWKWARD, AWKWARD, AWKWARD, st.sampled_from([1, 2, 3]), st.integers(1, 4), st.sampled_from(MACHINES))
def test_phases_are_the_result(channels: int, results: int, extent: int, stride: int, taps: int, machine) -> None:
    """Of a transposed convolution without padding whose windows begin where the image does."""
    reach = -(-taps // stride)
    phase = ConvolutionShape(
        1, channels, results, 1, (extent, extent), (reach, reach), (1, 1), (reach - 1,) * 4, (1, 1)
    )
    count = extent + reach - 1
    plan = plan_phases(phase, machine)
    verify_phases(plan, phase, (stride, stride), (count * stride, count * stride))
    with pytest.raises(GraphError, match=f"are no axis 1 of {count * stride + 1}"):
        verify_phases(plan, phase, (stride, stride), (count * stride, count * stride + 1))
    with pytest.raises(GraphError, match="columns are computed"):
        verify_phases(replace(plan, computed=count - 1), phase, (stride, stride), (count * stride, count * stride))


@given(AWKWARD, AWKWARD, st.sampled_from(["plain", "grouped", "depthwise"]), st.sampled_from(MACHINES))
def test_channels_of_open_convolutions_are_covered(channels: int, results: int, kind: str, machine) -> None:
    groups = {"plain": 1, "grouped": 4, "depthwise": channels}[kind]
    channels, results = (channels, channels) if kind == "depthwise" else (channels * groups, results * groups)
    plan = plan_open_convolution(channels, results, groups, machine)
    if plan is None:
        assert kind == "grouped"
        return
    verify_open_plan(plan, channels, results, groups)
    with pytest.raises(GraphError, match="blocks of"):
        verify_open_plan(replace(plan, chunks=plan.chunks - 1), channels, results, groups)


def test_an_artifact_says_how_its_operators_are_computed() -> None:
    entry = get("tiny_cnn")
    compiled = tvm_ext.compile(entry.onnx_path(), input_shapes=entry.input_shapes())
    found = compiled.metadata["decisions"]["layout"]
    assert [row["operator"] for row in found].count("nn.conv2d") == 3
    assert all(row["nodes"] for row in found)
    assert {"rows", "depthwise"} <= {row["form"] for row in found}
    assert all(row["plan"]["block_out"] > 1 for row in found if row["operator"] == "nn.conv2d")


def test_decisions_are_kept_with_a_module() -> None:
    plan = plan_convolution(LARGE, AVX512)
    assert plan is not None
    decision = Decision.of("relax.nn.conv2d", plan.form, plan, ("Conv node 'a'",))
    mod = tvm_ext.import_model(get("tiny_mlp").onnx_path()).mod
    assert layout_decisions(mod) == ()
    twice = with_decisions(with_decisions(mod, [decision]), [decision])
    assert layout_decisions(twice) == (decision, decision)
    assert with_decisions(mod, []) is mod
    assert decision.text.startswith("block_in 16, block_out 16, chunks 4")
    assert "rounds" not in decision.text
    assert Decision.of("relax.nn.conv2d", plan.form, replace(plan, rounds=True), ()).text.endswith(", rounds")
