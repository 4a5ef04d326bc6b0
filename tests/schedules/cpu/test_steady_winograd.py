"""Winograd convolutions of bfloat16: they round hardly more than direct ones, on any extents and for two threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvm_ext
from tests.cpu import needs_avx512_bf16
from tests.schedules.compute.test_winograd import _convolution, _expected
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.errors import GraphError
from tvm_ext.layout.convolution_choices import convolution_plans
from tvm_ext.layout.convolution_plan import ConvolutionShape, plan_convolution
from tvm_ext.layout.verify import verify_plan
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.winograd import pays_steady
from tvm_ext.schedules.cpu.winograd_division import Strips, WinogradExtents
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

MACHINE = Machine("avx512", 512, 32, cores=2, l2=1 << 20, l3=32 << 20, flops=118e9, clock=3.7e9)
PLAN = "tvm_ext.layout.convolution_plan"

CASES = [
    (1, 1, 1, 16, 16, (2, 2), [1, 1, 1, 1]),
    (1, 2, 1, 31, 48, (17, 31), [2, 0, 1, 1]),
    (1, 1, 1, 33, 31, (31, 7), [0, 1, 3, 2]),
    (3, 3, 1, 33, 16, (33, 3), [1, 1, 1, 1]),
    (1, 2, 2, 64, 31, (17, 127), [1, 1, 1, 1]),
    (1, 9, 3, 33, 47, (33, 17), [1, 1, 1, 1]),
    (2, 2, 4, 47, 64, (7, 31), [0, 2, 1, 0]),
]
"""Images, rows of tiles in a strip, parts of the result, channels, extents and padding of a convolution."""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        # Small kernels are neither worth two threads nor transforms.
        patched.setattr("tvm_ext.schedules.cpu.machine.Machine.divides", lambda machine, _flops: machine.cores > 1)
        patched.setattr(f"{PLAN}.pays_steady", lambda *_: True)
        yield patched


def divide(patch: pytest.MonkeyPatch, strip: int, parts: int, shares: bool) -> None:
    def strips(extents: WinogradExtents, _machine: Machine) -> Strips:
        chosen = max(part for part in (1, parts) if extents.chunks % part == 0)
        return Strips(min(strip, extents.tile_rows), chosen, shares)

    patch.setattr(f"{PLAN}.choose_strips", strips)


def target() -> tvm.target.Target:
    """Describe this machine, with two threads."""
    return tvm.target.Target({**dict(native_target().export()), "num-cores": 2})


def error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((result - expected) ** 2)) / np.sqrt(np.mean(expected**2)))


@needs_avx512_bf16
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_extents_in_any_division(patch: pytest.MonkeyPatch, case: tuple[Any, ...], shares: bool) -> None:
    batch, strip, parts, ins, outs, extents, padding = case
    mod, weight = _convolution(batch, ins, outs, extents, padding)
    divide(patch, strip, parts, shares)
    options = PipelineOptions(precision="bfloat16")
    lowered, *_ = lower(mod, target(), options)
    kernels = [func for func in lowered.functions.values() if RULE_ATTRIBUTE in (func.attrs or {})]
    (strips,) = [func for func in kernels if func.attrs[RULE_ATTRIBUTE] == "cpu.winograd_strips"]
    assert "bfloat16" in strips.script()
    data = np.random.default_rng(1).standard_normal((batch, ins, *extents)).astype("float32")
    (result,) = tvm_ext.compile(mod, target(), precision="bfloat16").run([data]).values()
    expected = _expected(data, weight, padding)
    assert 1e-4 < error(result, expected) < 0.006  # direct: 0.0025, with six products 0.01
    assert np.abs(result - expected).max() < 0.03


@needs_avx512_bf16
@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_errors_are_about_those_of_a_direct_convolution(patch: pytest.MonkeyPatch, mean: float) -> None:
    mod, weight = _convolution(1, 64, 64, (32, 32), [1] * 4)
    data = np.random.default_rng(1).standard_normal((1, 64, 32, 32)).astype("float32") + np.float32(mean)
    expected = _expected(data, weight, [1] * 4)
    errors = []
    for winograd in (True, False):
        (result,) = tvm_ext.compile(mod, precision="bfloat16", winograd=winograd).run([data]).values()
        errors.append(error(result, expected))
    assert errors[1] < errors[0] < 2 * errors[1]


@needs_avx512_bf16
def test_pooling_and_what_only_convolutions_read(patch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((48, ins, 3, 3)).astype("float32") / np.sqrt(4.5 * ins) for ins in (20, 48, 48)]
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, 20, 32, 24), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            value: relax.Expr = data
            for number, weight in enumerate(weights):
                value = builder.emit(relax.op.nn.conv2d(value, relax.const(weight), padding=1))
                value = builder.emit(relax.op.nn.relu(value))
                if number == 1:
                    value = builder.emit(relax.op.nn.max_pool2d(value, pool_size=2, strides=2))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    x = rng.standard_normal((1, 20, 32, 24)).astype("float32")
    compiled = tvm_ext.compile(builder.get(), precision="bfloat16")
    assert [row["plan"]["rounds"] for row in compiled.metadata["decisions"]["layout"] if row["form"] == "winograd"]
    (result,) = compiled.run([x]).values()
    expected = torch.from_numpy(x).double()
    for number, weight in enumerate(weights):
        expected = torch.nn.functional.conv2d(expected, torch.from_numpy(weight).double(), padding=1).relu()
        if number == 1:
            expected = torch.nn.functional.max_pool2d(expected, 2)
    assert error(result, expected.numpy()) < 0.01


def shape(channels: int, size: int, taps: int = 3) -> ConvolutionShape:
    return ConvolutionShape(1, channels, channels, 1, (size,) * 2, (taps,) * 2, (1, 1), (taps // 2,) * 4, (1, 1))


def test_only_where_operands_may_be_rounded_and_it_pays() -> None:
    for channels, size in ((64, 56), (128, 112), (256, 14), (512, 28)):
        plan = plan_convolution(shape(channels, size), MACHINE, bfloat16=True)
        assert plan is not None
        assert plan.form == "winograd"
        assert plan.rounds
        names = convolution_plans(shape(channels, size), MACHINE)
        assert not [name for name, each in names.items() if each.rounds]
        without = plan_convolution(shape(channels, size), MACHINE, winograd=False, bfloat16=True)
        assert without is not None
        assert without.form != "winograd"
    # Four tiles do not pay for five times as many filters.
    assert not pays_steady(1, 512, 512, (7, 7), MACHINE)
    assert not pays_steady(1, 16, 16, (56, 56), MACHINE)


def test_plans_that_there_is_no_code_for_are_refused() -> None:
    plan = plan_convolution(shape(64, 56), MACHINE, bfloat16=True)
    assert plan is not None
    assert plan.winograd is not None
    for wrong in (replace(plan.winograd, strip=0), replace(plan.winograd, outputs=2)):
        with pytest.raises(GraphError, match="tiles are rounded to bfloat16 in strips of images"):
            verify_plan(replace(plan, winograd=wrong), shape(64, 56))
