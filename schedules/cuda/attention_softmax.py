"""What both attention kernels do to rows of scores that several threads of a warp share."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.cuda.statements import load, single, store

LOWEST = float("-inf")
"""Score of a key beyond the last, and the largest score before the first."""


def across(operator: str, buffer: Any, index: Any, threads: int) -> list[Any]:
    """Combine an element that each of some neighbouring threads has; all of them get the result.

    Parameters
    ----------
    operator : str
        ``"add"`` or ``"max"``.
    threads : int
        A power of two.
    """
    statements, distance = [], threads // 2
    while distance:
        own = load(buffer, index)
        other = T.tvm_warp_shuffle_xor(T.tvm_warp_activemask(), own, distance, WARP, WARP)
        statements.append(store(buffer, tirx.max(own, other) if operator == "max" else own + other, index))
        distance //= 2
    return statements


def safe_base(largest: Any) -> Any:
    """Give what exponents are taken from: the largest score, or 0 where all were minus infinity."""
    return tirx.Select(largest > single(LOWEST), largest, single(0))
