"""Line charts of memory over time, as inline SVG that takes its colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tvm_ext.graph.units import bytes_text
from tvm_ext.report.inspection import MemoryProfile

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 16, 14, 44
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@dataclass(frozen=True)
class Line:
    """One line of a chart: profiles that are the same at every step share it.

    Attributes
    ----------
    label : str
        Names of the profiles.
    color : int
        Number of the series colour, from 1.
    profile : MemoryProfile
        The first of them.
    """

    label: str
    color: int
    profile: MemoryProfile


def lines_of(profiles: Sequence[MemoryProfile]) -> tuple[Line, ...]:
    """Put profiles that would hide each other on one line."""
    same: dict[tuple[int, ...], list[MemoryProfile]] = {}
    for profile in profiles:
        same.setdefault(profile.during, []).append(profile)
    return tuple(
        Line(" = ".join(profile.name for profile in group), number, group[0])
        for number, group in enumerate(same.values(), start=1)
    )


def memory_chart(lines: Sequence[Line], label: str) -> str:
    """Draw bytes alive (vertical) against the step (horizontal); a dot marks the peak of each line.

    Parameters
    ----------
    lines : sequence of Line
        What to draw, the first one filled.
    label : str
        What the chart shows, for readers that do not see it.
    """
    steps = max(len(line.profile.during) for line in lines)
    ticks = byte_ticks(max(line.profile.peak for line in lines))
    top = ticks[-1]
    x = _Scale(0, max(steps, 1), _LEFT, _WIDTH - _RIGHT)
    y = _Scale(0, max(top, 1), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'data-left="{_LEFT}" data-right="{_WIDTH - _RIGHT}" data-steps="{steps}">'
    ]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{bytes_text(tick)}</text>'
        )
    for tick in step_ticks(steps):
        parts.append(
            f'<text class="tick" x="{x(tick + 0.5)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
    turned = f'x="12" y="{_HEIGHT / 2}" transform="rotate(-90 12 {_HEIGHT / 2})"'
    parts.append(f'<text class="axis" {turned} text-anchor="middle">bytes alive</text>')
    parts.append(f'<path class="area s{lines[0].color}" d="{_staircase(lines[0], x, y)} V{y(0)} H{x(0)} Z"/>')
    # The first line is drawn last, so that it is on top.
    parts += [f'<path class="line s{line.color}" d="{_staircase(line, x, y)}"/>' for line in reversed(lines)]
    for line in reversed(lines):
        if line.profile.during:
            place = f'cx="{x(line.profile.peak_step + 0.5)}" cy="{y(line.profile.peak)}"'
            parts.append(f'<circle class="peak s{line.color}" {place} r="4"/>')
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/></svg>')
    return "".join(parts)


def byte_ticks(peak: int) -> list[int]:
    """Choose three to six round sizes from 0 up to at least ``peak``, in one binary unit."""
    unit = next(size for size, _ in _UNITS if peak >= size or size == 1)
    for exponent in range(-1, 5):
        for factor in (1, 2, 2.5, 5):
            step = factor * 10**exponent * unit
            if step == int(step) and step >= 1 and peak <= 5 * step:
                count = max(2, math.ceil(peak / step))
                return [int(step) * place for place in range(count + 1)]
    raise AssertionError("a peak of its unit is below 1024 times that unit")


def step_ticks(steps: int) -> list[int]:
    """Choose at most eleven round step numbers from 0."""
    distance = next(f * 10**e for e in range(9) for f in (1, 2, 5) if steps <= 10 * f * 10**e)
    return list(range(0, max(steps, 1), distance))


class _Scale:
    """A linear map from values to a place on the page, rounded to tenths."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._factor, self._start = low, (end - start) / (high - low), start

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self._low) * self._factor, 1)


def _staircase(line: Line, x: _Scale, y: _Scale) -> str:
    during = line.profile.during
    if not during:
        return f"M{x(0)} {y(0)}"
    path = [f"M{x(0)} {y(during[0])}"]
    for step, value in enumerate(during):
        if step and value != during[step - 1]:
            path.append(f"H{x(step)}V{y(value)}")
    path.append(f"H{x(len(during))}")
    return "".join(path)
