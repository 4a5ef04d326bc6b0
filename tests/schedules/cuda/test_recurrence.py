"""The time loop of recurrent layers with a thread a unit, as the emulator runs it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.schedules.cuda_kernels import CUDA, assert_emulated
from tvm_ext.frontend.onnx.ops.activations import relu, sigmoid, tanh
from tvm_ext.frontend.onnx.ops.recurrence import Recurrence, recurrence_function
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

CELLS = {
    "RNN": Recurrence("RNN", 3, 1, 17, (False,), ((tanh,),)),
    "GRU": Recurrence("GRU", 3, 2, 17, (False,), ((sigmoid, tanh),)),
    "GRU of a library": Recurrence("GRU", 3, 3, 33, (True,), ((sigmoid, tanh),), linear_before_reset=True),
    "LSTM": Recurrence("LSTM", 3, 2, 33, (False,), ((sigmoid, tanh, tanh),)),
}
LAYERS = {
    **CELLS,
    "one unit": replace(CELLS["LSTM"], hidden=1, batch=1, steps=1),
    "no step": replace(CELLS["LSTM"], steps=0),
    "units of 129": replace(CELLS["RNN"], hidden=129, batch=7),
    "both directions": replace(CELLS["LSTM"], reverse=(False, True), activations=2 * CELLS["LSTM"].activations),
    "two activations": replace(CELLS["RNN"], reverse=(False, True), activations=((tanh,), (relu,))),
    "lengths": replace(CELLS["GRU"], ragged=True, batch=3),
    "lengths backwards": replace(CELLS["LSTM"], ragged=True, reverse=(True,)),
    "peepholes and a bound": replace(CELLS["LSTM"], peepholes=True, clip=0.5),
    "a coupled gate": replace(CELLS["LSTM"], input_forget=True),
    "quantised": replace(CELLS["LSTM"], quantized_state=True),
    "halves": replace(CELLS["LSTM"], dtype="float16"),
    "more units than threads": replace(CELLS["RNN"], hidden=1040, steps=2),
}


def arrays_of(layer: Recurrence) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    made = []
    for parameter in recurrence_function(layer).params:
        shape = [int(extent) for extent in parameter.shape]
        if str(parameter.dtype) == "int32":
            made.append(np.arange(shape[0], dtype="int32") % 4)
        else:
            made.append((random.standard_normal(shape) * 0.3).astype(str(parameter.dtype)))
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_time_loops(name: str) -> None:
    layer = LAYERS[name]
    before = recurrence_function(layer)
    scheduled = apply_rules(before, CUDA["sm_90"], RULES)
    assert scheduled.attrs[RULE_ATTRIBUTE] == "cuda.recurrence"
    assert_emulated(before, scheduled, arrays_of(layer), 2e-3 if layer.dtype == "float16" else 1e-5)


def test_a_unit_a_thread() -> None:
    text = apply_rules(recurrence_function(CELLS["LSTM"]), CUDA["sm_90"], RULES).script()
    assert 'T.thread_binding(48, thread="threadIdx.x")' in text
    assert "vectorized" not in text
