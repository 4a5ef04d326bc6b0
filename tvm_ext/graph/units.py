"""How sizes and counts are written for people, and read from them."""

from __future__ import annotations

import re

from tvm_ext.errors import OptionError
from tvm_ext.graph.symbolic import Dim

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{i}B": base**power for i, base in (("", 1000), ("I", 1024)) for power, letter in enumerate("KMGT", 1)
}

LARGEST_SIZE = 1 << 63
"""Bytes that TVM's integers cannot count."""


def bytes_text(size: Dim | None) -> str:
    """Write a size in bytes, with a binary unit from 1 KiB up; symbolic sizes as they are, unknown ones as ``?``.

    Examples
    --------
    >>> bytes_text(1000), bytes_text(65536), bytes_text(None)
    ('1,000 B', '64.0 KiB', '?')
    """
    if size is None:
        return "?"
    if not isinstance(size, int):
        return f"{size} B"
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def count_text(count: Dim | None, unit: str = "FLOP") -> str:
    """Write a count, with a decimal prefix from 1000 up; symbolic counts as they are, unknown ones as ``?``.

    Examples
    --------
    >>> count_text(999), count_text(3_600_000_000), count_text(12_000, "")
    ('999 FLOP', '3.60 GFLOP', '12.0 k')
    """
    if count is None:
        return "?"
    if not isinstance(count, int):
        return f"{count} {unit}".rstrip()
    return _scaled(count, 1000, tuple(f"{prefix}{unit}" for prefix in ("", "k", "M", "G", "T", "P")))


def _scaled(value: int, base: int, units: tuple[str, ...]) -> str:
    scaled, place = float(value), 0
    while abs(scaled) >= base and place < len(units) - 1:
        scaled /= base
        place += 1
    if place == 0:
        return f"{value:,} {units[0]}".rstrip()
    digits = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    if base == 1024:
        digits = min(digits, 1)
    return f"{scaled:,.{digits}f} {units[place]}"


def parse_bytes(text: str | int, name: str = "memory limit") -> int:
    """Read a size: a number of bytes, or one with a unit.

    ``KB`` is 1000 bytes and ``KiB`` 1024; capital and small letters are the same. ``name`` is what a message calls it.

    Raises
    ------
    OptionError
        If it is no size.

    Examples
    --------
    >>> parse_bytes("256KB"), parse_bytes("1.5 MiB"), parse_bytes(4096)
    (256000, 1572864, 4096)
    """
    # An integer is compared first: Python does not spell one of thousands of digits.
    if isinstance(text, int) and abs(text) >= LARGEST_SIZE:
        raise OptionError(f"{name}: no machine has 8 EiB or more, expected a size such as 262144, 256KB or 1.5MiB")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match is not None else 0.0
    if size >= LARGEST_SIZE:  # infinite, even, where there are hundreds of digits
        raise OptionError(f"{name}: no machine has 8 EiB or more, expected a size such as 262144, 256KB or 1.5MiB")
    if size < 1:
        raise OptionError(f"{name} {text!r} is no size, expected one such as 262144, 256KB or 1.5MiB")
    return int(size)
