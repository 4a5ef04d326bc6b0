"""Random networks in strips, slices and groups: the values of the whole, and no higher a peak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.memory.relax.modules import results_of
from tests.memory.relax.parted_nets import parted_net
from tvm_ext.backends import common
from tvm_ext.compiler import lower
from tvm_ext.memory.part_costs import PartCosts
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.options import PipelineOptions
from tvm_ext.target import resolve_target

ALL_IS_FREE = PartCosts(flops=1e3, kernel_seconds=1e-9, bandwidth=1e15, near=1 << 30)
"""Of a machine on which nothing counts beside arithmetic."""

WAYS = ("patches", "sliced_convolutions", "groups")

SEEDS = [*range(2, 7), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(7, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_values_and_peaks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mod, target = parted_net(seed), resolve_target(None)
    shape = tuple(map(int, mod["main"].params[0].ty.shape))
    value = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    whole = lower(mod, target, PipelineOptions(patches="off"))
    monkeypatch.setattr(common, "_part_costs", lambda *_: ALL_IS_FREE)
    expected = results_of(whole[0], [value])
    assert whole[1] is not None
    assert not ways_of(whole[0])
    for options in (PipelineOptions(), PipelineOptions(patches="always")):
        mod_in_parts, statistics, _ = lower(mod, target, options)
        assert statistics is not None
        assert statistics.planned_bytes <= whole[1].planned_bytes
        for found, right in zip(results_of(mod_in_parts, [value]), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_all_ways_are_there() -> None:
    """Of the networks of these tests some run in strips, some in slices and some in groups."""
    target = resolve_target(None)
    found = {way for seed in (3, 4, 6) for way in ways_of(lower(parted_net(seed), target, ALWAYS)[0])}
    assert found == set(WAYS)


ALWAYS = PipelineOptions(patches="always")


def ways_of(mod: Any) -> list[str]:
    decision = memory_decisions(mod)["main"]
    return [way for way in WAYS if way in decision]
