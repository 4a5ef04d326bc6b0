"""What the rule for convolutions estimates of a division of its loops: the prior of tuners, before any is measured."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.schedules.cpu.conv_tile import ConvShape, fits_registers, step_slots
from tvm_ext.schedules.cpu.machine import Machine

CROWDED = 1.25
"""How many times as long a task takes whose input leaves no room in the L2 cache for weights; :func:`conv_tile` takes
no such task."""


def division_cost(shape: ConvShape, machine: Machine, factors: Sequence[Sequence[int]], parallel: bool) -> float:
    """Estimate the multiply-adds that the slowest core could issue meanwhile; infinite where registers do not suffice.

    As :func:`~tvm_ext.schedules.cpu.conv_tile.conv_tile` weighs register tiles and tasks against each other, for any
    factors, not its own alone.

    Parameters
    ----------
    factors : sequence of sequence of int
        Of output channels (parts, groups, vectors), of rows (bands, rows), of columns (parts, strips, columns).
    parallel : bool
        Whether tasks are handed to the thread pool.
    """
    (parts, groups, vectors), (bands, rows), (pieces, strips, columns) = factors
    if not fits_registers(columns, vectors, machine):
        return float("inf")
    panel_bytes = shape.reduction * vectors * machine.vector_bits // 8 if shape.counts_weights else 0
    unit = strips * shape.reduction * step_slots(columns, vectors, panel_bytes, machine)
    tasks = shape.planes * parts * bands * pieces
    rounds = -(-tasks // machine.cores) if parallel else tasks
    input_bytes = ((rows - 1) * shape.stride_h + shape.kernel_h) * shape.input_row_bytes
    crowded = CROWDED if rows > 1 and input_bytes > machine.l2 // 2 else 1.0
    overhead = (rows + shape.kernel_h) * (0.05 + 0.01 * groups) + 0.2
    if pieces > 1:  # neighbours copy what they both read, of as many columns as rows
        overhead *= 1 + (shape.kernel_h - 1) / (strips * columns)
    return unit * rounds * (rows * groups + overhead) * crowded
