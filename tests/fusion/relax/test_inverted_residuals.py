"""Inverted residuals as one kernel: the values of the three kernels, awkward shapes, NaN; who else reads; batches."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op

from tests.cpu import needs_avx512_bf16
from tests.memory.relax.modules import lowered, results_of
from tvm_ext.backends.cpu import backend
from tvm_ext.compiler import lower
from tvm_ext.fusion.inverted_residual_plan import ResidualPlan
from tvm_ext.fusion.relax import inverted_residuals as module
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.simd.imported import PREFETCH
from tvm_ext.target import resolve_target

Array = np.ndarray


def block(
    channels: int, hidden: int, out: int, size: Sequence[int], kernel: int = 3, stride: int = 1, dilation: int = 1,
    batch: int = 1, expands: bool = True, projects: bool = True, read_again: str = "", bare: bool = False,
) -> tuple[tvm.IRModule, Any]:  # fmt: skip
    """Expand, convolve each channel, project; a positive bias before each relu shows what is padded too late.

    With ``bare`` nothing stands behind the depthwise convolution and the projection, as in separable convolutions.
    """
    rng = np.random.default_rng(channels * 1000 + hidden * 10 + out)
    first = rng.standard_normal((hidden, channels, 1, 1)).astype("float32")
    middle = rng.standard_normal((hidden, 1, kernel, kernel)).astype("float32")
    last = rng.standard_normal((out, hidden, 1, 1)).astype("float32")
    bias = [rng.uniform(0.5, 1.5, (1, count, 1, 1)).astype("float32") for count in (hidden, hidden, out)]
    padding = dilation * (kernel - 1) // 2
    inputs = channels if expands else hidden
    x = relax.Var("x", relax.TensorType((batch, inputs, *size), "float32"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            t = u = x
            if expands:
                t = emit(op.nn.relu(emit(op.add(emit(op.nn.conv2d(x, relax.const(first))), relax.const(bias[0])))))
            u = emit(
                op.nn.conv2d(
                    t, relax.const(middle), strides=(stride, stride), padding=padding, dilation=dilation, groups=hidden
                )
            )
            u = y = u if bare else emit(op.nn.silu(emit(op.add(u, relax.const(bias[1])))))
            if projects:
                y = emit(op.nn.conv2d(u, relax.const(last)))
                y = y if bare else emit(op.add(y, relax.const(bias[2])))
                if stride == 1 and out == channels and expands:
                    y = emit(op.add(y, x))
            more = {"t": [t], "u": [u]}.get(read_again, [])
            results = builder.emit_output(relax.Tuple([y, *more]))
        builder.emit_func_output(results)

    def expected(value: Array) -> list[Array]:
        conv, double = torch.nn.functional.conv2d, [torch.from_numpy(array).double() for array in (first, middle, last)]
        biases = [torch.from_numpy(array).double() for array in bias]
        source = torch.from_numpy(value).double()
        t = torch.relu(conv(source, double[0]) + biases[0]) if expands else source
        u = conv(t, double[1], stride=stride, padding=padding, dilation=dilation, groups=hidden)
        u = y = u if bare else torch.nn.functional.silu(u + biases[1])
        if projects:
            y = conv(u, double[2]) + (0 if bare else biases[2])
            if stride == 1 and out == channels and expands:
                y = y + source
        return [item.numpy() for item in (y, *{"t": [t], "u": [u]}.get(read_again, []))]

    return builder.get(), expected


def fused(mod: tvm.IRModule) -> list[str]:
    return [variable.name_hint for variable in mod.get_global_vars() if "inverted_residual" in variable.name_hint]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one kernel however long it takes."""
    monkeypatch.setattr(backend, "fuse_inverted_residuals", lambda _: module.fuse_inverted_residuals(1e9))


