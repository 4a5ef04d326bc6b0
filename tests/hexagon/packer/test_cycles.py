"""The cycle model, held against a clock that knows when each register is ready."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tvm_ext.backends.hexagon.packer.cycles import Course, Timing, issued


def clocked(packets: Sequence[Timing], rounds: int) -> int:
    """Count the cycles of the last of some rounds."""
    now, before = 0, 0
    ready: dict[int, int] = {}
    for _ in range(rounds):
        before = now
        for packet in packets:
            start = max([now, *(ready.get(place, 0) for place in packet.waits)])
            ready |= {place: start + delay for place, delay in packet.results}
            now = start + 1
    return now - before


def some_packets(draw: random.Random, count: int) -> list[Timing]:
    def places(most: int) -> list[int]:
        return draw.sample(range(6), draw.randint(0, most))

    return [Timing(tuple(places(3)), tuple((place, draw.randint(0, 5)) for place in places(2))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_courses_take_what_a_clock_says(seed: int) -> None:
    draw = random.Random(seed)
    packets, rounds = some_packets(draw, draw.randint(1, 20)), draw.randint(1, 3)
    assert Course(packets, rounds).cycles == clocked(packets, rounds)


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_course_is_that_of_its_packets(seed: int) -> None:
    draw = random.Random(seed)
    rounds = draw.randint(1, 3)
    course = Course(some_packets(draw, 25), rounds)
    for _ in range(20):
        count = len(course.packets)
        before = draw.randint(0, count)
        behind = draw.randint(0, count - before)
        between = some_packets(draw, draw.randint(0 if before + behind else 1, 4))
        packets = [*course.packets[:before], *between, *course.packets[count - behind :]]
        course = course.changed(before, between, behind)
        assert course.packets == packets
        assert course.cycles == clocked(packets, rounds)
        assert vars(course) == vars(Course(packets, rounds))


def test_only_what_is_late_is_under_way() -> None:
    taken, under_way = issued(Timing((0, 1), ((2, 3), (3, 1))), {0: 2, 1: 1, 3: 9, 4: 5})
    assert (taken, under_way) == (3, {2: 2, 4: 2})
