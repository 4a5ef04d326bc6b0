from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.samples import profile
from tvm_ext.report.charts import byte_ticks, lines_of, memory_chart, step_ticks

SIZES = st.lists(st.integers(0, 10**9), min_size=1, max_size=40).map(tuple)


@settings(deadline=None)
@given(st.integers(0, 2**50))
def test_byte_ticks_cover_the_peak_in_few_round_steps(peak):
    ticks = byte_ticks(peak)
    assert ticks[0] == 0
    assert ticks[-1] >= peak
    assert 3 <= len(ticks) <= 6
    assert {b - a for a, b in pairwise(ticks)} == {ticks[1]}
    assert peak <= 1 or ticks[-2] < peak or len(ticks) == 3


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_step_ticks_are_few_and_inside(steps):
    ticks = step_ticks(steps)
    assert ticks[0] == 0
    assert 1 <= len(ticks) <= 10
    assert ticks[-1] < max(steps, 1)


def test_profiles_that_are_the_same_share_a_line():
    lines = lines_of([profile("a", (1, 2)), profile("b", (3, 4)), profile("c", (1, 2))])
    assert [(line.label, line.color) for line in lines] == [("a = c", 1), ("b", 2)]


def values_of(path: str, top: int, steps: int) -> list[float]:
    """Read the bytes at each step back from the coordinates of a staircase."""
    commands = re.findall(r"([MHV])([\d.]+)(?: ([\d.]+))?", path)
    assert commands[0][0] == "M"
    levels = {0.0: float(commands[0][2])}
    level = float(commands[0][2])
    for letter, value, _ in commands[1:]:
        if letter == "H":
            place = float(value)
        else:
            level = float(value)
            levels[place] = level
    left, right, bottom, height = 92.0, 944.0, 256.0, 242.0
    found = []
    for step in range(steps):
        x = left + (step + 0.5) / steps * (right - left)
        y = next(levels[begin] for begin in sorted(levels, reverse=True) if begin <= x)
        found.append((bottom - y) / height * top)
    return found


@settings(deadline=None)
@given(SIZES)
def test_the_line_shows_the_numbers(during):
    (line,) = lines_of([profile("order", during)])
    svg = memory_chart([line], "memory")
    path = re.search(r'<path class="line s1" d="([^"]*)"', svg)
    top = byte_ticks(max(during))[-1]
    # Coordinates are rounded to a tenth of the 242 units of height.
    assert values_of(path[1], top, len(during)) == pytest.approx(list(during), abs=top / 242 * 0.06 + 1e-9)
    place = during.index(max(during))
    x = 92 + (place + 0.5) / len(during) * 852
    assert f'<circle class="peak s1" cx="{round(x, 1)}"' in svg


def test_a_chart_has_axes_units_and_a_name():
    svg = memory_chart(lines_of([profile("a", (3 * 2**20, 2**20)), profile("b", (0, 0))]), 'the "chart"')
    assert ">2.0 MiB</text>" in svg
    assert ">bytes alive</text>" in svg
    assert ">step</text>" in svg
    assert 'aria-label="the &quot;chart&quot;"' in svg
    assert svg.count('class="line ') == 2


def test_a_chart_of_nothing():
    assert "<svg" in memory_chart(lines_of([profile("a", ())]), "empty")
