"""Random models, random layers of them on VTA: compiled they are near the floats, and exactly what was simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.vta.model.test_offload import COSTS, Emitter, run
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.forms import from_form
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.relax_layers import bindings_of, read_graph

OPERATORS = ("conv", "pointwise", "depthwise", "transposed", "pool", "sigmoid", "relu", "add", "average")


def random_body(choices: list[tuple[str, int, int]], outputs: int) -> Any:
    """A graph whose nodes read any tensor before them; the last tensors are its results."""

    def body(e: Emitter, x: Any) -> Any:
        tensors = [x]
        for operator, first, second in choices:
            data, other = tensors[first % len(tensors)], tensors[second % len(tensors)]
            channels, size = int(data.ty.shape[1]), int(data.ty.shape[2])
            if operator == "conv":
                tensors.append(e.conv(data, 8 + 8 * (second % 3), min(3, size), 1 + second % 2))
            elif operator == "pointwise":
                tensors.append(e.relu(e.conv(data, 24, 1)))
            elif operator == "depthwise":
                tensors.append(e.conv(data, channels, min(3, size), groups=channels))
            elif operator == "transposed" and size < 8:
                weights = e.constant(channels, 12, 2, 2)
                tensors.append(e.emit(relax.op.nn.conv2d_transpose(data, weights, strides=2)))
            elif operator == "pool" and size > 2:
                tensors.append(e.emit(relax.op.nn.max_pool2d(e.relu(data), (3, 3), (2, 2), (1, 1, 1, 1))))
            elif operator == "sigmoid":
                tensors.append(e.emit(relax.op.sigmoid(data)))
            elif operator == "add" and [int(n) for n in data.ty.shape] == [int(n) for n in other.ty.shape]:
                tensors.append(e.emit(relax.op.add(data, other)))
            elif operator == "average" and size > 1:
                tensors.append(e.emit(relax.op.nn.avg_pool2d(data, (2, 2), (2, 2))))
            else:
                tensors.append(e.relu(data))
        return tensors[-outputs:]

    return body


@st.composite
def models(draw: st.DrawFn) -> tuple[Any, str, int, float]:
    choice = st.tuples(st.sampled_from(OPERATORS), st.integers(0, 9), st.integers(0, 9))
    choices = draw(st.lists(choice, min_size=1, max_size=7))
    outputs = draw(st.integers(1, min(3, len(choices))))
    config = draw(st.sampled_from(["sim", "sim_2x16"]))
    return random_body(choices, outputs), config, draw(st.integers(0, 99)), draw(st.sampled_from([0.5, 1.0]))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models())
def test_random_models(drawn: tuple[Any, str, int, float]) -> None:
    body, config, seed, share = drawn
    rng = np.random.default_rng(seed)
    shape = (1 + seed % 2, 3 + 13 * (seed % 3 == 0), 6, 6)
    mod = Emitter(seed).module(shape, body)
    layers = read_graph(prepare(mod)[0]["main"], load_config(config).batch).layers
    forced = {layer.name: "vta" if rng.random() < share else "cpu" for layer in layers}
    x = rng.standard_normal(shape).astype(np.float32)
    model = offload(mod, load_config(config), COSTS, {"x": x}, forced=forced)
    compiled = run(model.mod, x)
    outputs, tensors = model.observed.run({"x": x})
    for value, floats in zip(compiled, outputs, strict=True):
        assert np.square(value - floats).mean() <= 0.05 * np.square(floats).mean() + 1e-9
    integers = model.run_regions(tensors)
    main = model.floats["main"]
    (result,) = (binding.value for binding in bindings_of(main) if binding.var.same_as(main.body.body))
    results = [getattr(field, "name", "") for field in result.fields]
    if len(model.regions) == 1:  # inputs of later ones come from other floats
        for name, value in zip(results, compiled, strict=True):
            if name in integers:
                exact = model.network.floats(name, from_form(integers[name], value.shape))
                np.testing.assert_allclose(value, exact, rtol=1e-6)
