"""The CPU beside VTA, as far as deciding what runs where needs to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostSpeed:
    """How fast the CPU beside VTA is.

    The convolutions are those of the two 650 MHz Cortex-A9 of a Pynq with TVM's own code, 1.0 to 1.6 GOPS as its
    developers measured them; the other two are of that order.

    Attributes
    ----------
    macs : float
        Multiply-adds a second, of convolutions and matrix products.
    comparisons : float
        Other operations a second.
    conversions : float
        Values a second that are converted between floats and VTA's packed integers.
    start : float
        Seconds to start a program and to notice that it has ended: caches written back, registers, a poll.
    """

    macs: float = 0.7e9
    comparisons: float = 0.2e9
    conversions: float = 0.1e9
    start: float = 1e-4