CASES: list[dict[str, Any]] = [
    {"channels": 16, "hidden": 96, "out": 24, "size": (12, 12), "stride": 2},
    {"channels": 24, "hidden": 144, "out": 24, "size": (8, 10)},
    {"channels": 1, "hidden": 3, "out": 7, "size": (9, 7)},
    {"channels": 17, "hidden": 31, "out": 17, "size": (7, 13)},
    {"channels": 33, "hidden": 127, "out": 33, "size": (15, 3), "kernel": 5},
    {"channels": 16, "hidden": 48, "out": 16, "size": (12, 12), "kernel": 5, "stride": 2},
    {"channels": 16, "hidden": 32, "out": 16, "size": (12, 9), "dilation": 2},
    {"channels": 8, "hidden": 32, "out": 8, "size": (6, 6), "batch": 3},
    {"channels": 16, "hidden": 64, "out": 32, "size": (1, 1)},
    {"channels": 16, "hidden": 64, "out": 0, "size": (14, 14), "projects": False},
    {"channels": 20, "hidden": 40, "out": 5, "size": (9, 11), "projects": False, "stride": 2, "batch": 2},
    {"channels": 16, "hidden": 32, "out": 16, "size": (14, 14), "expands": False},
    {"channels": 16, "hidden": 35, "out": 19, "size": (9, 9), "expands": False, "stride": 2, "batch": 2},
    {"channels": 16, "hidden": 36, "out": 36, "size": (31, 33), "expands": False, "bare": True, "kernel": 5},
    {"channels": 16, "hidden": 17, "out": 127, "size": (7, 3), "expands": False, "bare": True, "stride": 2},
    {"channels": 16, "hidden": 33, "out": 16, "size": (9, 7), "expands": False, "bare": True, "dilation": 2},
    {"channels": 17, "hidden": 31, "out": 17, "size": (7, 13), "bare": True, "batch": 2},
    {"channels": 3, "hidden": 7, "out": 0, "size": (17, 1), "bare": True, "projects": False},
]  # fmt: skip


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_values(case: dict[str, Any]) -> None:
    """The values are those of float64, and a block is one kernel."""
    mod, expected = block(**case)
    value = np.random.default_rng(1).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    assert fused(lowered(mod))
    for found, right in zip(results_of(lowered(mod), [value]), expected(value), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize(("bands", "parts"), [(1, 1), (1, 6), (2, 3), (3, 2), (6, 6), (6, 1)])
@pytest.mark.parametrize("kind", ["whole", "no projection", "no expansion"])
def test_every_division_gives_the_same(monkeypatch: pytest.MonkeyPatch, kind: str, bands: int, parts: int) -> None:
    """However a kernel is divided, with fewer tasks than threads and with more, its values are those of the parts."""
    lanes = machine_of(resolve_target(None)).lanes("float32")
    mod, _ = block(
        lanes, 6 * lanes, 2 * lanes, (12, 10), stride=2, batch=2, expands=kind != "no expansion",
        projects=kind != "no projection",
    )  # fmt: skip
    value = np.random.default_rng(2).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    (apart,) = results_of(lowered(mod, inverted_residuals=False), [value])
    monkeypatch.setattr(module, "plan_residual", lambda *_: ResidualPlan(bands, parts, 0.0, 1.0, 0, 1))
    (found,) = results_of(lowered(mod), [value])
    np.testing.assert_allclose(found, apart, rtol=1e-5, atol=1e-5 * np.abs(apart).max())


@pytest.mark.parametrize(("size", "fetches"), [((7, 7), True), ((32, 32), False)])
def test_weights_that_few_pixels_share_are_fetched_ahead(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], fetches: bool
) -> None:
    """A band of seven rows meets each weight seven times, one of 32 rows more often than waiting for it would show."""
    monkeypatch.setattr(module, "plan_residual", lambda *_: ResidualPlan(1, 1, 0.0, 1.0, 0, 1))
    mod, _ = block(16, 32, 16, size, expands=False)
    assert (PREFETCH in lowered(mod).script()) == fetches


