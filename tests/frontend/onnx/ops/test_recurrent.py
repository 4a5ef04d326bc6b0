"""RNN, GRU and LSTM against onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_ext
from tests.cpu import LARGEST_WEIGHT
from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_module,
    run_onnxruntime,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.ops.recurrence import GATES

pytest.importorskip("onnxruntime")

OUTPUTS = {"RNN": ["Y", "Y_h"], "GRU": ["Y", "Y_h"], "LSTM": ["Y", "Y_h", "Y_c"]}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def tensors(cell, steps, batch, size, hidden, directions, seed=0, dtype="float32", optional=()):
    random = np.random.default_rng(seed)
    gates = GATES[cell]

    def draw(*shape):
        return (random.standard_normal(shape) * 0.5).astype(dtype)

    values = {
        "X": draw(steps, batch, size),
        "W": draw(directions, gates * hidden, size),
        "R": draw(directions, gates * hidden, hidden),
        "B": draw(directions, 2 * gates * hidden),
        "sequence_lens": random.integers(0, steps + 1, batch).astype("int32"),
        "initial_h": draw(directions, batch, hidden),
    }
    if cell == "LSTM":
        values["initial_c"] = draw(directions, batch, hidden)
        values["P"] = draw(directions, 3 * hidden)
    required = ("X", "W", "R")
    return {name: value if name in required or name in optional else None for name, value in values.items()}


def check(cell, values, attributes, constants=("W", "R", "B", "P")):
    hidden = values["R"].shape[-1]
    model = node_model(cell, values, OUTPUTS[cell], {"hidden_size": hidden, **attributes}, constants)
    return check_with_onnxruntime(model, values)


@pytest.mark.parametrize("case", stored_cases(["lstm", "gru", "rnn"]), ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_agrees_with_onnxruntime(data):
    cell = data.draw(st.sampled_from(["RNN", "GRU", "LSTM"]), "cell")
    direction = data.draw(st.sampled_from(sorted(DIRECTIONS)), "direction")
    steps, batch = data.draw(st.integers(1, 9), "steps"), data.draw(st.integers(1, 5), "batch")
    size, hidden = data.draw(st.integers(1, 17), "size"), data.draw(st.sampled_from([1, 7, 15, 16, 17, 33]), "hidden")
    optional = data.draw(st.sets(st.sampled_from(["B", "sequence_lens", "initial_h", "initial_c", "P"])), "optional")
    attributes = {"direction": direction}
    if data.draw(st.booleans(), "clipped"):
        attributes["clip"] = data.draw(st.sampled_from([0.3, 1.0]), "clip")
    if cell == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1), "linear_before_reset")
    if cell == "LSTM":
        attributes["input_forget"] = data.draw(st.integers(0, 1), "input_forget")
    values = tensors(
        cell, steps, batch, size, hidden, DIRECTIONS[direction], data.draw(st.integers(0, 99)), optional=optional
    )
    constants = data.draw(st.sampled_from([("W", "R", "B", "P"), ("W", "R", "B", "P", "sequence_lens")]), "constants")
    check(cell, values, attributes, constants)


ACTIVATIONS = [
    ("Affine", 0.7, 0.1),
    ("Elu", 0.8, None),
    ("HardSigmoid", 0.3, 0.4),
    ("LeakyRelu", 0.05, None),
    ("Relu", None, None),
    ("ScaledTanh", 0.9, 1.1),
    ("Sigmoid", None, None),
    ("Softplus", None, None),
    ("Softsign", None, None),
    ("Tanh", None, None),
    ("ThresholdedRelu", 0.2, None),
]


@pytest.mark.parametrize(("name", "alpha", "beta"), ACTIVATIONS, ids=lambda value: str(value))
def test_each_activation(name, alpha, beta):
    values = tensors("RNN", 4, 3, 5, 6, 1, optional=("B", "initial_h"))
    attributes = {"activations": [name]}
    attributes |= {} if alpha is None else {"activation_alpha": [alpha]}
    attributes |= {} if beta is None else {"activation_beta": [beta]}
    check("RNN", values, attributes)


def test_directions_with_their_own_activations():
    values = tensors("GRU", 5, 2, 3, 4, 2, optional=("B",))
    names = ["HardSigmoid", "Softsign", "Sigmoid", "LeakyRelu"]
    attributes = {"activations": names, "activation_alpha": [0.3, 0.02], "activation_beta": [0.4]}
    check("GRU", values, {"direction": "bidirectional", **attributes})


def test_large_inputs_saturate():
    values = tensors("LSTM", 3, 1, 4, 5, 1)
    values["X"] = values["X"] * 1e4
    found = check("LSTM", values, {})
    assert np.isfinite(found[0]).all()


def test_nan_is_not_hidden():
    values = tensors("LSTM", 3, 1, 4, 5, 1)
    values["X"][1, 0, 0] = np.nan
    model = node_model("LSTM", values, OUTPUTS["LSTM"], {"hidden_size": 5}, ("W", "R"))
    found = run_module(import_with_converters(model), [values["X"]])[0]
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_batch_first_is_the_transpose(cell):
    """The runtime refuses layout=1, so the same layer with layout=0 is the reference."""
    values = tensors(cell, 4, 3, 5, 6, 2, optional=("B", "initial_h", "initial_c"))
    attributes = {"hidden_size": 6, "direction": "bidirectional"}
    model = node_model(cell, values, OUTPUTS[cell], attributes, ("W", "R", "B"))
    given_values = [value for name, value in values.items() if value is not None and name not in ("W", "R", "B")]
    expected = run_module(import_with_converters(model), given_values)
    swapped = {
        name: value.transpose(1, 0, 2) if value is not None and name in ("X", "initial_h", "initial_c") else value
        for name, value in values.items()
    }
    model = node_model(cell, swapped, OUTPUTS[cell], {**attributes, "layout": 1}, ("W", "R", "B"))
    found = run_module(import_with_converters(model), [value.swapaxes(0, 1) for value in given_values])
    np.testing.assert_allclose(found[0], expected[0].transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for left, right in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(left, right.transpose(1, 0, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-6)])
def test_other_precisions(dtype, tolerance):
    values = tensors("LSTM", 6, 2, 5, 18, 1, optional=("B", "P"))
    reference = node_model("LSTM", values, OUTPUTS["LSTM"], {"hidden_size": 18}, ("W", "R", "B", "P"))
    expected = run_module(import_with_converters(reference), [values["X"]])
    values = {name: None if value is None else value.astype(dtype) for name, value in values.items()}
    model = node_model("LSTM", values, OUTPUTS["LSTM"], {"hidden_size": 18}, ("W", "R", "B", "P"))
    for left, right in zip(run_module(import_with_converters(model), [values["X"]]), expected, strict=True):
        assert left.dtype == dtype
        np.testing.assert_allclose(left.astype("float64"), right.astype("float64"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("outputs", [["Y"], ["", "Y_h"], ["", "", "Y_c"], ["Y", "Y_h"]], ids=str)
def test_some_outputs(outputs):
    values = tensors("LSTM", 3, 2, 4, 5, 1)
    check_with_onnxruntime(node_model("LSTM", values, outputs, {"hidden_size": 5}, ("W", "R")), values)


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_no_sequences(cell):
    values = tensors(cell, 3, 0, 4, 5, 2, optional=("B", "sequence_lens", "initial_h"))
    attributes = {"hidden_size": 5, "direction": "bidirectional"}
    model = node_model(cell, values, OUTPUTS[cell], attributes, ("W", "R", "B"))
    found = tvm_ext.compile(model).run({name: values[name] for name in ("X", "sequence_lens", "initial_h")})
    shapes = [value.shape for value in found.values()]
    assert shapes == [(3, 2, 0, 5)] + [(2, 0, 5)] * (len(shapes) - 1)


def test_module_does_not_grow_with_time():
    """One function for all steps: 2000 steps are as few bindings as 2."""

    def module(steps):
        values = tensors("LSTM", steps, 1, 8, 16, 1, optional=("B",))
        return import_with_converters(node_model("LSTM", values, ["Y"], {"hidden_size": 16}, ("W", "R", "B")))

    def bindings(mod):
        return sum(len(block.bindings) for block in mod["main"].body.blocks)

    assert bindings(module(2000)) == bindings(module(2))


def test_constant_weights_are_laid_out_at_import():
    values = tensors("LSTM", 3, 2, 4, 20, 2, optional=("B", "P"))
    attributes = {"hidden_size": 20, "direction": "bidirectional"}
    mod = import_with_converters(node_model("LSTM", values, ["Y"], attributes, ("W", "R", "B", "P")))
    called = {
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.relax.Call) and hasattr(binding.value.op, "name")
    }
    assert called == {"relax.matmul", "relax.add", "relax.call_tir"}


def test_unknown_activation_is_refused():
    values = tensors("RNN", 2, 1, 3, 4, 1)
    model = node_model("RNN", values, ["Y"], {"hidden_size": 4, "activations": ["Swish"]})
    with pytest.raises(UnsupportedOperatorError, match=r"activation 'swish' is not supported"):
        import_with_converters(model)


def test_wrong_weight_shape_is_named():
    values = tensors("GRU", 2, 1, 3, 4, 1)
    values["W"] = values["W"][:, :-1]
    with pytest.raises(ModelError, match=r"input W has shape \(1, 11, 3\), \(1, 12, 3\) was"):
        import_with_converters(node_model("GRU", values, ["Y"], {"hidden_size": 4}))


@pytest.mark.parametrize("lengths", [[3, 2], [-1, 2]])
def test_lengths_beyond_the_input_are_refused(lengths):
    values = tensors("GRU", 2, 2, 3, 4, 1)
    values = {"X": values["X"], "W": values["W"], "R": values["R"], "B": None, "sl": np.array(lengths, "int32")}
    model = node_model("GRU", values, ["Y"], {"hidden_size": 4}, ("sl",))
    with pytest.raises(ModelError, match=r"sequence_lens \[.*\] are not all from 0 to the 2 steps of X"):
        import_with_converters(model)


def test_open_length_agrees_with_onnxruntime():
    values = tensors("RNN", 2, 1, 3, 4, 1)
    model = node_model("RNN", values, ["Y"], {"hidden_size": 4}, ("W", "R"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    compiled = tvm_ext.compile(model, dynamic={"time": (1, 9)})
    for length in (1, 2, 7, 9):
        fed = {"X": np.random.default_rng(length).standard_normal((length, 1, 3)).astype("float32")}
        (expected,) = run_onnxruntime(model, fed)
        np.testing.assert_allclose(compiled.run(fed)["Y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_quantised_layer_agrees_with_onnxruntime(direction, per_channel):
    """With one sequence the runtime rounds over the same range: results differ by rounding of ties only."""
    directions, hidden, size = DIRECTIONS[direction], 12, 10
    values = tensors("LSTM", 6, 1, size, hidden, directions, optional=("B", "initial_h", "initial_c", "P"))
    random = np.random.default_rng(1)
    shape = (directions, 4 * hidden) if per_channel else (directions,)
    limit = LARGEST_WEIGHT
    values["W"] = random.integers(-limit, limit + 1, (directions, size, 4 * hidden)).astype("int8")
    values["R"] = random.integers(-limit, limit + 1, (directions, hidden, 4 * hidden)).astype("int8")
    for name in ("W", "R"):
        values[f"{name}_scale"] = (random.random(shape) * 0.005 + 0.001).astype("float32")
        values[f"{name}_zero_point"] = np.zeros(shape, "int8")
    constants = tuple(name for name in values if name not in ("X", "initial_h", "initial_c"))
    attributes = {"hidden_size": hidden, "direction": direction}
    model = node_model("DynamicQuantizeLSTM", values, OUTPUTS["LSTM"], attributes, constants, "com.microsoft")
    check_with_onnxruntime(model, values, rtol=1e-3, atol=1e-3)
