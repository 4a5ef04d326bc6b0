"""VTA's cycle model as what measures schedules, and the layers of a model as what there is to tune.

Every order of the loops over tiles is a sketch; tiles and virtual threads are the sampling instructions of its trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule

from tvm_ext.backends.backend import Choices, CountedKernel, ValidityOracle
from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.description import describe
from tvm_ext.backends.vta.codegen.estimate import count_cycles
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.plans import default_plan, layer_function
from tvm_ext.backends.vta.codegen.resources import known_tiles, oracle_of
from tvm_ext.backends.vta.codegen.rules import sketch_rules
from tvm_ext.backends.vta.codegen.tuned import TunedLayer, layer_key, read_tuned, write_tuned
from tvm_ext.backends.vta.codegen.unrolling import plan_program
from tvm_ext.backends.vta.config import VTAConfig, config_of_target
from tvm_ext.backends.vta.model.offload import layers_on_vta
from tvm_ext.backends.vta.timing.costs import CycleCosts, costs_of_config
from tvm_ext.database.files import locked
from tvm_ext.errors import TuningError, VTAProgramError
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs

MOST_TURNS = 256
"""Turns of the loops over tiles up to which a candidate is counted: each waits for memory, more are never good."""


KNOBS_OF_TRACE = (
    ("tile_b",), ("tile_co", "oc_nthread"), ("tile_h", "h_nthread"), ("tile_w",), ("tile_ci",)
)  # fmt: skip
"""What the sampling instructions of a convolution without groups decide."""


class CycleMeasurer:
    """Counts the cycles of schedules; one that does not fit a memory is an invalid measurement, with its reason.

    Parameters
    ----------
    target : Target
        With a VTA tag.
    costs : CycleCosts, optional
        Those of the target's implementation if left out.
    """

    name = "its cycle model"
    unit = ""
    keeps_records = False

    def __init__(self, target: tvm.target.Target, costs: CycleCosts | None = None) -> None:
        self.target, self.config = target, config_of_target(target)
        self.costs = costs or costs_of_config(self.config)
        self.clock = self.costs.clock_mhz * 1e6

    def kernels(self, mod: tvm.IRModule) -> list[CountedKernel]:
        """List the layers of a model that are faster on VTA.

        No calibration data is needed, as cycles do not depend on values.

        Raises
        ------
        TuningError
            If there are none.
        """
        layers = Counter(layers_on_vta(mod, self.config, self.costs))
        if not layers:
            raise TuningError("no layer of the model is a convolution or product that VTA runs faster: nothing to tune")
        return [
            CountedKernel(
                layer_key(self.config, self.costs, conv, epilogue),
                _layer_name(conv, epilogue),
                calls,
                layer_function(self.config, conv, epilogue),
                count_cycles(default_plan(self.config, self.costs, conv, epilogue), self.config, self.costs),
            )
            for (conv, epilogue), calls in layers.items()
        ]

    def sketches(self, func: tvm.tirx.PrimFunc) -> dict[str, Schedule]:
        """Schedule a function in every order of its loops over tiles.

        Raises
        ------
        TuningError
            If no rule for VTA takes the function.
        """
        found = {rule.name: rule.apply(func, self.target, tunable=True) for rule in sketch_rules()}
        taken = {name: schedule for name, schedule in found.items() if schedule is not None}
        if not taken:
            raise TuningError("the function is no convolution or matrix product on packed data that fits this VTA")
        return taken

    def refusal(self, choices: Sequence[Any]) -> str:
        """Refuse candidates of more than :data:`MOST_TURNS`."""
        turns = prod(factor for factors in choices for factor in factors[:-1])
        return f"{turns} turns of the loops over tiles, more than {MOST_TURNS}" if turns > MOST_TURNS else ""

    def oracle(self, func: tvm.tirx.PrimFunc, choices: Choices) -> ValidityOracle | None:
        """Compare what tiles need with the memories, for convolutions whose need is known in closed form."""
        fitting = oracle_of(func, self.config, choices)
        if fitting is None:
            return None
        turns = [np.array([prod(factors[:-1]) for factors in rows], np.int64) for rows in choices]

        def oracle(vectors: NDArray[np.int64]) -> NDArray[np.bool_]:
            each = [table[vectors[:, knob]] for knob, table in enumerate(turns)]
            return fitting(vectors) & (np.prod(each, axis=0) <= MOST_TURNS)

        return oracle

    def describe(self, func: tvm.tirx.PrimFunc, sketch: str, choices: Choices) -> KernelDescription | None:
        """Describe the convolutions that :meth:`oracle` knows of."""
        known, order = known_tiles(func, choices), ORDERS.get(_order(sketch))
        if known is None or order is None:
            return None
        conv, epilogue, tiles = known
        orders = np.array(order)
        return describe(
            self.config,
            self.costs,
            conv,
            epilogue,
            lambda vectors: (tiles(vectors), np.tile(orders, (len(vectors), 1))),
            KNOBS_OF_TRACE,
        )

    def count(self, scheduled: tvm.tirx.PrimFunc) -> tuple[int | None, str]:
        """Count the cycles of a scheduled function; None and the reason if it cannot run."""
        return counted(scheduled, self.config, self.costs)

    def known(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Read from a folder the fewest cycles of each layer, and how many candidates were tried."""
        return {key: (layer.cycles, layer.trials) for key, layer in read_tuned(folder).items()}

    def keep(
        self, folder: Path, kernel: CountedKernel, sketch: str, schedule: Schedule, cycles: int, trials: int
    ) -> None:
        """Note a schedule, if it is better than what the folder has, and how many candidates were tried for it."""
        with locked(folder):
            tuned = read_tuned(folder)
            known = tuned.get(kernel.key)
            done = trials + (known.trials if known else 0)
            if known is None or cycles < known.cycles:
                tuned[kernel.key] = TunedLayer(*_knobs(sketch, schedule), cycles, done)
            else:
                tuned[kernel.key] = replace(known, trials=done)
            write_tuned(folder, tuned)


def counted(scheduled: tvm.tirx.PrimFunc, config: VTAConfig, costs: CycleCosts) -> tuple[int | None, str]:
    """Count the cycles of a scheduled function; None and the reason if it cannot run."""
    try:
        return count_cycles(plan_program(scheduled, config), config, costs), ""
    except VTAProgramError as error:
        return None, str(error)


def _layer_name(conv: Conv2d, epilogue: Epilogue) -> str:
    window = f"{conv.vertical.kernel}x{conv.horizontal.kernel}/{conv.stride}"
    groups = f" groups {conv.groups}" if conv.groups > 1 else ""
    extra = (" transposed" if conv.transposed else "") + (" + residual" if epilogue.residual else "")
    return f"{conv.in_blocks}->{conv.out_blocks} {conv.height}x{conv.width} {window}{groups}{extra}"


def _order(sketch: str) -> str:
    return sketch.partition("(")[2].rstrip(")")


def _knobs(sketch: str, schedule: Schedule) -> tuple[str, ConvKnobs]:
    """Read order and knobs of a tuned convolution off the decisions of its trace."""
    trace = schedule.trace
    rows = [[int(factor) for factor in trace.decisions[step]] for step in trace.insts if step in trace.decisions]
    batch, *group, (_, oc_nthread, tile_co), (_, h_nthread, tile_h), width, inputs = rows
    order = _order(sketch)
    tile_g = group[0][-1] if group else 1
    return order, ConvKnobs(batch[-1], tile_co, tile_h, width[-1], inputs[-1], oc_nthread, h_nthread, tile_g)
