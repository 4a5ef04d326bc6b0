"""Dimensions that stay open when a model is compiled, and the extents that they may have at run time.

On the command line: ``--dynamic "batch=1..32,seq=1..512"``; in Python: ``dynamic={"batch": (1, 32), "seq": (1, 512)}``.
A dimension is called what the model calls it, or ``INPUT:AXIS``; ``*`` is every dimension that is left open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from tvm_ext.errors import OptionError

ALL = "*"
"""Stands for every dimension that the model leaves open and that is given no value."""

LARGEST_EXTENT = 2**31 - 1

_RANGE = re.compile(r"(-?\d+)?\s*(\.\.\s*(-?\d+)?)?")
_FORM = "write batch=1..32 or batch=1.. for no upper limit, separated by commas"


@dataclass(frozen=True)
class OpenDimension:
    """What is asked of a dimension that stays open.

    Attributes
    ----------
    name : str
        As the model has it, ``INPUT:AXIS``, or ``*``.
    low : int
        Smallest extent.
    high : int or None
        Largest extent; None for no limit.
    """

    name: str
    low: int = 1
    high: int | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{'' if self.high is None else self.high}"

    @property
    def limits(self) -> tuple[int, int | None]:
        """The smallest and the largest extent."""
        return self.low, self.high


def open_dimensions(given: Any) -> dict[str, OpenDimension]:
    """Read the option ``dynamic``.

    Parameters
    ----------
    given : str, or mapping from name to range, or None
        A range is a pair ``(lowest, highest)`` with None for no limit, a text ``"1..512"``, or None for any size.

    Returns
    -------
    dict from str to OpenDimension

    Raises
    ------
    OptionError
        If it is anything else, or a range holds no size.
    """
    if given is None:
        return {}
    pairs: list[tuple[Any, Any]] = []
    if isinstance(given, str):
        for part in filter(None, map(str.strip, given.split(","))):
            name, separator, text = part.rpartition("=")
            pairs.append((name.strip(), text) if separator else (text.strip(), None))
    elif isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        raise OptionError(f"option dynamic: {given!r:.100} is no text and no mapping from names to ranges; {_FORM}")
    found: dict[str, OpenDimension] = {}
    for name, limits in pairs:
        if not isinstance(name, str) or not name:
            raise OptionError(f"option dynamic: {name!r:.100} names no dimension; {_FORM}")
        if name in found:
            raise OptionError(f"option dynamic: dimension {name!r} is given twice; leave one of them out")
        found[name] = OpenDimension(name, *_limits(name, limits))
    return found


def _limits(name: str, given: Any) -> tuple[int, int | None]:
    """Read a range of extents."""
    low, high = _ends(name, given)
    if low < 0 or (high is not None and not low <= high <= LARGEST_EXTENT):
        text = f"{low}..{'' if high is None else high}"
        raise OptionError(
            f"option dynamic: the range {text} of dimension {name!r} is empty, negative or beyond {LARGEST_EXTENT}; "
            "give the smallest and the largest size, from 0 on"
        )
    return low, high


def _ends(name: str, given: Any) -> tuple[int, int | None]:
    if given is None:
        return 1, None
    if isinstance(given, str):
        matched = _RANGE.fullmatch(given.strip())
        if matched is not None and given.strip():
            low, dots, high = matched.groups()
            first = 1 if low is None else int(low)
            return first, (first if dots is None else None if high is None else int(high))
    elif isinstance(given, range) and given.step == 1 and len(given):
        return given.start, given.stop - 1
    elif isinstance(given, tuple | list) and len(given) == 2:
        low, high = given
        if _is_whole(low) and (high is None or _is_whole(high)):
            return int(low), None if high is None else int(high)
    raise OptionError(f"option dynamic: {given!r:.100} is no range for dimension {name!r}; give (1, 512), or {_FORM}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
