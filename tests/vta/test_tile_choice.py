"""Tiles: the estimate against the cycle model, and the choice against the tiles it had to choose from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig, load_config
from tvm_ext.vta.costs import costs_named
from tvm_ext.vta.cycles import time_program
from tvm_ext.vta.memory import MemoryImage
from tvm_ext.vta.operators import Requantize, Residual, conv2d
from tvm_ext.vta.program import ProgramBuilder
from tvm_ext.vta.tile_choice import candidates, choose_tile, estimate_cycles
from tvm_ext.vta.tiles import Conv2d, Tile, TileSlots

COSTS = costs_named("chisel")


def cycles(conv: Conv2d, config: VTAConfig, tile: Tile, with_residual: bool) -> int:
    image = MemoryImage()
    sizes = {
        "data": conv.batches * conv.in_blocks * conv.height * conv.width * config.inp_bytes,
        "weights": conv.out_blocks * conv.group_in * conv.window * config.wgt_bytes,
        "bias": conv.out_blocks * config.wgt_bytes,
        "bias inputs": config.inp_bytes,
        "identity": config.wgt_bytes,
        "out": conv.batches * conv.out_blocks * conv.out_height * conv.out_width * config.out_bytes,
    }
    for name, size in sizes.items():
        image.allocate(name, size)
    image.allocate("residual", sizes["out"])
    builder = ProgramBuilder(config, image)
    residual = Residual("residual", "identity", 2) if with_residual else None
    conv2d(
        builder, conv, tile, Requantize(8, 0, 127), "data", "weights", "bias", "out", "bias inputs", residual=residual
    )
    return time_program(builder.build().instructions, config, COSTS).cycles


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("channels", "size", "stride"), [(4, 28, 1), (8, 14, 1), (4, 28, 2)])
def test_estimates_are_near_the_cycle_model(channels: int, size: int, stride: int, with_residual: bool) -> None:
    config, conv = VTAConfig(), Conv2d(1, channels, channels, size, size, 3, stride, 1)
    tile = choose_tile(conv, config, COSTS, True, with_residual)
    slots = TileSlots(config, conv, tile, 2, True, with_residual)
    estimate = estimate_cycles(conv, slots, config, COSTS, with_residual)
    measured = cycles(conv, config, tile, with_residual)
    assert abs(estimate - measured) < 0.03 * measured
    assert conv.steps > 0.75 * measured


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3),
    st.integers(1, 2), st.booleans(), st.sampled_from(["sim", "sim_4x8"]),
)  # fmt: skip
def test_no_other_tile_has_a_lower_estimate(
    inputs: int, outputs: int, height: int, width: int, kernel: int, stride: int, residual: bool, name: str
) -> None:
    if kernel > min(height, width):
        return
    config, conv = load_config(name), Conv2d(1, inputs, outputs, height, width, kernel, stride, kernel // 2)
    tile = choose_tile(conv, config, COSTS, True, residual)
    chosen = TileSlots(config, conv, tile, 2, True, residual)
    least = estimate_cycles(conv, chosen, config, COSTS, residual)
    for other in candidates(conv):
        try:
            slots = TileSlots(config, conv, other, 2, True, residual)
        except VTAProgramError:
            continue
        assert estimate_cycles(conv, slots, config, COSTS, residual) >= least
    assert conv.steps <= least


def test_extents_cut_axes_into_equal_parts() -> None:
    found = {tile.rows for tile in candidates(Conv2d(1, 1, 1, 14, 1, 1))}
    assert found == {int(np.ceil(14 / parts)) for parts in range(1, 15)}


def test_what_fits_no_memory_is_refused() -> None:
    with pytest.raises(VTAProgramError, match=r"no tile of Conv2d.* fits the memories of VTA 1x16"):
        choose_tile(Conv2d(1, 1, 1, 90, 90, 90), VTAConfig(), COSTS)
