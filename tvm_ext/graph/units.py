"""How sizes and counts are written for people."""

from __future__ import annotations

from tvm_ext.graph.symbolic import Dim


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
