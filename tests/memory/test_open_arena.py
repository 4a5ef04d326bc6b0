"""Whatever the sizes, tensors of an open arena that are alive at once lie apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import CompileError
from tvm_ext.memory.open_arena import live_bytes, plan_open_arena, rounded, verify_open_arena

Lives = dict[str, tuple[int, int]]

SIZES = st.sampled_from([0, 1, 17, 63, 64, 65, 1000, 4096, 100_000])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Lives, list[dict[str, int]], dict[str, int]]:
    """Draw lives, the sizes that are planned for, and sizes that are not."""
    names = [f"t{number}" for number in range(draw(st.integers(1, 9)))]
    lives = {}
    for name in names:
        first = draw(st.integers(0, 8))
        lives[name] = first, draw(st.integers(first, 9))
    samples = [{name: draw(SIZES) for name in names} for _ in range(draw(st.integers(1, 3)))]
    return lives, samples, {name: draw(SIZES) for name in names}


@given(problems())
def test_no_two_that_are_alive_at_once_overlap(problem: tuple[Lives, list[dict[str, int]], dict[str, int]]) -> None:
    lives, samples, other = problem
    plan = plan_open_arena(lives, samples)
    verify_open_arena(plan)
    for sizes in (*samples, other):
        offsets, size = plan.offsets(sizes), plan.size(sizes)
        for step in range(10):
            alive = sorted(
                (offsets[name], sizes[name]) for name, (first, last) in lives.items() if first <= step <= last
            )
            for (low, length), (high, _) in pairwise(alive):
                assert low + length <= high
            assert all(offset % 64 == 0 and offset + length <= size for offset, length in alive)
        assert size >= live_bytes(lives, sizes)
    assert len(plan.ratios) == len(samples)


def test_a_chain_takes_the_two_largest_neighbours_at_every_size() -> None:
    lives = {f"t{step}": (step, step + 1) for step in range(6)}
    samples = [{name: scale * (1 + index % 3) for index, name in enumerate(lives)} for scale in (1000, 50)]
    plan = plan_open_arena(lives, samples)
    assert plan.ratios == (1.0, 1.0)
    sizes = {name: 777 * (1 + index % 3) for index, name in enumerate(lives)}
    assert plan.size(sizes) == rounded(777 * 2) + rounded(777 * 3)


def test_a_plan_that_lets_tensors_overlap_is_found_out() -> None:
    plan = plan_open_arena({"a": (0, 2), "b": (1, 3), "c": (2, 4)}, [{"a": 100, "b": 200, "c": 300}])
    lowest, middle, highest = plan.below
    for below, said in (
        ({**plan.below, highest: ()}, "may overlap"),
        ({highest: (middle,), middle: (lowest,), lowest: ()}, "no place before it"),
        ({lowest: (), middle: (lowest,)}, "may overlap"),
    ):
        with pytest.raises(CompileError, match=said):
            verify_open_arena(replace(plan, below=below))
