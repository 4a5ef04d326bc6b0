"""What the CPU rule for direct convolutions would say of a tile on a simulated machine."""

from __future__ import annotations

import numpy as np

from tvm_ext.schedules.cpu.conv_tile import tile_cost
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.tuners.replay.simulator import SimulatedMachine, convolution_space
from tvm_ext.tuners.replay.tasks import ConvolutionTask
from tvm_ext.tuners.space import ConfigSpace


def machine_row(cpu: SimulatedMachine) -> Machine:
    """Describe a simulated machine as the schedule rules see one."""
    flops = 2 * cpu.lanes * cpu.fma_per_cycle * cpu.clock
    bandwidth = cpu.l2_bytes_per_cycle * cpu.clock
    return Machine(
        "simulated", 32 * cpu.lanes, cpu.registers, l1=cpu.l1_bytes, l2=cpu.l2_bytes, cores=cpu.cores,
        clock=cpu.clock, flops=flops, l2_bandwidth=bandwidth,
    )  # fmt: skip


def costed_space(task: ConvolutionTask, cpu: SimulatedMachine | None = None) -> ConfigSpace:
    """Make the space of a convolution, with the cost of the rule's own register tiles.

    The rule counts the slots of multiply-adds for a tile of ``columns`` positions and ``vectors`` vectors of filters,
    and takes no tile that does not fit the registers. It knows nothing of the other knobs.
    """
    cpu = cpu or SimulatedMachine()
    machine, pixels = machine_row(cpu), task.output_size**2
    space = convolution_space(task)
    inner = [np.array([choice[-1] for choice in knob.choices]) for knob in space.knobs[:6]]

    def cost(filters: int, columns: int, reduction: int) -> float:
        vectors = -(-filters // cpu.lanes)
        if columns * vectors + vectors + 1 > machine.vector_registers - 1:
            return float("inf")
        # Filters that do not fill a vector are computed all the same.
        return tile_cost(pixels, (columns, vectors), reduction, machine) * vectors * cpu.lanes / filters

    filters = np.unique(inner[0])
    columns = np.unique(np.multiply.outer(inner[1], inner[2]))
    reductions = np.unique(np.multiply.outer(np.multiply.outer(inner[3], inner[4]), inner[5]))
    table = np.array(
        [[[cost(f, c, r) for r in reductions.tolist()] for c in columns.tolist()] for f in filters.tolist()]
    )

    def costs(vectors: np.ndarray) -> np.ndarray:
        f, y, x, channels, ky, kx = (rows[vectors[:, position]] for position, rows in enumerate(inner))
        places = (np.searchsorted(filters, f), np.searchsorted(columns, y * x))
        return table[(*places, np.searchsorted(reductions, channels * ky * kx))]

    return ConfigSpace(space.knobs, cost=costs)
