"""What a layer alone loses: against the whole of its results, computed by another path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.vta.integer_reference import run_layer
from tests.vta.model.test_equalize import chain, rows, run
from tests.vta.model.test_offload import COSTS, Emitter
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.layer_error import layer_noise, lossy_layers
from tvm_ext.backends.vta.model.offload import offload
from tvm_ext.backends.vta.model.quantize import quantize_network
from tvm_ext.backends.vta.model.unfold import unfold_layer


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("unfolded", [False, True])
def test_noise_is_that_of_all_places(groups: int, unfolded: bool) -> None:
    rng = np.random.default_rng(groups)
    layers = chain(rng, 1.0, groups=groups)
    layers[2] = replace(layers[2], residual="r")
    if unfolded:
        layers[0] = unfold_layer(layers[0])
    x = rng.standard_normal((1, 8, 12, 12))
    tensors = run(layers, x)
    tensors["r"] = rng.standard_normal(tensors["c"].shape)
    tensors["c"] = tensors["c"] + tensors["r"]
    network = quantize_network(layers, rows(tensors))
    for integer in network.layers:
        integers = {name: network.integers(name, tensors[name]) for name in integer.layer.inputs}
        found = network.floats(integer.layer.name, run_layer(integer, integers))
        expected = tensors[integer.layer.name]
        whole = np.square(found - expected).sum() / np.square(expected).sum()
        noise = layer_noise(network, integer, tensors)
        assert noise == pytest.approx(whole, rel=0.35)  # of 256 places
    assert not lossy_layers(network, tensors, 0.5)
    assert len(lossy_layers(network, tensors, 1e-4)) == 3


def test_a_layer_that_loses_much_stays_on_the_cpu() -> None:
    """Unless it was asked for."""

    def body(e: Emitter, x: object) -> object:
        first = e.conv(x, 64)
        bad = e.conv(e.relu(first), 64)
        return e.relu(e.conv(e.relu(bad), 64))

    shape = (1, 64, 14, 14)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kept = offload(Emitter().module(shape, body), load_config("sim"), COSTS, {"x": x})
    assert {row.device for row in kept.partition.decisions} == {"vta"}
    strict = offload(Emitter().module(shape, body), load_config("sim"), COSTS, {"x": x}, largest_error=1e-3)
    assert {row.device for row in strict.partition.decisions} == {"cpu"}
    assert all("lose" in row.reason for row in strict.partition.decisions)
    layer = kept.graph.layers[1].name
    asked = offload(
        Emitter().module(shape, body), load_config("sim"), COSTS, {"x": x}, forced={layer: "vta"}, largest_error=1e-3
    )
    assert [row.device for row in asked.partition.decisions] == ["cpu", "vta", "cpu"]
