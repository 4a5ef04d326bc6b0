"""What integers make of the outputs: predicted in floats, against the compiled model; and layers left to the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.vta.integer_reference import run_layer
from tests.vta.model.test_equalize import chain, rows
from tests.vta.model.test_equalize import run as run_chain
from tests.vta.model.test_offload import COSTS, Emitter, run
from tests.vta.model.test_partition import CONFIG, Part, models
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model import output_error
from tvm_ext.backends.vta.model.calibrate import ObservedModel
from tvm_ext.backends.vta.model.cut import Penalties, conversion_seconds, packed_tensors
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.layers import IntegerLayer, Layer
from tvm_ext.backends.vta.model.offload import offload
from tvm_ext.backends.vta.model.output_error import OutputError, convolve, layer_error
from tvm_ext.backends.vta.model.partition import plan_partition
from tvm_ext.backends.vta.model.quantize import quantize_network


def integer_layer(**fields: Any) -> tuple[Layer, np.ndarray]:
    rng = np.random.default_rng(1)
    groups = fields.get("groups", 1)
    transposed = fields.get("kind") == "conv2d_transpose"
    kernel, stride, pad = (fields.get(key, default) for key, default in (("kernel", 3), ("stride", 1), ("padding", 0)))
    down = (kernel, stride, pad)
    extents = []
    for length, (size, step, edge) in zip((9, 7), (down, fields.get("across") or down), strict=True):
        after = (length - 1) * step - 2 * edge + size + fields.get("output_padding", 0)
        extents.append(after if transposed else (length + 2 * edge - size) // step + 1)
    width = (fields.get("across") or down)[0]
    weights = rng.integers(-9, 9, (8, 8 // groups, kernel, width)).astype(np.float32)
    data = rng.integers(-9, 9, (2, 8, 9, 7)).astype(np.float32)
    base = Layer(
        "y", "conv2d", "x", data.shape, (2, 8, *extents), kernel, weights=weights, bias=np.zeros(8, np.float32)
    )
    return replace(base, **fields), data


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stride": 2, "padding": 1, "groups": 2},
        {"groups": 8, "across": (1, 1, 0), "kernel": 3, "padding": 2},
        {"kind": "conv2d_transpose", "stride": 2, "padding": 1, "output_padding": 1, "kernel": 4},
        {"kind": "conv2d_transpose", "stride": 2, "kernel": 2, "groups": 4},
        {"kind": "conv2d_transpose", "stride": 2, "padding": 1, "kernel": 3, "across": (5, 3, 2)},
    ],
)
def test_sums(fields: dict[str, Any]) -> None:
    """Against the reference of the integer layers."""
    layer, data = integer_layer(**fields)
    taps = layer.weights.astype(np.int8)
    integer = IntegerLayer(layer, taps, np.zeros(8, np.int32), 6)
    found = convolve(layer, data, layer.weights)
    expected = run_layer(integer, {"x": data.astype(np.int8)})
    np.testing.assert_array_equal(np.clip(found.astype(np.int64) >> 6, -128, 127), expected)


@pytest.mark.parametrize("groups", [1, 4])
def test_the_error_of_a_layer(groups: int) -> None:
    """About what the layer in integers gives of exact data, less what it should."""
    rng = np.random.default_rng(groups)
    layers = chain(rng, 1.0, high=3.0, groups=groups)
    tensors = run_chain(layers, rng.standard_normal((1, 8, 12, 12)))
    network = quantize_network(layers, rows(tensors))
    for integer in network.layers:
        name = integer.layer.name
        exact = {integer.layer.data: network.integers(integer.layer.data, tensors[integer.layer.data])}
        given_by = {integer.layer.data: network.floats(integer.layer.data, exact[integer.layer.data])}
        right = run_chain([replace(integer.layer, data="x")], given_by[integer.layer.data])[name]
        wanted = network.floats(name, run_layer(integer, exact)) - right
        found = layer_error(network, integer, {**given_by, name: right})
        assert np.square(found - wanted).mean() < 0.1 * np.square(wanted).mean()


def test_added_errors_reach_the_outputs() -> None:
    """Of a parameter, a tensor inside, and one that leaves the model as well."""
    kept: dict[str, Any] = {}

    def body(e: Emitter, x: Any) -> list[Any]:
        kept.update(x=x, inner=e.emit(relax.op.multiply(x, relax.const(2.0))))
        kept["outer"] = e.emit(relax.op.add(kept["inner"], relax.const(1.0)))
        return [kept["outer"], e.emit(relax.op.multiply(kept["outer"], relax.const(3.0)))]

    mod = Emitter().module((2, 3), body)
    variables = {binding.var.name: binding.var for binding in mod["main"].body.blocks[0].bindings}
    tensors = {"x": mod["main"].params[0]} | {name: variables[kept[name].name] for name in ("inner", "outer")}
    model = ObservedModel(mod, tensors, disturbed=True)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    errors = {name: np.full((2, 3), value, np.float32) for name, value in (("x", 0.5), ("inner", 4.0), ("outer", 16.0))}
    for chosen in ({}, {"x"}, {"inner"}, {"outer"}, {"x", "outer"}):
        added = {name: errors[name] for name in chosen}
        outputs, _ = model.run({"x": x}, added)
        each = {name: float(added[name][0, 0]) if name in added else 0.0 for name in errors}
        outer = (x + each["x"]) * 2 + each["inner"] + 1 + each["outer"]
        np.testing.assert_array_equal(outputs[0], outer)
        np.testing.assert_array_equal(outputs[1], outer * 3)
    outputs, seen = model.run({"x": x})
    np.testing.assert_array_equal(outputs[0], x * 2 + 1)
    np.testing.assert_array_equal(seen["inner"], x * 2)


@settings(max_examples=60, deadline=None)
@given(models(), st.lists(st.sampled_from([0.0, 1e-6, 1e-4]), min_size=14, max_size=14))
def test_no_other_assignment_has_a_smaller_sum(
    drawn: tuple[list[Part], list[str], HostSpeed], drawn_errors: list
) -> None:
    """Of seconds and penalties; a layer without a penalty stays on the CPU."""
    parts, outputs, speed = drawn
    names = [part.name for part in parts]
    known = [part.name for part in parts if part.layer is not None][:-1]
    layers = {name: drawn_errors[at] for at, name in enumerate(names) if name in known}
    tensors = dict(zip(["x", *names], drawn_errors[6:], strict=False))
    penalties = Penalties(2.0, layers, tensors)
    partition = plan_partition(parts, outputs, CONFIG, COSTS, speed, penalties=penalties)
    times = {row.layer: (row.vta_seconds, row.cpu_seconds) for row in partition.decisions}

    def total(on_vta: set[str]) -> float:
        seconds = sum(vta if name in on_vta else cpu for name, (vta, cpu) in times.items())
        errors = sum(layers[name] for name in on_vta) + sum(tensors[name] for name in packed_tensors(parts, on_vta))
        return seconds + conversion_seconds(parts, outputs, on_vta, speed) + 2.0 * errors

    assert partition.on_vta <= set(known)
    for choice in itertools.product([False, True], repeat=len(known)):
        chosen = {name for name, on_vta in zip(known, choice, strict=True) if on_vta}
        assert total(set(partition.on_vta)) <= total(chosen) + 1e-8


@pytest.mark.slow
def test_a_layer_whose_error_grows_stays_on_the_cpu() -> None:
    """One that is subtracted from itself nearly; another, as large, stays on VTA, and the outputs are near."""

    def body(e: Emitter, x: Any) -> Any:
        first = e.relu(e.conv(x, 64))
        delicate = e.conv(first, 64)
        offset = e.emit(relax.op.mean(delicate, [2, 3], keepdims=True))
        amplified = e.emit(relax.op.multiply(e.emit(relax.op.subtract(delicate, offset)), relax.const(20.0)))
        sharp = e.emit(relax.op.tanh(amplified))
        return e.emit(relax.op.multiply(sharp, e.relu(e.conv(first, 64))))

    shape = (1, 32, 14, 14)
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((4, *shape)).astype(np.float32)
    mod = Emitter().module(shape, body)
    fast = offload(mod, load_config("sim"), COSTS, {"x": samples}, largest_output_error=1.0)
    near = offload(mod, load_config("sim"), COSTS, {"x": samples})
    assert len(fast.partition.on_vta) > len(near.partition.on_vta) > 0
    held_out = rng.standard_normal(shape).astype(np.float32)
    expected = near.observed.run({"x": held_out})[0][0]
    for model in (fast, near):
        found = run(model.mod, held_out)[0]
        error = np.sqrt(np.square(found - expected).sum() / np.square(expected).sum())
        # A tensor's conversion is taken to be seen by all that read it, also where layers on the CPU see it exactly.
        assert error < 1.4 * model.output_error
        assert error > 0.6 * model.output_error or model is near
    assert error < 0.05 < fast.output_error
    assert any("it would add" in row.reason for row in near.partition.decisions)
    assert "% of their size on 4 calibration inputs, and with 95 % confidence by less than" in near.notes[1]
    assert near.decisions()["output_error"] == near.output_error
    assert near.decisions()["output_error_bound"] == near.output_error_bound > near.output_error
    asked = dict.fromkeys(fast.partition.on_vta, "vta")
    forced = offload(mod, load_config("sim"), COSTS, {"x": samples}, forced=asked)
    assert "more than 5%, by layers that were put on VTA by name" in forced.notes[1]


class _Recorded:
    """A model whose one output is a step of the sum of its input and the error added to it."""

    def run(self, inputs: Any, errors: Any = None) -> Any:
        x = inputs["x"] + (errors or {}).get("x", 0)
        return [np.append(x, np.where(x > 1, 3.0, 0.0))], {"x": inputs["x"]}


@pytest.mark.parametrize(("margin", "lost"), [(0.2, False), (0.08, False), (0.005, True), (-0.005, True)])
def test_answers_that_hang_by_a_thread_are_found(monkeypatch: pytest.MonkeyPatch, margin: float, lost: bool) -> None:
    """Also those that only errors of the other sign change."""
    errors = OutputError(_Recorded(), [{"x": np.full(4, 1 + margin)}])  # type: ignore[arg-type]
    monkeypatch.setattr(output_error, "network_errors", lambda network, tensors: {"x": np.full(4, 0.01)})
    found = errors.together([None])[0] ** 0.5  # type: ignore[list-item]
    assert found > 0.5 if lost else found < 0.012
