"""Upstream's template of convolutions for VTA as a space: five tiles, virtual threads and the order of the loops.

It is the space of Rieber's table 5.1: the knobs of upstream's ``conv2d_packed`` template, of which tiles divide their
axes and threads are one or two, times four orders of the loops over tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule

from tvm_ext.backends.vta.codegen import compute
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.description import turns_by_axis
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.resources import Tiles, fits, turns
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.measurer import counted
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import TuningError
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs
from tvm_ext.schedules.vta.conv2d import Conv2d as ConvolutionRule
from tvm_ext.tuners.space import ConfigSpace, Knob

MOST_TURNS = 512
"""Turns of the loops over tiles that a program may have: each waits for memory, and takes some eight instructions."""

THREADS = (1, 2)
SHIFT = 8

Structure = tuple[tuple[int, ...], tuple[int, ...]]
"""Knobs, and the axes whose loops over tiles turn more than once, outermost first."""


@dataclass(frozen=True)
class ConvTemplate:
    """The space of a convolution, what of it works, and how many cycles that takes.

    Attributes
    ----------
    config : VTAConfig
    conv : Conv2d
        Without groups, not transposed.
    costs : CycleCosts
    epilogue : Epilogue
    most_turns : int
        Longer programs count as invalid.

    References
    ----------
    Rieber, "Deployment of Deep Neural Networks on Dedicated Hardware Accelerators", dissertation, Heidelberg
    University, 2023, section 5.1.
    """

    config: VTAConfig
    conv: Conv2d
    costs: CycleCosts
    epilogue: Epilogue = field(default_factory=lambda: Epilogue(SHIFT))
    most_turns: int = MOST_TURNS

    @cached_property
    def space(self) -> ConfigSpace:
        """The space, by upstream's names of knobs."""
        conv = self.conv
        return ConfigSpace(
            [
                Knob.split("tile_b", conv.batches, 2),
                Knob.split("tile_h", conv.out_height, 2),
                Knob.split("tile_w", conv.out_width, 2),
                Knob.split("tile_ci", conv.in_blocks, 2),
                Knob.split("tile_co", conv.out_blocks, 2),
                Knob("oc_nthread", THREADS),
                Knob("h_nthread", THREADS),
                Knob("order", tuple(ORDERS)),
            ]
        )

    @cached_property
    def _extents(self) -> list[NDArray[np.int64]]:
        """Of each knob but the order, the inner factor or number of each choice."""
        return [
            np.array([choice[-1] if isinstance(choice, tuple) else choice for choice in knob.choices])
            for knob in self.space.knobs[:-1]
        ]

    def tiles(self, vectors: NDArray[np.int64]) -> Tiles:
        """Give the tiles of vectors (n x knobs)."""
        b, h, w, ci, co, oc, rows = (choices[vectors[:, at]] for at, choices in enumerate(self._extents))
        return Tiles(b, co, h, w, ci, oc, rows)

    def works(self, vectors: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which vectors (n x knobs) can run (n), without scheduling any: the oracle of this space."""
        return fits(self.config, self.conv, self.epilogue, self.tiles(vectors), self.most_turns)

    def structures(self, vectors: NDArray[np.int64]) -> list[Structure]:
        """Give keys that are equal for configurations with the same program: loops of one turn have no order."""
        outer = turns_by_axis(self.conv, self.tiles(vectors))
        orders = list(ORDERS.values())
        return [
            (tuple(vector[:-1]), tuple(axis for axis in orders[vector[-1]] if counts[axis] > 1))
            for vector, counts in zip(vectors.tolist(), outer.tolist(), strict=True)
        ]

    def knobs(self, vector: NDArray[np.int64]) -> ConvKnobs:
        """Give the knobs of the schedule rule."""
        tiles = self.tiles(np.asarray(vector)[None])
        b, co, h, w, ci, oc, rows = (int(values[0]) for values in vars(tiles).values())
        return ConvKnobs(b, co, h, w, ci, oc, rows)

    def measure(self, vector: NDArray[np.int64]) -> tuple[int | None, str]:
        """Schedule a configuration, plan its program and count its cycles; None and the reason if it cannot run."""
        vector = np.asarray(vector)
        tiles, knobs = self.tiles(vector[None]), self.knobs(vector)
        if (count := int(turns(self.conv, tiles)[0])) > self.most_turns:
            return None, f"{count} turns of the loops over tiles, more than {self.most_turns}"
        parts = (
            ("output blocks", self.conv.out_blocks // knobs.tile_co, knobs.oc_nthread),
            ("rows", self.conv.out_height // knobs.tile_h, knobs.h_nthread),
        )
        for name, number, threads in parts:
            if number % threads:
                return None, f"{threads} virtual threads cannot share {number} tiles of {name}"
        return counted(self.schedule(vector).mod["main"], self.config, self.costs)

    def schedule(self, vector: NDArray[np.int64]) -> Schedule:
        """Schedule a configuration, whether it fits or not."""
        rule = ConvolutionRule(list(ORDERS)[int(vector[-1])])
        schedule = rule.schedule(_function(self.config, self.conv, self.epilogue), self.knobs(vector))
        if schedule is None:
            raise TuningError(f"{self.conv} is no convolution that the schedules for VTA take")
        return schedule


@lru_cache(maxsize=8)
def _function(config: VTAConfig, conv: Conv2d, epilogue: Epilogue) -> tvm.tirx.PrimFunc:
    return compute.convolution(config, conv, epilogue)
