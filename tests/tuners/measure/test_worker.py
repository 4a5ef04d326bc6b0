from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.tuners.measure.worker import Timing

SECONDS = st.floats(1e-6, 1.0)


@given(st.lists(SECONDS, min_size=5, max_size=5), st.lists(SECONDS, min_size=2, max_size=2), st.none() | SECONDS)
def test_figures_are_taken_while_there_is_hope(ahead: list[float], first: list[float], best: float | None) -> None:
    timing = Timing(repeats=5)
    waiting = iter(ahead)
    taken = timing.figures(lambda: next(waiting), first, best)
    if best is not None and min(first) > 3.0 * best:
        assert taken == first
        assert list(waiting) == ahead
        return
    assert taken == ahead[: len(taken)]
    hope = [best is None or min(ahead[:count]) <= 1.25 * best for count in range(1, 6)]
    assert len(taken) == (hope.index(False) + 1 if False in hope else 5)
    if best is not None and min(taken) <= 1.25 * best:
        assert len(taken) == 5, "whatever may be the best is measured in full"


@pytest.mark.parametrize(("first", "number"), [([0.02, 0.01], 2), ([1.0, 2.0], 1), ([0.0, 1.0], 200000)])
def test_figures_last_long_enough(first: Sequence[float], number: int) -> None:
    assert Timing(seconds=0.02).number(first) == number
