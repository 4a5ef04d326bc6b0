"""The transforms of Winograd convolutions: exact identities, numpy and torch as references, awkward extents."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te

import tvm_ext
from tests.schedules.kernels import TARGETS
from tvm_ext.compiler import lower
from tvm_ext.layout.relax.blocked_layout import constant_bytes
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.compute.winograd import tiles
from tvm_ext.schedules.compute.winograd_transforms import POINTS, STEADY_OUTPUTS, combine, transform_weight, transforms
from tvm_ext.schedules.cpu.machine import Machine, for_weights
from tvm_ext.schedules.cpu.winograd import winograd_cycles, winograd_outputs
from tvm_ext.schedules.cpu.winograd_division import STRIP_OF_L2, Strips, WinogradExtents, choose_strips
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE

LANES = 16


MATRICES = [*((outputs, False) for outputs in POINTS), (STEADY_OUTPUTS, True)]


@pytest.mark.parametrize(("outputs", "steady"), MATRICES)
def test_the_identity_is_exact(outputs: int, steady: bool) -> None:
    """Every product of one filter tap and one input value counts exactly where it belongs."""
    back, weight, data = transforms(outputs, steady)
    products = range(outputs + 2 + steady)
    for tap, value in product(range(3), range(outputs + 2)):
        filtered = [weight[row][tap] * data[row][value] for row in products]
        result = [sum((back[row][k] * filtered[k] for k in products), Fraction(0)) for row in range(outputs)]
        assert result == [Fraction(row + tap == value) for row in range(outputs)]


@pytest.mark.parametrize(("outputs", "steady"), MATRICES)
def test_sums_with_parts_in_common_are_those_of_the_matrices(outputs: int, steady: bool) -> None:
    """Every row of both transforms, computed by a kernel, is that row of the matrix times a vector."""
    for matrix in (transforms(outputs, steady)[0], transforms(outputs, steady)[2]):
        rows, columns = len(matrix), len(matrix[0])
        data = te.placeholder((columns, 7), name="data")
        result = te.compute((rows, 7), lambda i, j: combine(matrix, i, lambda k: data[k, j]))  # noqa: B023
        kernel = tvm.compile(te.create_prim_func([data, result]), TARGETS["native"])
        values = np.random.default_rng(outputs).standard_normal((columns, 7)).astype("float32")
        found = tvm.runtime.tensor(np.zeros((rows, 7), "float32"))
        kernel(tvm.runtime.tensor(values), found)
        numbers = np.array(matrix, dtype="float64")
        bound = 4 * np.finfo("float32").eps * (np.abs(numbers) @ np.abs(values))
        assert np.all(np.abs(found.numpy() - numbers @ values) <= bound)


def test_more_outputs_are_never_chosen_unasked() -> None:
    """They round too badly for that, however much they would save."""
    machine = Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=2)
    costs = {outputs: winograd_cycles(outputs, 1, 256, 256, (108, 108), machine) for outputs in POINTS}
    assert costs[6] < 0.9 * costs[4]
    assert winograd_outputs(1, 256, 256, (108, 108), machine) == 4


def test_weights_are_transformed_along_both_axes() -> None:
    filters = np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype("float32")
    _, matrix, _ = transforms(4)
    numbers = np.array(matrix, dtype="float64")
    result = transform_weight(filters, 4)
    assert result.shape == (36, 3, 5)
    np.testing.assert_allclose(result[6 * 2 + 5, 1, 4], numbers[2] @ filters[4, 1] @ numbers[5], rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (17, 33, 3, 3), (8, 5, 3, 3, 3), (130, 127, 3, 3)])
def test_weights_are_those_of_the_sum_over_all_taps(shape: tuple[int, ...]) -> None:
    filters = np.random.default_rng(1).standard_normal(shape).astype("float32")
    for outputs in (2, 4):
        _, matrix, _ = transforms(outputs)
        numbers = np.array(matrix, dtype="float64")
        deep = filters.reshape(*shape[:2], -1, 3, 3).astype("float64")
        expected = np.einsum("xh,oizhw,yw->xyzio", numbers, deep, numbers).astype("float32")
        np.testing.assert_array_equal(
            transform_weight(filters, outputs), expected.reshape(len(matrix) ** 2, -1, shape[0])
        )


def test_tiles_cover_the_output() -> None:
    assert tiles((56, 56), 4) == (14, 14)
    assert tiles((7, 1), 4) == (2, 1)
    assert tiles((7, 9), 2) == (4, 5)


def _convolution(
    batch: int, ins: int, outs: int, extents: tuple[int, int], padding: list[int], residual: bool = False
) -> tuple[tvm.IRModule, np.ndarray]:
    weight = np.random.default_rng(0).standard_normal((outs, ins, 3, 3)).astype("float32") / np.sqrt(9 * ins)
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((batch, ins, *extents), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            # Between two other convolutions, as in a network: blocked in, blocked out.
            result = builder.emit(relax.op.nn.conv2d(data, relax.const(weight), padding=padding))
            bias = relax.const(np.linspace(-1, 1, outs, dtype="float32").reshape(1, -1, 1, 1))
            result = builder.emit(relax.op.add(result, bias))
            if residual:
                result = builder.emit(relax.op.add(result, data))
            result = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(result)
    return builder.get(), weight


def _expected(data: np.ndarray, weight: np.ndarray, padding: list[int], residual: bool = False) -> np.ndarray:
    top, left, bottom, right = padding
    padded = torch.nn.functional.pad(torch.from_numpy(data).double(), (left, right, top, bottom))
    bias = torch.linspace(-1, 1, weight.shape[0], dtype=torch.float32).double()
    result = torch.nn.functional.conv2d(padded, torch.from_numpy(weight).double(), bias)
    return torch.relu(result + torch.from_numpy(data) if residual else result).numpy()


def _rules(mod: tvm.IRModule, **options: bool) -> list[str]:
    lowered, *_ = lower(mod, TARGETS["native"], PipelineOptions(**options))
    kernels = [func for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    assert not any(FAULT_ATTRIBUTE in func.attrs for func in kernels)
    return [str(func.attrs[RULE_ATTRIBUTE]) for func in kernels]


@settings(max_examples=10, deadline=None)
@given(
    outputs=st.sampled_from(sorted(POINTS)), batch=st.integers(1, 3), ins=st.sampled_from([16, 17, 33, 64]),
    outs=st.sampled_from([16, 31, 48]), height=st.integers(1, 17), width=st.sampled_from([1, 3, 7, 8, 9, 15, 31, 33]),
    padding=st.lists(st.integers(0, 2), min_size=4, max_size=4), residual=st.booleans(),
)  # fmt: skip
def test_results_are_those_of_a_convolution(
    outputs: int, batch: int, ins: int, outs: int, height: int, width: int, padding: list[int], residual: bool
) -> None:
    if residual:
        outs, padding = ins, [1, 1, 1, 1]
    if min(height + padding[0] + padding[2], width + padding[1] + padding[3]) < 3:
        return
    mod, weight = _convolution(batch, ins, outs, (height, width), padding, residual)
    data = np.random.default_rng(1).standard_normal((batch, ins, height, width)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: outputs)
        (result,) = tvm_ext.compile(mod).run([data]).values()
    expected = _expected(data, weight, padding, residual)
    # Errors grow with the size of what is added up, not with the sum.
    assert np.abs(result - expected).max() < 2e-5


@settings(max_examples=10, deadline=None)
@given(
    outputs=st.sampled_from(sorted(POINTS)), batch=st.integers(1, 2), ins=st.sampled_from([16, 33]),
    outs=st.sampled_from([16, 31]), extents=st.tuples(st.integers(1, 9), st.integers(3, 9), st.integers(3, 9)),
    taps=st.integers(1, 3), padding=st.lists(st.integers(0, 2), min_size=6, max_size=6),
)  # fmt: skip
def test_volumes(
    outputs: int, batch: int, ins: int, outs: int, extents: tuple[int, int, int], taps: int, padding: list[int]
) -> None:
    if extents[0] + padding[0] + padding[3] < taps:
        return
    weight = np.random.default_rng(0).standard_normal((outs, ins, taps, 3, 3)).astype("float32") / np.sqrt(27 * ins)
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((batch, ins, *extents), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit(relax.op.nn.conv3d(data, relax.const(weight), padding=padding))
            result = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(result)
    values = np.random.default_rng(1).standard_normal((batch, ins, *extents)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: outputs)
        (result,) = tvm_ext.compile(builder.get()).run([values]).values()
    front, top, left, back, bottom, right = padding
    padded = torch.nn.functional.pad(torch.from_numpy(values).double(), (left, right, top, bottom, front, back))
    expected = torch.relu(torch.nn.functional.conv3d(padded, torch.from_numpy(weight).double())).numpy()
    assert np.abs(result - expected).max() < 2e-5


@settings(max_examples=12, deadline=None)
@given(
    outputs=st.sampled_from(sorted(POINTS)), strip=st.integers(1, 4), ins=st.sampled_from([16, 31, 33, 64]),
    outs=st.sampled_from([16, 31, 48]), height=st.integers(1, 19), width=st.sampled_from([1, 3, 7, 8, 9, 15, 31, 33]),
    padding=st.lists(st.integers(0, 2), min_size=4, max_size=4), residual=st.booleans(),
)  # fmt: skip
def test_strips_give_what_the_image_at_once_gives(
    outputs: int, strip: int, ins: int, outs: int, height: int, width: int, padding: list[int], residual: bool
) -> None:
    if residual:
        outs, padding = ins, [1, 1, 1, 1]
    if min(height + min(padding[::2]), width + min(padding[1::2])) < 3:
        return  # a tap that meets nothing but padding is left out, and the filter is none of 3 x 3 then
    mod, weight = _convolution(1, ins, outs, (height, width), padding, residual)
    data = np.random.default_rng(1).standard_normal((1, ins, height, width)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: outputs)
        patch.setattr(
            "tvm_ext.layout.convolution_plan.choose_strips", lambda whole, _: Strips(min(strip, whole.tile_rows))
        )
        assert "cpu.winograd_strips" in _rules(mod)
        (result,) = tvm_ext.compile(mod).run([data]).values()
    assert np.abs(result - _expected(data, weight, padding, residual)).max() < 2e-5


@pytest.mark.parametrize("target", TARGETS)
def test_strips_on_other_targets(target: str) -> None:
    mod, weight = _convolution(1, 24, 40, (21, 18), [1] * 4)
    data = np.random.default_rng(1).standard_normal((1, 24, 21, 18)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: 4)
        patch.setattr("tvm_ext.layout.convolution_plan.choose_strips", lambda *_: Strips(2))
        compiled = tvm_ext.compile(mod, TARGETS[target])
    (result,) = compiled.run([data]).values()
    assert np.abs(result - _expected(data, weight, [1] * 4)).max() < 2e-5


def test_what_is_between_the_transforms_is_as_large_as_a_strip() -> None:
    mod, _ = _convolution(1, 32, 32, (64, 64), [1] * 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: 4)
        patch.setattr("tvm_ext.layout.convolution_plan.choose_strips", lambda *_: Strips(2))
        lowered, *_ = lower(mod, TARGETS["native"], PipelineOptions(disable=("finalize",)))
    (strips,) = [func for var, func in lowered.functions_items() if "winograd_strips" in var.name_hint]
    sizes: list[int] = []
    tvm_ffi.structural_walk(
        strips.body,
        (tvm.tirx.AllocBuffer, lambda node: sizes.append(int(np.prod([int(x) for x in node.buffer.shape])))),
    )
    assert 36 * 2 * 16 * 32 <= max(sizes) < 36 * 3 * 16 * 32  # 16 tiles a row; rows are rounded up to register tiles


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 60), columns=st.integers(1, 60), outputs=st.sampled_from(sorted(POINTS)),
    ins=st.integers(1, 20), chunks=st.integers(1, 20), cores=st.integers(1, 5), streams=st.booleans(),
)  # fmt: skip
def test_strips_are_shared_out_among_cores_and_stay_near_them(
    rows: int, columns: int, outputs: int, ins: int, chunks: int, cores: int, streams: bool
) -> None:
    machine = Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=cores, streams_weights=streams)
    found = choose_strips(WinogradExtents(rows, columns, outputs, ins * LANES, chunks), machine)
    strip, parts = found.rows, found.parts
    assert 1 <= strip <= rows
    assert chunks % parts == 0
    assert parts >= cores if found.shares else 1 <= parts <= cores
    values = 4 * (outputs + 2) ** 2 * strip * columns * LANES
    if found.shares:
        assert strip == rows
        assert values * (ins + cores * chunks // parts) <= machine.l3 // 2
    elif found != Strips(1):
        assert values * (ins + chunks // parts) <= STRIP_OF_L2 * machine.l2


def test_strips_of_few_cores_and_tiles_that_many_share() -> None:
    machine = Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=2)
    found = choose_strips(WinogradExtents(14, 14, 4, 64, 4), machine)  # 64 channels of 56 x 56
    assert 0 < found.rows <= 7
    assert found.parts == 1
    small = WinogradExtents(4, 4, 4, 64, 16)  # 64 to 256 channels of 13 x 13
    found = choose_strips(small, machine)
    assert found.shares or -(-4 // found.rows) * found.parts >= 2
    found = choose_strips(small, replace(machine, cores=8))
    assert found.parts >= 8 or -(-4 // found.rows) * found.parts >= 8
    # Many filters are read once, all tiles are kept; many tiles of a volume are kept strip by strip.
    assert choose_strips(WinogradExtents(7, 7, 4, 128, 8), machine).shares
    assert choose_strips(WinogradExtents(8, 8, 4, 1024, 32), machine).shares
    assert choose_strips(WinogradExtents(14, 14, 4, 64, 8, depth=16, depth_taps=3), machine).rows == 1


def test_filters_that_come_from_memory_are_kept_few() -> None:
    """Those of 4 x 4 outputs are 36 for 9, those of 2 x 2 are 16; images of 14 x 14 and 7 x 7 use each a few times."""
    small = for_weights(Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=2, flops=256e9, clock=4e9), 16 << 20)
    large = for_weights(small, (16 << 20) + 1)
    assert (small.streams_weights, large.streams_weights) == (False, True)
    for channels, size, kept, fetched in ((160, 14, 4, 2), (256, 14, 4, 2), (192, 7, 2, 0), (64, 56, 4, 4)):
        assert winograd_outputs(1, channels, channels, (size, size), small) == kept
        assert winograd_outputs(1, channels, channels, (size, size), large) == fetched
    # Of a memory that is fast enough it is as if they stayed.
    fast = replace(large, memory_bandwidth=1e13)
    assert winograd_outputs(1, 160, 160, (14, 14), fast) == 4


def test_filters_are_read_from_memory_once() -> None:
    """The second of several strips of a core finds them in the last cache, so that many strips cost no more memory."""
    machine = Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=2, flops=256e9, clock=4e9)
    wide = WinogradExtents(14, 14, 4, 64, 12)  # 64 to 192 channels of 56 x 56
    assert choose_strips(wide, for_weights(machine, 1 << 30)) == choose_strips(wide, machine)


def test_the_bytes_of_constants_are_counted() -> None:
    builder, data = relax.BlockBuilder(), relax.Var("data", relax.TensorType((7, 3), "float16"))
    with builder.function("main", [data]):
        weight = relax.const(np.zeros((3, 31), "float16"))
        result = builder.emit(relax.op.add(builder.emit(relax.op.matmul(data, weight)), relax.const(np.float16(1))))
        builder.emit_func_output(result)
    assert constant_bytes(builder.get()) == 2 * (3 * 31 + 1)
    assert constant_bytes(tvm.IRModule()) == 0


def test_large_convolutions_use_it_and_may_be_kept_from_it() -> None:
    mod, _ = _convolution(1, 64, 64, (56, 56), [1] * 4)
    rules = _rules(mod)
    assert rules.count("cpu.winograd") == 2 or rules.count("cpu.winograd_strips") == 1
    assert "cpu.convolution" not in rules
    rules = _rules(mod, winograd=False)
    assert "cpu.winograd" not in rules
    assert "cpu.convolution" in rules


def test_the_epilogue_is_part_of_the_transform_back() -> None:
    mod, _ = _convolution(1, 64, 64, (28, 28), [1] * 4, residual=True)
    ways = ((Strips(), ["matmul", "winograd", "winograd"]), (Strips(2), ["winograd_strips"]))
    for strips, kernels in (*ways, (Strips(4, 2, True), ["winograd_strips"])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tvm_ext.layout.convolution_plan.choose_strips", lambda *_, strips=strips: strips)
            rules = [rule.removeprefix("cpu.") for rule in _rules(mod)]
        assert sorted(rules) == sorted(["transpose", "transpose", *kernels])


@given(
    batch=st.integers(1, 4), ins=st.integers(1, 64), outs=st.integers(1, 64), height=st.integers(1, 100),
    width=st.integers(1, 100),
)  # fmt: skip
def test_it_is_chosen_only_where_it_saves_multiplications(
    batch: int, ins: int, outs: int, height: int, width: int
) -> None:
    machine = Machine("avx512", 512, 32, l2=1 << 20, l3=32 << 20, cores=2)
    outputs = winograd_outputs(batch, ins * LANES, outs * LANES, (height, width), machine)
    if outputs:
        rows, columns = tiles((height, width), outputs)
        assert rows * columns * (outputs + 2) ** 2 < 9 * height * width
    if height % 4 == 0 and width % 4 == 0 and min(height, width) >= 28 and 4 <= min(ins, outs) <= 32 == max(ins, outs):
        assert outputs == 4
