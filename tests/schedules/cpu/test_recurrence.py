"""Recurrent products divided by registers: against onnxruntime, and what is summed at once on some machines."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

import tvm_ext
from tests.frontend.onnx.ops.harness import node_model, run_onnxruntime
from tests.frontend.onnx.ops.test_recurrent import OUTPUTS, tensors
from tests.schedules.kernels import TARGETS
from tvm_ext.frontend.onnx.ops.recurrence import batch_tile
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.recurrence import OPERANDS, sums_at_once

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sequences", [1, 2, 3, 4])
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
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 16, 17])
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


def test_sequences_that_share_weights() -> None:
    assert [batch_tile(batch, 2) for batch in (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 17)] == [
        1, 1, 2, 3, 4, 3, 3, 4, 3, 4, 4, 4,
    ]  # fmt: skip
    # Of one direction, two threads have a tile each.
    assert [batch_tile(batch, 1) for batch in (1, 2, 3, 4, 5, 8)] == [1, 2, 2, 2, 3, 4]


def test_few_registers_hold_one_gate_of_several_sequences() -> None:
    machine = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))
    assert [sums_at_once(sequences, 4, 16, 32, machine) for sequences in (1, 2, 4)] == [(4, 16), (1, 16), (1, 16)]
    assert sums_at_once(4, 4, 16, 64, machine) == (2, 4)
