"""From the geometry of a layer to the plan of its program: the function, its schedule, and what that takes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from tvm_ext.backends.vta.codegen import compute
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.estimate import count_cycles
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.result_order import ResultOrder
from tvm_ext.backends.vta.codegen.rules import conv2d_knobs, pooling_knobs
from tvm_ext.backends.vta.codegen.tile_choice import best_tiles, pooling_tile
from tvm_ext.backends.vta.codegen.tuned import TunedLayer, layer_key
from tvm_ext.backends.vta.codegen.unrolling import Plan, plan_program
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.vta.conv2d import Conv2d as ConvolutionRule
from tvm_ext.schedules.vta.pooling import MaxPool2d

# Of the tiles with the best estimates, so many that fit are counted by the cycle model.
COUNTED = 2

REORDERED = 4
"""As many where the result has an order of its own, which the estimate does not know."""


class Plans:
    """Gives plans of layers.

    Parameters
    ----------
    config : VTAConfig
    costs : CycleCosts
    tuned : mapping, optional
        Tuned schedules by :func:`.tuned.layer_key`.

    Attributes
    ----------
    taken : Counter
        How many layers were planned with each of them.
    """

    def __init__(self, config: VTAConfig, costs: CycleCosts, tuned: Mapping[str, TunedLayer] | None = None) -> None:
        self.config, self.costs = config, costs
        self.tuned = tuned or {}
        self.taken: Counter[str] = Counter()

    def only(self, keys: Collection[str]) -> Plans:
        """Give plans that know these tuned schedules only, and have planned nothing."""
        return Plans(self.config, self.costs, {key: layer for key, layer in self.tuned.items() if key in keys})

    def plan(self, conv: Conv2d, epilogue: Epilogue | None) -> Plan:
        """Plan a layer; without an epilogue it is a maximum over windows.

        Raises
        ------
        VTAProgramError
            If it does not fit the memories.
        """
        default = default_plan(self.config, self.costs, conv, epilogue)
        if epilogue is None or not self.tuned:
            return default
        key = layer_key(self.config, self.costs, conv, epilogue)
        known = self.tuned.get(key)
        if known is None:
            return default
        try:
            plan = tuned_plan(self.config, conv, epilogue, known)
        except VTAProgramError:
            return default
        found = min((default, plan), key=lambda plan: count_cycles(plan, self.config, self.costs))
        if found is plan:
            self.taken[key] += 1
        return found


def layer_function(config: VTAConfig, conv: Conv2d, epilogue: Epilogue | None) -> tirx.PrimFunc:
    """Write the function of a layer."""
    return compute.max_pool2d(config, conv) if epilogue is None else compute.convolution(config, conv, epilogue)


@lru_cache(maxsize=64)
def default_plan(
    config: VTAConfig, costs: CycleCosts, conv: Conv2d, epilogue: Epilogue | None, order: ResultOrder | None = None
) -> Plan:
    """Plan a layer with the schedule that is chosen for it without tuning.

    Of the tiles with the best estimates the cycle model counts a few; a tile whose places leave no room is passed over.
    ``order`` is that of the result in memory, if it is another than that of blocks.

    Raises
    ------
    VTAProgramError
        If it does not fit the memories.
    """
    if epilogue is None:
        tile = pooling_tile(config, conv)  # before the function is written, which is long for a large window
        func = layer_function(config, conv, None)
        return _planned(MaxPool2d().schedule(func, pooling_knobs(tile)), config)
    tiles = best_tiles(conv, config, costs, epilogue.bias == "weights", epilogue.residual)
    func = layer_function(config, conv, epilogue)
    functions = (
        [func] if order is None else [order.apply(func, accumulators=True), order.apply(func, accumulators=False)]
    )
    plans: list[Plan] = []
    problem: VTAProgramError | None = None
    for func, tile in itertools.product(functions, tiles):
        try:
            plans.append(_planned(ConvolutionRule().schedule(func, conv2d_knobs(tile)), config))
        except VTAProgramError as error:
            problem = problem or error
        except ScheduleError as error:
            if order is None:
                raise
            # A tile may cut through a part of an axis, so that the result of a tile is no box in its order.
            problem = problem or VTAProgramError(f"tile {tile} does not fit the order of the result: {error}")
        if len(plans) == (COUNTED if order is None else REORDERED):
            break
    if not plans:
        raise problem or VTAProgramError(f"no schedule of {conv} fits the memories of VTA {config.name}")
    return min(plans, key=lambda plan: count_cycles(plan, config, costs)) if len(plans) > 1 else plans[0]


@lru_cache(maxsize=64)
def tuned_plan(config: VTAConfig, conv: Conv2d, epilogue: Epilogue, layer: TunedLayer) -> Plan:
    """Plan a layer with a tuned schedule.

    Raises
    ------
    VTAProgramError
        If it does not fit the memories.
    """
    func = layer_function(config, conv, epilogue)
    return _planned(ConvolutionRule(layer.order).schedule(func, layer.knobs), config)


def _planned(schedule: Schedule | None, config: VTAConfig) -> Plan:
    if schedule is None:
        raise VTAProgramError("the function is nothing that the schedules for VTA take")
    return plan_program(schedule.mod["main"], config)
