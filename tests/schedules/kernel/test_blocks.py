"""What follows a convolution or an average: broadcast results are computed once, not once for each element."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule

import tvm_ext  # noqa: F401
from tests.modules import STOCK, arguments, run
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.phases import Phase
from tvm_ext.target import resolve_target


def gated(with_convolution: bool, channels: int, kernel: int = 1) -> tvm.IRModule:
    """An image times a weight for each channel, as in squeeze-and-excitation blocks."""
    generator = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, 12, 13), "float32"))
    weight = relax.const(generator.standard_normal((channels, channels, kernel, kernel)).astype("float32") / channels)
    with builder.function("main", [x]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.conv2d(x, weight, padding=kernel // 2))
            gate = builder.emit(relax.op.nn.adaptive_avg_pool2d(image, (1, 1)))
            if with_convolution:
                gate = builder.emit(relax.op.nn.conv2d(gate, weight, padding=kernel // 2))
            gate = builder.emit(relax.op.sigmoid(gate))
            result = builder.emit_output(relax.op.multiply(image, gate))
        builder.emit_func_output(result)
    return builder.get()


def repetitions(func: tvm.tirx.PrimFunc, name: str) -> float | None:
    """How often the block of that name computes each of its points; None where there is no such block."""
    schedule = Schedule(func)
    try:
        block = schedule.get_sblock(name)
    except tvm.s_tir.ScheduleError:
        return None
    points = prod(int(axis.dom.extent) for axis in schedule.get(block).iter_vars)
    return prod(int(schedule.get(loop).extent) for loop in schedule.get_loops(block)) / points


@pytest.mark.parametrize("channels", [16, 40])
@pytest.mark.parametrize(("with_convolution", "kernel"), [(True, 1), (True, 3), (False, 1)])
def test_broadcast_results_are_computed_once(with_convolution: bool, kernel: int, channels: int) -> None:
    mod = gated(with_convolution, channels, kernel)
    found: dict[str, tvm.IRModule] = {}

    def after(phase: Phase, module: tvm.IRModule) -> None:
        found[phase.name] = module

    lower(mod, resolve_target(None), PipelineOptions(winograd=False), after_phase=after)
    kernels = [func for func in found["schedule"].functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    names = ("conv_update", "global_average_update")
    counts = [count for func in kernels for name in names if (count := repetitions(func, name)) is not None]
    assert counts
    assert max(counts) <= 1.5  # tiles are rounded up
    values = arguments(mod)
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    for left, right in zip(
        run(tvm.compile(mod, resolve_target(None), relax_pipeline=pipeline), values),
        run(tvm.compile(mod, STOCK), values),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
