"""Direct convolutions whose weights are fetched ahead: results against numpy, and the machine code."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tests.schedules.kernels import TARGETS, assembly, graph
from tvm_ext.layout.relax.blocked_layout import blocked_layout
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.packed_weights import pack_weight
from tvm_ext.schedules.compute.pixel_convolution import pixel_convolution
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.conv_tile import (
    ConvShape,
    computed_pixels,
    computed_width,
    conv_tile,
    move_slots,
    reduction_parts,
    register_tile,
)
from tvm_ext.schedules.cpu.convolution import Convolution
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.rule import apply_rules


def convolution(data: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Convolve in double precision."""
    padded = np.pad(data.astype(np.float64), [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows[:, :, ::stride, ::stride], weight)


def module(shape: tuple[int, ...], weight: np.ndarray, stride: int, padding: int) -> tvm.IRModule:
    def build(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        result = relax.op.nn.conv2d(data, relax.const(weight), stride, padding)
        return relax.op.nn.relu(builder.normalize(result))

    return graph(build, [(shape, "float32")])


@pytest.mark.parametrize("target", ["native", "avx2"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride"),
    [
        (48, 80, 1, 1, 1),
        (33, 65, 7, 1, 1),
        (40, 96, 9, 3, 2),
        (3, 31, 17, 3, 2),
        (3, 24, 33, 3, 1),
        (160, 129, 3, 1, 1),
    ],
)
def test_results(channels: int, out: int, size: int, kernel: int, stride: int, target: str) -> None:
    random = np.random.default_rng(0)
    data = random.standard_normal((1, channels, size, size), np.float32)
    weight = random.standard_normal((out, channels, kernel, kernel), np.float32)
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    executable = tvm.compile(module(data.shape, weight, stride, kernel // 2), TARGETS[target], relax_pipeline=pipeline)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
    expected = np.maximum(convolution(data, weight, stride, kernel // 2), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
def test_the_first_layer_keeps_its_accumulators_in_registers() -> None:
    """What a tap reads is not kept for the next one where that takes registers from the accumulators."""
    weight = np.random.default_rng(0).standard_normal((32, 3, 3, 3), np.float32)
    target, transform = TARGETS["native"], relax.transform
    passes = [blocked_layout(False), transform.LegalizeOps(), transform.AnnotateTIROpPattern()]
    with target:
        mod = tvm.transform.Sequential([*passes, transform.FuseOps(), transform.FuseTIR()])(
            module((1, 3, 224, 224), weight, 2, 1)
        )
    rule = Convolution()
    (kernel,) = (
        func
        for func in mod.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc) and rule.prepare(func, target) is not None
    )
    lines = assembly(apply_rules(kernel, target, RULES)).splitlines()
    steps = [number for number, line in enumerate(lines) if "vfmadd" in line]
    inside = lines[steps[0] : steps[-1]]
    assert len(steps) >= 32
    assert sum("zmm" in line and "rsp" in line for line in inside) <= 4


AVX512, AVX2 = Machine("avx512", 512, 32, l2=1 << 20, cores=2), Machine("avx2", 256, 16, cores=2)


def test_register_tiles_load_little() -> None:
    """Of tiles that compute as much, the one with fewer loads; one wide row of accumulators is not."""
    for width, chunks in [(28, 9), (56, 9), (56, 3), (112, 12), (20, 3)]:
        columns, vectors = register_tile(width, chunks, AVX512)
        assert vectors >= 3
        assert columns * vectors >= 12
        assert columns * vectors + vectors + 1 < 32
    assert register_tile(14, 36, AVX512) == (14, 2)
    assert register_tile(7, 10, AVX512) == (7, 2)


def test_weights_from_the_second_cache_are_met_by_enough_columns() -> None:
    assert register_tile(14, 32, AVX2) == (2, 4)
    columns, vectors = register_tile(14, 32, AVX2, reduction=2304)
    assert columns >= 4
    assert vectors <= 3
    fast = replace(AVX2, l2_bandwidth=1e12)
    assert register_tile(14, 32, fast, reduction=2304) == (2, 4)


def nothing(_pixels: int) -> int:
    return 0


def test_pixels_are_cut_regardless_of_rows_where_that_wastes_less() -> None:
    assert 196 <= computed_pixels((14, 14), 32, 2304, nothing, 32, AVX2) <= 200
    assert computed_pixels((14, 14), 32, 1024, lambda pixels: (pixels > 196) << 15, 32, AVX2) == 196  # not to copy
    assert computed_pixels((7, 7), 64, 4608, nothing, 32, AVX2) == 50
    assert computed_pixels((28, 28), 16, 1152, nothing, 32, AVX2) == 0  # rows are whole tiles
    assert computed_pixels((1, 49), 64, 4608, nothing, 32, AVX2) == 0
    assert computed_pixels((7, 7), 64, 4608, lambda _: 4 << 15, 32, AVX2) == 0
    for size in (7, 14, 28, 56):
        assert computed_pixels((size, size), 32, 2304, nothing, 64, AVX512) == 0


SERVER = replace(AVX512, l2=1280 << 10, l3=32 << 20, shares_l3=True)


def test_an_input_is_not_copied_to_fill_up_a_tile() -> None:
    """31 columns are no whole tiles; in tiles of one they take 30 times as long, which is worth most copies."""
    filled = computed_width(31, 4, AVX512, 192)
    assert filled == 32
    assert computed_width(31, 4, AVX512, 192, copying=1) == filled
    assert computed_width(31, 4, AVX512, 192, copying=1e3) == 31
    assert computed_width(35, 4, AVX512, 192, copying=1e3) == 35  # seven tiles


def test_copies_that_leave_the_second_cache_of_a_server_are_slow() -> None:
    assert move_slots(64, SERVER, 100 << 10) == move_slots(64, SERVER) == move_slots(64, AVX512, 4 << 20)
    assert move_slots(64, SERVER, 1 << 20) > 3 * move_slots(64, SERVER)


def test_a_prime_number_of_strips_is_filled_up() -> None:
    """784 pixels are 131 strips of 6, 1444 are 241, 2116 are 353: primes, which no two tasks can share."""
    for size in (28, 38, 46):

        def moves(pixels: int) -> int:
            return 2 * pixels

        pixels = computed_pixels((size, size), 4, 2304, moves, 64, AVX2, forced=True)
        columns, _ = register_tile(pixels, 4, AVX2, 2304, exact=True)
        assert size * size <= pixels <= 1.02 * size * size
        assert pixels // columns % 2 == 0


def test_sums_are_divided_where_what_is_left_of_the_second_cache_is_far() -> None:
    """1024 channels of 14 x 14 pixels: 256 KiB of weights are met by an input of 784."""
    shape = shape_of(1024, in_chunks=64)
    assert reduction_parts(shape, 4, 400 << 10, replace(SERVER, shares_l3=False)) == 1
    parts = reduction_parts(shape, 4, 400 << 10, SERVER)
    assert parts > 1
    assert 1024 // parts * 4 * 64 <= SERVER.l1 * 5 // 8
    assert reduction_parts(shape, 4, 100 << 10, SERVER) == 1


def test_copying_elements_one_by_one_is_not_worth_it() -> None:
    assert computed_pixels((7, 7), 64, 2304, lambda pixels: pixels * 2304, 4, AVX2) == 0
    assert computed_pixels((7, 7), 64, 2304, lambda pixels: pixels * 2304 // 8, 32, AVX2) > 0


def test_a_copy_that_all_channels_need_is_divided_instead() -> None:
    row = replace(shape_of(4096), out_h=1, out_w=50, out_chunks=8, bands=True)
    assert conv_tile(row, AVX2).column_parts == 1
    assert conv_tile(replace(row, copy_slots=1e5), AVX2).column_parts == 2


def shape_of(reduction: int, **changed: int) -> ConvShape:
    row_bytes = 9 * 4 * reduction // 9
    shape = ConvShape(1, 64, 7, 8, 8, reduction, reduction // 72, kernel_h=3, stride_h=1, input_row_bytes=row_bytes)
    return replace(shape, **changed)


def test_long_sums_are_divided_where_their_weights_leave_no_cache_to_the_input() -> None:
    tile = conv_tile(shape_of(4608), AVX2)
    panel = 4608 * tile.vectors * 32
    assert panel // tile.reduction_parts <= AVX2.l1
    assert 64 % tile.reduction_parts == 0
    assert tile.reduction_parts > 1
    assert conv_tile(shape_of(576), AVX2).reduction_parts == 1
    assert conv_tile(shape_of(4608), replace(AVX2, l2=4 << 20)).reduction_parts == 1


@pytest.mark.parametrize("target", ["native", "avx2"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "strides", "padding", "dilation", "groups"),
    [
        (16, 24, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        (24, 33, (9, 5), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
        (16, 16, (7, 3), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
        (8, 40, (15, 17), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
        (16, 16, (11, 13), (3, 2), (1, 3), (0, 2, 1, 0), (2, 1), 1),
        (32, 64, (9, 7), (5, 1), (3, 1), (2, 0, 1, 0), (1, 1), 2),
        (17, 9, (1, 2), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        (512, 40, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # the sums are divided
    ],
)
def test_pixels_one_after_another(
    channels: int,
    out: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, ...],
    dilation: tuple[int, int],
    groups: int,
    target: str,
) -> None:
    """Whatever the rule would choose: images cut by pixels, more of them computed than there are."""
    random = np.random.default_rng(channels * out)
    data = random.standard_normal((2, channels, *size), np.float32)
    weight = random.standard_normal((out, channels // groups, *kernel), np.float32)
    block = 8
    packed = pack_weight(weight, block, block, groups)
    blocked = np.zeros((2, -(-channels // block) * block, *size), np.float32)
    blocked[:, :channels] = data
    blocked = blocked.reshape(2, -1, block, *size).transpose(0, 1, 3, 4, 2)
    operand, weights = te.placeholder(blocked.shape, "float32", "x"), te.placeholder(packed.shape, "float32", "w")
    expected = grouped_convolution(data, weight, strides, padding, dilation, groups)
    pixels = -(-prod(expected.shape[2:]) // 5) * 5
    result = pixel_convolution(operand, weights, strides, padding, dilation, pixels, groups, out)
    func = te.create_prim_func([operand, weights, result])
    prepared = Convolution().prepare(func, TARGETS[target])
    assert prepared is not None
    assert Convolution().apply(prepared, TARGETS[target]) is not None
    func = apply_rules(func, TARGETS[target], RULES)
    run = tvm.compile(vector_code()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")})), TARGETS[target])
    output = tvm.runtime.tensor(np.zeros([int(extent) for extent in result.shape], np.float32))
    run["main"](tvm.runtime.tensor(np.ascontiguousarray(blocked)), tvm.runtime.tensor(packed), output)
    plain = output.numpy().transpose(0, 1, 4, 2, 3).reshape(2, -1, *expected.shape[2:])
    np.testing.assert_allclose(plain[:, :out], expected, rtol=1e-4, atol=1e-3)
    assert not plain[:, out:].any()


def grouped_convolution(
    data: np.ndarray,
    weight: np.ndarray,
    strides: tuple[int, int],
    padding: tuple[int, ...],
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """Convolve in double precision, tap by tap."""
    padded = np.pad(data.astype(np.float64), [(0, 0), (0, 0), padding[::2], padding[1::2]])
    out, per_group, *kernel = weight.shape
    rows, columns = (
        (padded.shape[axis + 2] - dilation[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1 for axis in range(2)
    )
    result = np.zeros((data.shape[0], out, rows, columns))
    for group in range(groups):
        outs = slice(group * out // groups, (group + 1) * out // groups)
        source = padded[:, group * per_group : (group + 1) * per_group]
        for i, j in np.ndindex(*kernel):
            top, left = i * dilation[0], j * dilation[1]
            window = source[:, :, top :: strides[0], left :: strides[1]][:, :, :rows, :columns]
            result[:, outs] += np.einsum("nchw,oc->nohw", window, weight[outs, :, i, j])
    return result


def test_with_sse_pixels_meet_several_vectors_of_channels() -> None:
    """A load and a shuffle for each element: tiles of nine pixels and one vector took 1.5 times as long."""
    unfused = machine_of(TARGETS["sse4"])
    assert register_tile(27, 32, unfused, 32)[1] > 1
    assert register_tile(27, 32, replace(unfused, fuses=True), 32)[1] == 1