def separable(
    channels: int, out: int, size: Sequence[int], tensors: int = 2, kernel: int = 3, stride: int = 1, batch: int = 1,
    projects: bool = True, read_again: bool = False,
) -> tuple[tvm.IRModule, Any]:  # fmt: skip
    """Convolve each channel of a weighted sum of tensors behind a relu, then project, as a node of RandWire does.

    The relu is of the sum plus one, so that rows and columns of zeros that were computed too early would show. The
    tensors are results, too: otherwise the sum would be fused to the end of one of the convolutions that make them.
    """
    rng = np.random.default_rng(channels * 1000 + out)
    middle = rng.standard_normal((channels, 1, kernel, kernel)).astype("float32")
    last = rng.standard_normal((out, channels, 1, 1)).astype("float32")
    # Each tensor comes out of a convolution, so that all of them are blocked.
    first = rng.standard_normal((tensors, channels, 4, 1, 1)).astype("float32")
    x = relax.Var("x", relax.TensorType((batch, 4, *size), "float32"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            total = relax.const(np.float32(1))
            given = [emit(op.nn.conv2d(x, relax.const(weight))) for weight in first]
            for number, tensor in enumerate(given):
                total = emit(op.add(emit(op.multiply(tensor, relax.const(np.float32(number + 0.5)))), total))
            t = emit(op.nn.relu(total))
            y = emit(
                op.nn.conv2d(
                    t, relax.const(middle), strides=(stride, stride), padding=(kernel - 1) // 2, groups=channels
                )
            )
            if projects:
                y = emit(op.nn.conv2d(y, relax.const(last)))
            results = builder.emit_output(relax.Tuple([y, *given, *([t] if read_again else [])]))
        builder.emit_func_output(results)

    def expected(value: Array) -> list[Array]:
        conv, source = torch.nn.functional.conv2d, torch.from_numpy(value).double()
        given = [conv(source, torch.from_numpy(weight).double()) for weight in first]
        t = torch.relu(1 + sum((number + 0.5) * tensor for number, tensor in enumerate(given)))
        y = conv(t, torch.from_numpy(middle).double(), stride=stride, padding=(kernel - 1) // 2, groups=channels)
        y = conv(y, torch.from_numpy(last).double()) if projects else y
        return [item.numpy() for item in (y, *given, *([t] if read_again else []))]

    return builder.get(), expected


SEPARABLE: list[dict[str, Any]] = [
    {"channels": 16, "out": 16, "size": (14, 14), "tensors": 3},
    {"channels": 33, "out": 17, "size": (31, 7), "tensors": 2, "kernel": 5},
    {"channels": 36, "out": 36, "size": (17, 33), "tensors": 5, "stride": 2},
    {"channels": 3, "out": 127, "size": (7, 3), "tensors": 1, "batch": 3},
    {"channels": 78, "out": 78, "size": (1, 9), "tensors": 2, "batch": 2, "stride": 2},
    {"channels": 31, "out": 0, "size": (9, 12), "tensors": 3, "projects": False},
]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", SEPARABLE, ids=lambda case: "-".join(map(str, case.values())))
def test_sums_in_front_are_computed_for_a_band(case: dict[str, Any]) -> None:
    """Sum, relu, depthwise convolution and projection are one kernel, with the values of float64."""
    mod, expected = separable(**case)
    value = np.random.default_rng(1).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    (name,) = fused(lowered(mod))
    assert name.startswith("inverted_residual_fused_multiply")
    for found, right in zip(results_of(lowered(mod), [value]), expected(value), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.usefixtures("always")
def test_a_sum_that_others_read_is_stored() -> None:
    """What is returned as well is not computed again inside the kernel."""
    mod, expected = separable(16, 24, (9, 11), read_again=True)
    value = np.random.default_rng(5).standard_normal((1, 4, 9, 11)).astype("float32")
    assert not any("multiply" in name for name in fused(lowered(mod)))
    for found, right in zip(results_of(lowered(mod), [value]), expected(value), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.usefixtures("always")
def test_no_number_in_front_stays_where_it_is() -> None:
    """NaN and infinity in a sum reach what the separate kernels let them reach."""
    mod, _ = separable(17, 19, (11, 9), tensors=2)
    value = np.random.default_rng(3).standard_normal((1, 4, 11, 9)).astype("float32")
    value[0, 0, 0, 0], value[0, 1, 5, 8], value[0, 2, 10, 4] = np.nan, np.inf, -np.inf
    apart, *_ = results_of(lowered(mod, inverted_residuals=False), [value])
    found, *_ = results_of(lowered(mod), [value])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(apart))
    finite = np.isfinite(apart)
    assert finite.any()
    assert not finite.all()
    np.testing.assert_allclose(found[finite], apart[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("channels", [16, 17])
def test_nan_and_infinity_stay_where_they_are(channels: int) -> None:
    """What no window meets is not touched, also in lanes that fill up blocks, and beside rows of zeros."""
    mod, _ = block(channels, 35, channels, (11, 9))
    value = np.random.default_rng(3).standard_normal((1, channels, 11, 9)).astype("float32")
    value[0, 0, 0, 0], value[0, 1, 5, 8], value[0, 2, 10, 4] = np.nan, np.inf, -np.inf
    (apart,) = results_of(lowered(mod, inverted_residuals=False), [value])
    (found,) = results_of(lowered(mod), [value])
    np.testing.assert_array_equal(np.isnan(found), np.isnan(apart))
    finite = np.isfinite(apart)
    assert finite.any()
    assert not finite.all()
    np.testing.assert_allclose(found[finite], apart[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("again", ["t", "u"])
def test_what_others_read_is_stored(again: str) -> None:
    """A result that is read once more has a kernel that stores it: only the rest is put together."""
    mod, expected = block(16, 32, 24, (8, 8), read_again=again)
    value = np.random.default_rng(4).standard_normal((1, 16, 8, 8)).astype("float32")
    kernels = fused(lowered(mod))
    assert len(kernels) == 1
    for found, right in zip(results_of(lowered(mod), [value]), expected(value), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.usefixtures("always")
def test_the_option_leaves_kernels_apart() -> None:
    mod, _ = block(16, 96, 24, (12, 12))
    assert not fused(lowered(mod, inverted_residuals=False))


@needs_avx512_bf16
def test_bfloat16_leaves_kernels_apart() -> None:
    mod, _ = block(16, 96, 24, (12, 12))
    assert not fused(lowered(mod, precision="bfloat16"))


def test_planned_bytes_are_fewer() -> None:
    """Of a block as at the beginning of MobileNetV2 nothing between the convolutions is in the arena."""
    mod, _ = block(16, 96, 24, (112, 112), stride=2)
    bytes_of = [lowered_bytes(mod, inverted_residuals=flag) for flag in (False, True)]
    assert bytes_of[1] * 3 <= bytes_of[0]


def lowered_bytes(mod: tvm.IRModule, **options: Any) -> int:
    planned = lower(mod, resolve_target(None), PipelineOptions(**options))[1]
    assert planned is not None
    return int(planned.planned_bytes)


@pytest.mark.parametrize(
    ("addends", "rows", "waits"), [(1, 14, False), (1, 7, False), (4, 14, False), (4, 7, True), (11, 7, True)]
)
def test_a_kernel_that_waits_for_many_addends_keeps_no_larger_image(addends: int, rows: int, waits: bool) -> None:
    """Depthwise convolution and projection stay apart where the image shrinks and the projection's sum waits."""

    def tensor(*shape: int) -> relax.Var:
        return relax.Var("t", relax.TensorType(shape, "float32"))

    weight = relax.const(np.zeros((1, 1, 1, 1, 16, 16), "float32"))
    operands = relax.Tuple([tensor(1, 1, rows, rows, 16), weight, *(tensor(1, 1, rows, rows, 16),) * addends])
    window = SimpleNamespace(shape=(1, 1, 14, 14, 16), result=(1, 1, rows, rows, 16))
    project = SimpleNamespace(value=SimpleNamespace(args=(None, operands)))
    assert module._keeps_larger(window, project) is waits
