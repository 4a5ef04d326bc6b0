"""Transposed convolutions to few channels as ordinary ones: which are taken, and that results stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.layout.relax.phases_as_channels import gain_of_phases, phases_as_channels
from tvm_ext.schedules.cpu.machine import Machine

TWO_UNITS = Machine("avx512", 512, 32, clock=3e9, flops=192e9)


def _module(
    batch: int, ins: int, outs: int, image: tuple[int, int], kernel: int, stride: int, padding: int, further: int = 0
) -> tuple[tvm.IRModule, np.ndarray]:
    weight = np.random.default_rng(0).standard_normal((ins, outs, kernel, kernel)).astype("float32")
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((batch, ins, *image), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit(
                relax.op.nn.conv2d_transpose(
                    data, relax.const(weight), strides=stride, padding=padding, output_padding=further
                )
            )
            result = builder.emit_output(relax.op.sigmoid(result))
        builder.emit_func_output(result)
    return builder.get(), weight


def _is_taken(mod: tvm.IRModule) -> bool:
    with native_target():
        return "conv2d_transpose" not in str(phases_as_channels()(mod))


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 2), ins=st.sampled_from([1, 3, 16, 17, 24]), outs=st.sampled_from([1, 2, 3, 7, 33]),
    height=st.integers(1, 9), width=st.sampled_from([1, 3, 8, 17, 31]), kernel=st.integers(2, 5),
    stride=st.integers(2, 3), padding=st.integers(0, 1),
)  # fmt: skip
def test_results_stay(
    batch: int, ins: int, outs: int, height: int, width: int, kernel: int, stride: int, padding: int
) -> None:
    kernel = max(kernel, stride, 2 * padding + 1)
    mod, weight = _module(batch, ins, outs, (height, width), kernel, stride, padding)
    data = np.random.default_rng(1).standard_normal((batch, ins, height, width)).astype("float32")
    (result,) = tvm_ext.compile(mod).run([data]).values()
    filters = torch.from_numpy(weight)
    wanted = torch.nn.functional.conv_transpose2d(torch.from_numpy(data), filters, stride=stride, padding=padding)
    np.testing.assert_allclose(result, torch.sigmoid(wanted).numpy(), rtol=1e-4, atol=1e-5)


def test_which_are_taken() -> None:
    assert _is_taken(_module(1, 24, 1, (8, 8), 2, 2, 0)[0])
    assert _is_taken(_module(1, 24, 2, (8, 8), 4, 2, 1)[0])
    assert not _is_taken(_module(1, 24, 64, (8, 8), 2, 2, 0)[0])  # channels fill vectors
    assert not _is_taken(_module(1, 24, 1, (8, 8), 3, 1, 1)[0])  # there is one phase
    assert not _is_taken(_module(1, 24, 1, (8, 8), 3, 2, 1)[0])  # the last row of phases is not whole


@pytest.mark.parametrize(
    ("channels", "phases", "gain"), [(1, 4, 4), (1, 16, 16), (3, 4, 4), (16, 4, 1), (24, 4, 4 / 3)]
)
def test_gain(channels: int, phases: int, gain: float) -> None:
    assert gain_of_phases(channels, phases, TWO_UNITS) == pytest.approx(gain)
    assert gain_of_phases(channels, phases, replace(TWO_UNITS, flops=96e9)) <= gain
