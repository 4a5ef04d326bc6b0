"""Recurrent products divided by registers: against onnxruntime, and what is summed at once on some machines."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.ops.harness import node_model, run_onnxruntime
from tests.frontend.onnx.ops.test_recurrent import OUTPUTS, tensors
from tests.schedules.kernels import TARGETS
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.recurrence import OPERANDS, sums_at_once

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sequences", [1, 2, 4])
@pytest.mark.parametrize("gates", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [32, 64])
def test_sums_fit_the_registers(target: str, sequences: int, gates: int, bits: int) -> None:
    machine = machine_of(TARGETS[target])
    some, part = sums_at_once(sequences, gates, 16, bits, machine)
    vector = machine.vector_bits // bits
    assert gates % some == 0
    assert 16 % part == 0
    assert part >= vector
    assert sequences * some * part // vector <= machine.vector_registers - OPERANDS


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("batch", [1, 3, 16, 17])
@pytest.mark.parametrize("before", [0, 1])
def test_layers_agree_with_onnxruntime(cell: str, batch: int, before: int) -> None:
    values = tensors(cell, 5, batch, 7, 33, 2, optional=("B", "initial_h", "P"))
    attributes = {"hidden_size": 33, "direction": "bidirectional"}
    if cell == "GRU":
        attributes["linear_before_reset"] = before
    model = node_model(cell, values, OUTPUTS[cell], attributes, ("W", "R", "B", "P"))
    inputs = {name: values[name] for name in ("X", "initial_h")}
    expected = run_onnxruntime(model, inputs)
    found = tvm_ext.compile(model).run(inputs)
    for name, value in zip(OUTPUTS[cell], expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)
