"""What a target says beforehand of a kernel and of its configurations, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Gives numbers (n x columns) of vectors of choices (n x knobs)."""


@dataclass(frozen=True)
class KernelDescription:
    """A kernel, its configurations and the machine, for what has learnt from other kernels on other machines.

    Attributes
    ----------
    family : str
        Descriptions of one family have the same columns.
    sheet : tuple of float
        The machine's data sheet.
    layer : array
        Numbers of the kernel.
    features : callable
        What decides over the speed of configurations.
    usage : callable
        What configurations use of each resource of the machine.
    takes_part : array
        Which knobs decide over each resource (resources x knobs, bool).
    cost : callable, optional
        Gives what the target expects of vectors of choices (n x knobs): costs (n) of any unit, lower is better.
    """

    family: str
    sheet: tuple[float, ...]
    layer: NDArray[np.float64]
    features: Numbers
    usage: Numbers
    takes_part: NDArray[np.bool_]
    cost: Numbers | None = None
