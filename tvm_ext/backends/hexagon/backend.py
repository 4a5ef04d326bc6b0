"""The row of Hexagon DSPs."""

from __future__ import annotations

from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON
from tvm_ext.backends.hexagon.target import complete, is_hexagon
from tvm_ext.embedding.choice import Offer, throughput_cost
from tvm_ext.schedules.instructions.rows import VMPA, VMPY, VMPY_SPLAT, VRMPY

HEXAGON = Backend(
    name="hexagon",
    accepts=is_hexagon,
    phases=COMMON,
    complete=complete,
    # A vector of 128 bytes is loaded in a cycle.
    instructions=lambda target: [Offer(row, throughput_cost(row, 128)) for row in (VRMPY, VMPA, VMPY_SPLAT, VMPY)],
)
