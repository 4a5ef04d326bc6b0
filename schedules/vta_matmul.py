"""Matrix products on packed data for VTA: data (N/B, K/k, B, k) times weights (M/m, K/k, m, k) transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.vta_common import Axis, Tiling, choose_tiling, extents_of, find_blocks, schedule_product
from tvm_ext.vta.config import VTAConfig, config_of_target

ORDERS = {"co n": (1, 0), "n co": (0, 1)}
"""Orders of the loops over tiles, outermost first, by axis of the result."""


@dataclass(frozen=True)
class MatmulKnobs:
    """Tiles of the rows, of the output blocks and of the input blocks, and virtual threads over output blocks."""

    tile_b: int = 1
    tile_co: int = 1
    tile_ci: int = 1
    oc_nthread: int = 1


class Matmul:
    """Schedule a matrix product with the sums and element-wise blocks after it.

    Parameters
    ----------
    order : str
        A key of :data:`ORDERS`.
    knobs : MatmulKnobs, optional
        Chosen by a rough count of cycles where left out.
    """

    def __init__(self, order: str = "co n", knobs: MatmulKnobs | None = None) -> None:
        self.order = ORDERS[order]
        self.knobs = knobs
        self.name = f"vta.matmul ({order})"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is a matrix product on packed data that fits the memories of the target."""
        schedule = new_schedule(func, tunable)
        blocks = find_blocks(schedule, summed=1)
        if blocks is None:
            return None
        extents = extents_of(schedule, blocks.anchor)
        if len(extents) != 6:
            return None
        knobs = self.knobs or choose_knobs(extents, config_of_target(target))
        if knobs is None:
            return None
        axes = [Axis(extents[0], knobs.tile_b), Axis(extents[1], knobs.tile_co, knobs.oc_nthread)]
        schedule_product(schedule, blocks, axes, self.order, knobs.tile_ci)
        return schedule


def choose_knobs(extents: Sequence[int], config: VTAConfig) -> MatmulKnobs | None:
    """Choose tiles for a product of these axes: (n, m, b, o, k, i); None if nothing fits."""
    rows, channels, in_blocks = extents[0], extents[1], extents[4]
    depths = {"inp": config.depths["inp"] - 1, "wgt": config.depths["wgt"] - channels, "acc": config.depths["acc"]}

    def sizes(tiling: Tiling) -> dict[str, int]:
        n, co = tiling.tile
        return {"inp": n * tiling.reduction, "wgt": co * tiling.reduction, "acc": n * co}

    def cost(tiling: Tiling) -> float:
        n, co = tiling.tile
        tiles = rows * channels // (n * co)
        turns = tiles * in_blocks // tiling.reduction
        size = sizes(tiling)
        weight_turns = turns if tiling.reduction < in_blocks else channels // co
        loaded = turns * (25 + size["inp"] * config.inp_bytes / 8)
        loaded += weight_turns * (25 + size["wgt"] * config.wgt_bytes / 8)
        steps = turns * n * co * tiling.reduction
        return max(steps + 10 * turns + 40 * tiles, loaded) + 0.2 * min(steps, loaded)

    found = choose_tiling((rows, channels), in_blocks, sizes, depths, cost)
    if found is None:
        return None
    return MatmulKnobs(tile_b=found.tile[0], tile_co=found.tile[1], tile_ci=found.reduction)
