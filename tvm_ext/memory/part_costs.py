"""What running in parts takes besides its arithmetic, from a few figures of a machine: whether it can be measured.

Each part calls its kernels anew, and reads the weights anew that no cache near a core keeps. What it saves, as tensors
of a part are near where those of the whole are not, is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

EFFICIENCY = 0.8
"""Of the peak of the cores: what convolutions and products reach in a network."""

FREE = 0.015
"""Part of the time of a function that cannot be told from noise; ZFNet took 1.02 of its time where 0.02 was allowed."""


@dataclass(frozen=True)
class PartCosts:
    """What a machine takes.

    Attributes
    ----------
    flops : float
        Multiplications and additions a second in float32, of all cores.
    kernel_seconds : float
        Calling a kernel, and handing it to the cores.
    bandwidth : float
        Bytes a second that all cores read from the last cache.
    near : int
        Bytes that stay near a core.
    """

    flops: float
    kernel_seconds: float
    bandwidth: float
    near: int

    def arithmetic_seconds(self, operations: float) -> float:
        """Estimate the seconds of multiplications and additions."""
        return operations / (EFFICIENCY * self.flops)

    def again_seconds(self, kernels: int, weight_bytes: int) -> float:
        """Estimate what calling some kernels once more takes.

        Parameters
        ----------
        weight_bytes : int
            Weights of all of them, in bytes.
        """
        read = weight_bytes if weight_bytes > self.near else 0
        return kernels * self.kernel_seconds + read / self.bandwidth
