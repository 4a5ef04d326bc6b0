"""Profiles: what layers take adds up to what programs take."""

from __future__ import annotations

import numpy as np

from tests.vta.model.test_region import small_region
from tvm_ext.backends.vta.model.profile import packed_convolution_cycles, profile_regions
from tvm_ext.backends.vta.model.region import build_region
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_named

COSTS = costs_named("chisel")


def test_layers_add_up() -> None:
    config, network, _ = small_region()
    region = build_region(network.layers, ["x"], ["p", "b"], config, COSTS)
    found = profile_regions([region, region], COSTS)
    assert found.cycles == sum(row.cycles for row in found.layers) == sum(found.region_cycles)
    image = region.program.image
    moved = Simulator(config).run(region.program.words, image.data, image.base).bytes_moved
    assert 2 * moved["out"] == sum(row.bytes_written for row in found.layers)
    assert 2 * sum(moved[name] for name in ("uop", "wgt", "inp", "acc")) == sum(row.bytes_read for row in found.layers)
    for row in found.layers:
        assert 0 < row.occupancy <= row.roofline <= 1
    assert [row.region for row in found.layers] == [0, 0, 0, 1, 1, 1]
    text = str(found).splitlines()
    assert len(text) == 1 + len(found.layers) + 1
    assert np.array_equal([row.layer for row in found.layers[:3]], ["a", "p", "b"])


def test_packed_convolutions_are_those_that_fill_blocks() -> None:
    config, network, _ = small_region()
    region = build_region(network.layers, ["x"], ["p", "b"], config, COSTS)
    found = profile_regions([region], COSTS)
    assert packed_convolution_cycles(found, region.layers, 16) == 0
    by_four = packed_convolution_cycles(found, region.layers, 4)
    assert by_four == found.layers[0].cycles + found.layers[2].cycles
