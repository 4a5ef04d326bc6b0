"""Extents that only a run knows: what they count as when a schedule is chosen, and what is sure of them."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

OPEN = 4
"""What a variable of an extent counts as: a batch."""

OPEN_ROWS = 128
"""What rows and columns of open extent count as at least: a sequence, which is longer than any tile of keys."""


def is_open(extent: Any) -> bool:
    """Whether only a run knows an extent."""
    return not isinstance(extent, int | tirx.IntImm)


def estimated(extent: Any, each: int = OPEN) -> int:
    """Give an extent, an open one with ``each`` in the place of every variable."""
    if not is_open(extent):
        return int(extent)
    known = tvm_ffi.structural_map(extent, (tvm.ir.Var, lambda variable: tirx.IntImm(variable.ty, each)))
    known = tvm.sym.Analyzer().simplify(known)
    return each if is_open(known) else max(1, int(known))


def product(extents: Iterable[Any]) -> Any:
    """Multiply extents, open or known."""
    found: Any = 1
    for extent in extents:
        factor = extent if is_open(extent) else int(extent)  # a constant of 32 bits overflows silently
        found = factor if isinstance(found, int) and found == 1 else found * factor
    return found if is_open(found) else int(found)


def divisor(extent: Any) -> int:
    """Give the largest number that is sure to divide an extent."""
    if not is_open(extent):
        return int(extent)
    found = tvm.sym.Analyzer().modular_set(extent)
    return gcd(int(found.coeff), int(found.base))


def up(extent: Any, part: int) -> Any:
    """Count the parts of ``part`` that hold an extent."""
    return -(-extent // part) if isinstance(extent, int) else tirx.floordiv(extent + (part - 1), part)


def same(first: Any, second: Any) -> bool:
    """Whether two extents are the same number in every run."""
    return bool(tvm.sym.Analyzer().can_prove_equal(first, second))
