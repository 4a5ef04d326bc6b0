"""Which tuned schedules a region takes: no program is longer for them, and the best where layers do not meet."""

from __future__ import annotations

from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.codegen.tuned import TunedLayer
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model import tuned_region
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.schedules.vta.conv2d import ConvKnobs

NAMES = "abcd"


@given(
    st.lists(st.integers(-50, 50), min_size=4, max_size=4),
    st.lists(st.integers(-50, 50), min_size=6, max_size=6),
    st.booleans(),
)
def test_no_program_is_longer_for_its_tuned_schedules(gains: list[int], meetings: list[int], alone: bool) -> None:
    """``meetings`` are the cycles that two tuned layers lose beside each other."""
    pairs = dict(zip(combinations(NAMES, 2), meetings, strict=True))

    def cycles(keys: Any) -> int:
        lost = 0 if alone else sum(pairs[pair] for pair in combinations(sorted(keys), 2))
        return 1000 - sum(gains[NAMES.index(key)] for key in keys) + lost

    def build(plans: Plans) -> Any:
        plans.taken.update(list(plans.tuned))
        return SimpleNamespace(program=SimpleNamespace(instructions=cycles(plans.tuned)))

    layer = TunedLayer("", ConvKnobs, 0, 0)  # type: ignore[arg-type]
    plans = Plans(load_config("sim"), costs_named("chisel"), dict.fromkeys(NAMES, layer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned_region, "time_program", lambda count, *_: SimpleNamespace(cycles=count))
        region, count = tuned_region.best_region(build, plans)
    found = region.program.instructions
    assert found <= min(cycles(""), cycles(NAMES))
    subsets = list(chain.from_iterable(combinations(NAMES, size) for size in range(5)))
    assert any(len(keys) == count and cycles(keys) == found for keys in subsets)
    if alone:
        assert found == min(map(cycles, subsets))
