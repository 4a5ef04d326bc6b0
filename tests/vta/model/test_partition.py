"""Which layers run on VTA: the least time of all assignments, and regions that can run one after the other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.cut import regions_of
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.partition import Partition, conversion_seconds, plan_partition, verify_partition
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.errors import GraphError

CONFIG, COSTS = load_config("sim"), costs_named("chisel")


@dataclass(frozen=True)
class Part:
    name: str
    inputs: tuple[str, ...]
    layer: Layer | None = None
    products: float = 0.0
    operations: float = 0.0


def convolution(name: str, data: str, channels: int = 16, residual: str | None = None) -> Layer:
    shape = (1, channels, 6, 6)
    weights = np.ones((channels, channels, 3, 3), np.float32)
    bias = np.zeros(channels, np.float32)
    return Layer(name, "conv2d", data, shape, shape, 3, 1, 1, 1, weights, bias, residual)


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Part], list[str], HostSpeed]:
    parts: list[Part] = []
    for number in range(draw(st.integers(1, 7))):
        known = ["x", *(part.name for part in parts)]
        first, second = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        name = f"t{number}"
        kind = draw(st.sampled_from(["layer", "residual", "other"]))
        if kind == "other":
            parts.append(Part(name, (first, second)))
        else:
            layer = convolution(name, first, 16, second if kind == "residual" else None)
            parts.append(Part(name, layer.inputs, layer))
    outputs = [parts[-1].name, draw(st.sampled_from(parts)).name]
    speed = HostSpeed(draw(st.sampled_from([1e8, 1e9, 1e10])), 1e9, draw(st.sampled_from([1e6, 1e7, 1e8])), 0.0)
    return parts, outputs, speed


@settings(max_examples=80, deadline=None)
@given(models())
def test_no_other_assignment_takes_less(drawn: tuple[list[Part], list[str], HostSpeed]) -> None:
    parts, outputs, speed = drawn
    partition = plan_partition(parts, outputs, CONFIG, COSTS, speed)
    rows = partition.decisions
    for choice in itertools.product([False, True], repeat=len(rows)):
        on_vta = {row.layer for row, chosen in zip(rows, choice, strict=True) if chosen}
        seconds = sum(row.vta_seconds if row.layer in on_vta else row.cpu_seconds for row in rows)
        seconds += conversion_seconds(parts, outputs, on_vta, speed)
        assert partition.seconds <= seconds + 1e-8  # times are rounded to nanoseconds


@settings(max_examples=40, deadline=None)
@given(models(), st.sampled_from([1e-5, 1e-4, 1e-3]))
def test_programs_that_do_not_pay_are_left_out(drawn: tuple[list[Part], list[str], HostSpeed], start: float) -> None:
    """Never slower than everything on the CPU, nor than the cut that takes starting a program for free."""
    parts, outputs, free = drawn
    speed = replace(free, start=start)
    partition = plan_partition(parts, outputs, CONFIG, COSTS, speed)
    cut = plan_partition(parts, outputs, CONFIG, COSTS, free)
    on_cpu = sum(row.cpu_seconds for row in partition.decisions)
    assert partition.start_seconds == start * len(partition.regions)
    assert partition.seconds <= min(on_cpu, cut.seconds + start * len(cut.regions)) + 1e-8
    assert len(partition.regions) <= len(cut.regions)
    times = {row.layer: (row.vta_seconds, row.cpu_seconds) for row in partition.decisions}
    for region in partition.regions:
        left = partition.on_vta - set(region)
        seconds = sum(times[name][name not in left] for name in times)
        seconds += conversion_seconds(parts, outputs, left, speed) + start * len(regions_of(parts, set(left)))
        assert partition.seconds <= seconds + 1e-8


@settings(max_examples=80, deadline=None)
@given(models(), st.lists(st.booleans(), min_size=7, max_size=7))
def test_regions_of_any_assignment_can_run(drawn: tuple[list[Part], list[str], HostSpeed], sides: list[bool]) -> None:
    """Every assignment, however bad, gives regions that do not wait for each other; all on one side of others."""
    parts, outputs, speed = drawn
    layers = [part.name for part in parts if part.layer is not None]
    forced = {name: "vta" if side else "cpu" for name, side in zip(layers, sides, strict=False)}
    partition = plan_partition(parts, outputs, CONFIG, COSTS, speed, forced)
    assert partition.on_vta == {name for name, side in forced.items() if side == "vta"}
    ready = {"x"}
    region_of = {name: region for region in partition.regions for name in region}
    waiting = {part.name: part for part in parts}
    while waiting:
        before = len(waiting)
        for part in list(waiting.values()):
            names = region_of.get(part.name, (part.name,))
            inputs = {name for at in names for name in next(p for p in parts if p.name == at).inputs} - set(names)
            if part.name in waiting and inputs <= ready:
                ready |= set(names)
                for name in names:
                    del waiting[name]
        assert len(waiting) < before


def test_first_layers_and_classifiers_are_decided_by_time() -> None:
    """Three channels fill a fifth of a block and are still worth it beside a slow CPU, not beside a fast one."""
    weights = np.ones((64, 3, 7, 7), np.float32)
    layer = Layer(
        "stem", "conv2d", "x", (1, 3, 56, 56), (1, 64, 28, 28), 7, 2, 3, 1, weights, np.zeros(64, np.float32)
    )  # fmt: skip
    parts = [Part("stem", ("x",), layer)]
    slow = plan_partition(parts, ["stem"], CONFIG, COSTS)
    assert slow.on_vta == {"stem"}
    assert "3 of 16 channels" in slow.decisions[0].reason
    fast = plan_partition(parts, ["stem"], CONFIG, COSTS, HostSpeed(1e11, 1e9, 1e9))
    assert not fast.regions
    forced = plan_partition(parts, ["stem"], CONFIG, COSTS, HostSpeed(1e11, 1e9, 1e9), {"stem": "vta"})
    assert forced.decisions[0].reason == "as asked for"


def test_a_layer_that_does_not_fit_stays_on_the_cpu_and_says_why() -> None:
    layer = replace(convolution("wide", "x"), in_shape=(1, 16, 80, 80), out_shape=(1, 16, 1, 1), kernel=80, padding=0)
    layer = replace(layer, weights=np.ones((16, 16, 80, 80), np.float32))
    parts = [Part("wide", ("x",), layer)]
    partition = plan_partition(parts, ["wide"], CONFIG, COSTS)
    assert partition.decisions[0].device == "cpu"
    assert "no tile" in partition.decisions[0].reason
    with pytest.raises(GraphError, match="'wide' cannot run on VTA: no tile"):
        plan_partition(parts, ["wide"], CONFIG, COSTS, forced={"wide": "vta"})
    with pytest.raises(GraphError, match=r"no layer 'x'.*wide"):
        plan_partition(parts, ["wide"], CONFIG, COSTS, forced={"x": "cpu"})


def test_the_verifier_sees_what_cannot_run() -> None:
    parts = [
        Part("a", ("x",), convolution("a", "x")),
        Part("b", ("a",)),
        Part("c", ("b",), convolution("c", "b")),
    ]
    good = plan_partition(parts, ["c"], CONFIG, COSTS, forced={"a": "vta", "c": "vta"})
    assert good.regions == (("a",), ("c",))
    with pytest.raises(GraphError, match=r"wait for each other: .*region 0"):
        verify_partition(replace(good, regions=(("a", "c"),)), parts)
    with pytest.raises(GraphError, match="exactly the layers that are on VTA"):
        verify_partition(replace(good, regions=(("a",),)), parts)
    with pytest.raises(GraphError, match="exactly the layers of the model"):
        verify_partition(Partition(good.decisions[:1], (("a",),), 0.0), parts)
