"""Tiles: the estimate against the cycle model, and the choice against the tiles it had to choose from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.backends.vta.codegen.compute import Epilogue, convolution
from tvm_ext.backends.vta.codegen.estimate import count_cycles
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.rules import conv2d_knobs, conv2d_rule
from tvm_ext.backends.vta.codegen.tile_choice import Tile, candidates, choose_tile, estimate_cycles, fit_tile
from tvm_ext.backends.vta.codegen.unrolling import plan_program
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.errors import VTAProgramError

COSTS = costs_named("chisel")


def cycles(conv: Conv2d, config: VTAConfig, tile: Tile, with_residual: bool) -> int:
    func = convolution(config, conv, Epilogue(8, 0, 127, "weights", with_residual, first_shift=2))
    schedule = conv2d_rule().schedule(func, conv2d_knobs(tile))
    assert schedule is not None
    return count_cycles(plan_program(schedule.mod["main"], config), config, COSTS)


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("channels", "size", "stride"), [(4, 28, 1), (8, 14, 1), (4, 28, 2)])
def test_estimates_are_near_the_cycle_model(channels: int, size: int, stride: int, with_residual: bool) -> None:
    config, conv = VTAConfig(), Conv2d(1, channels, channels, size, size, 3, stride, 1)
    tile = choose_tile(conv, config, COSTS, True, with_residual)
    fitted = fit_tile(config, conv, tile, True, with_residual)
    estimate = estimate_cycles(conv, fitted, config, COSTS, with_residual)
    measured = cycles(conv, config, tile, with_residual)
    assert abs(estimate - measured) < 0.05 * measured
    assert conv.steps > 0.7 * measured


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
    chosen = fit_tile(config, conv, tile, True, residual)
    least = estimate_cycles(conv, chosen, config, COSTS, residual)
    for other in candidates(conv):
        try:
            fitted = fit_tile(config, conv, other, True, residual)
        except VTAProgramError:
            continue
        assert estimate_cycles(conv, fitted, config, COSTS, residual) >= least
    assert conv.steps <= least


def test_extents_cut_axes_into_equal_parts() -> None:
    found = {tile.rows for tile in candidates(Conv2d(1, 1, 1, 14, 1, 1))}
    assert found == {int(np.ceil(14 / parts)) for parts in range(1, 15)}


def test_what_fits_no_memory_is_refused() -> None:
    with pytest.raises(VTAProgramError, match=r"no tile of Conv2d.* fits the memories of VTA 1x16"):
        choose_tile(Conv2d(1, 1, 1, 90, 90, 90), VTAConfig(), COSTS)


def test_groups_of_one_output_share_tiles() -> None:
    """An average over a whole picture: with one output a tile every place of the window is an instruction."""
    config, conv = VTAConfig(), Conv2d(1, 32, 32, 7, 7, 7, 1, 0, 32)
    tile = choose_tile(conv, config, COSTS)
    assert tile.groups > 2
    assert cycles(conv, config, tile, False) < 0.95 * cycles(conv, config, Tile(1, 1, 1, 1), False)


def test_tiles_that_do_not_fit_are_refused_by_memory() -> None:
    conv = Conv2d(1, 2, 2, 60, 60, 3, 1, 1)
    for tile, memory in ((Tile(60, 60, 1, 1), "inp"), (Tile(40, 45, 2, 1), "acc")):
        with pytest.raises(VTAProgramError, match=rf"elements does not fit the {memory} memory of \d+.*make Tile"):
            fit_tile(VTAConfig(), conv, tile)
