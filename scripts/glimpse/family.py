"""Sixteen designs of VTA, and the layers of three networks that are measured on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.vta.codegen import description
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import COSTS, CycleCosts
from tvm_ext.schedules.vta.conv2d import ORDERS
from tvm_ext.tuners.replay.tasks import TASKS, ConvolutionTask
from tvm_ext.tuning.vta_template import ConvTemplate

MOST_TURNS = 128
"""Turns of the loops over tiles that a program may have; longer ones count as invalid."""

LEAST_VALID = 0.005
"""Layers of which a smaller share of the configurations works on a design are left out there."""


@dataclass(frozen=True)
class Design:
    """A design of VTA: its configuration, and what its memory bus and its latency are."""

    name: str
    config: VTAConfig
    costs: CycleCosts


def _design(name: str, batch: int, block: int, sizes: tuple[int, int, int], bus: int, latency: int) -> Design:
    config = VTAConfig(
        log_batch=batch,
        log_block=block,
        log_inp_buff_size=sizes[0],
        log_wgt_buff_size=sizes[1],
        log_acc_buff_size=sizes[2],
    )
    return Design(name, config, replace(COSTS["chisel"], name=name, bus_bytes=bus, read_latency=latency))


# Name; log2 of batch and block; log2 of the bytes of the memories for inputs, weights and sums; bytes that the bus
# moves a cycle; cycles until the first data of a load. The first is upstream's simulated design.
DESIGNS = {
    row.name: row
    for row in (
        _design("1x16a", 0, 4, (15, 18, 17), 8, 25),
        _design("1x16b", 0, 4, (16, 17, 17), 16, 25),
        _design("1x16c", 0, 4, (15, 17, 16), 8, 40),
        _design("1x16d", 0, 4, (14, 16, 16), 32, 40),
        _design("2x16a", 1, 4, (15, 18, 17), 8, 25),
        _design("2x16b", 1, 4, (16, 18, 18), 16, 25),
        _design("2x16c", 1, 4, (15, 17, 17), 32, 40),
        _design("2x16d", 1, 4, (16, 17, 16), 8, 40),
        _design("1x32a", 0, 5, (15, 18, 17), 8, 25),
        _design("1x32b", 0, 5, (16, 19, 18), 16, 25),
        _design("1x32c", 0, 5, (16, 18, 17), 32, 40),
        _design("1x32d", 0, 5, (15, 19, 16), 8, 40),
        _design("2x32a", 1, 5, (15, 18, 17), 8, 25),
        _design("2x32b", 1, 5, (16, 19, 18), 16, 25),
        _design("2x32c", 1, 5, (17, 18, 18), 32, 40),
        _design("2x32d", 1, 5, (16, 18, 17), 16, 40),
    )
}

# First layers have three channels: VTA leaves them to the CPU. Three more of VGG-16, on images of 112 x 112 and larger,
# take an hour to count.
LARGEST = 112
LAYERS = {task.name: task for task in TASKS if task.inputs > 3 and task.size < LARGEST}


def template(design: Design, task: ConvolutionTask) -> ConvTemplate:
    """Make the space of a layer on a design: one packed batch."""
    block = design.config.block
    conv = Conv2d(
        1, task.inputs // block, task.outputs // block, task.size, task.size, task.kernel, task.stride, task.padding
    )
    return ConvTemplate(design.config, conv, design.costs, most_turns=MOST_TURNS)


def describe(design: Design, task: ConvolutionTask) -> KernelDescription:
    """Say of a layer on a design what a guide needs."""
    row, orders = template(design, task), np.array(list(ORDERS.values()))
    return description.describe(
        row.config,
        row.costs,
        row.conv,
        row.epilogue,
        lambda vectors: (row.tiles(vectors), orders[vectors[:, -1]]),
        [*([knob.name] for knob in row.space.knobs[:-1]), []],
    )
