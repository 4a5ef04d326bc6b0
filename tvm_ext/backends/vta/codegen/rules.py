"""Schedule rules for VTA with their default knobs: those with the fewest cycles by an estimate."""

from __future__ import annotations

import tvm
from tvm.tirx import PrimFunc

from tvm_ext.backends.vta.codegen.compute import geometry_of
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.tile_choice import Tile, choose_tile, pooling_tile
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.backends.vta.timing.costs import costs_of_config
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.rule import ScheduleRule
from tvm_ext.schedules.vta import conv2d, matmul, pooling

MATMUL_AXES = 4


def conv2d_rule(order: str = "co n y x", knobs: conv2d.ConvKnobs | None = None) -> conv2d.Conv2d:
    """Make the rule of convolutions."""
    return conv2d.Conv2d(order, knobs, _conv2d_knobs)


def matmul_rule(order: str = "co n", knobs: matmul.MatmulKnobs | None = None) -> matmul.Matmul:
    """Make the rule of matrix products."""
    return matmul.Matmul(order, knobs, _matmul_knobs)


def max_pool2d_rule(knobs: pooling.PoolingKnobs | None = None) -> pooling.MaxPool2d:
    """Make the rule of maxima over windows."""
    return pooling.MaxPool2d(knobs, _pooling_knobs)


def sketch_rules() -> list[ScheduleRule]:
    """Make a rule for each order of the loops over tiles, for tuning."""
    return [*map(conv2d_rule, conv2d.SKETCHES), *map(matmul_rule, matmul.ORDERS)]


def conv2d_knobs(tile: Tile) -> conv2d.ConvKnobs:
    """Return the knobs that give a tile."""
    return conv2d.ConvKnobs(
        tile_co=tile.out_blocks, tile_h=tile.rows, tile_w=tile.columns, tile_ci=tile.in_blocks, tile_g=tile.groups
    )


def pooling_knobs(tile: Tile) -> pooling.PoolingKnobs:
    """Return the knobs that give a tile."""
    return pooling.PoolingKnobs(tile.rows, tile.columns)


def _conv2d_knobs(func: PrimFunc, target: tvm.target.Target) -> conv2d.ConvKnobs | None:
    conv = geometry_of(func)
    tile = None if conv is None else _tile(func, conv, target)
    return None if tile is None else conv2d_knobs(tile)


def _matmul_knobs(func: PrimFunc, target: tvm.target.Target) -> matmul.MatmulKnobs | None:
    """Choose those of a convolution of a window of one place: rows of the product are columns of an image."""
    shapes = [[int(extent) for extent in func.params[number].shape] for number in (0, -1)]
    if {len(shape) for shape in shapes} != {MATMUL_AXES}:
        return None
    (rows, in_blocks, *_), (_, out_blocks, *_) = shapes
    tile = _tile(func, Conv2d(1, in_blocks, out_blocks, 1, rows, 1), target)
    if tile is None:
        return None
    return matmul.MatmulKnobs(tile_b=tile.columns, tile_co=tile.out_blocks, tile_ci=tile.in_blocks)


def _tile(func: PrimFunc, conv: Conv2d, target: tvm.target.Target) -> Tile | None:
    config, names = config_of_target(target), {str(parameter.name) for parameter in func.params}
    try:
        return choose_tile(conv, config, costs_of_config(config), "bias" not in names, "residual" in names)
    except VTAProgramError:
        return None


def _pooling_knobs(func: PrimFunc, target: tvm.target.Target) -> pooling.PoolingKnobs | None:
    pool = geometry_of(func)
    try:
        return None if pool is None else pooling_knobs(pooling_tile(config_of_target(target), pool))
    except VTAProgramError:
        return None
