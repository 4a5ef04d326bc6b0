"""Whatever the times of kernels are, what is left is no slower than the untuned network, and few networks are timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.database.marks import Identity
from tvm_ext.tuning.harmful_records import SLOWER, NetworkTimes, harmful_records
from tvm_ext.tuning.side_by_side import Ratio


class Network:
    """Kernels of one second each without records, and of other times with them, alone and in the network."""

    def __init__(self, tuned: Mapping[Identity, float], seen: Mapping[Identity, float] | None = None) -> None:
        self.tuned, self.seen = tuned, tuned if seen is None else seen
        self.compared: list[tuple[frozenset[Identity], bool]] = []

    def seconds(self, left: Collection[Identity]) -> float:
        return sum(1.0 if record in left else seconds for record, seconds in self.tuned.items())

    def compare(self, left: Collection[Identity], again: bool) -> tuple[list[float], list[float]]:
        self.compared.append((frozenset(left), again))
        drift = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 1.4, 0.7, 1.0, 1.1, 1.0]  # falls on both alike
        return [len(self.tuned) * by for by in drift], [self.seconds(left) * by for by in drift]

    def in_place(self) -> dict[Identity, Ratio]:
        return {record: Ratio(seconds, seconds, seconds) for record, seconds in self.seen.items()}


def named(seconds: Collection[float]) -> dict[Identity, float]:
    return {("kernel", str(number)): value for number, value in enumerate(seconds)}


times = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=8)


@given(times, st.randoms(use_true_random=False))
def test_what_is_left_is_not_slower(tuned: list[float], random) -> None:  # type: ignore[no-untyped-def]
    """Also where kernels seem other than they are, or cannot be seen where they run."""
    truth = named(tuned)
    seen = {record: random.choice([0.5, 1.0, 1.5]) * value for record, value in truth.items() if random.random() < 0.8}
    network = Network(truth, seen)
    found = harmful_records(truth, network.compare, network.in_place)
    assert network.seconds(found.left) <= SLOWER * len(tuned) * (1 + 1e-9)
    assert len(network.compared) <= 4
    assert found.before == pytest.approx(len(tuned))
    assert found.found == pytest.approx(network.seconds(()))
    assert found.after == pytest.approx(network.seconds(found.left))
    if network.seconds(()) <= len(tuned):
        assert not found.left


@given(times)
def test_only_what_does_harm_is_left_alone_where_kernels_are_seen_as_they_are(tuned: list[float]) -> None:
    truth = named(tuned)
    network = Network(truth)
    found = harmful_records(truth, network.compare, network.in_place)
    if found.left:
        assert {truth[record] > SLOWER for record in found.left} == {True}


def test_both_comparisons_have_to_agree() -> None:
    network = Network(named([2.0]))

    def lucky(left: Collection[Identity], again: bool) -> tuple[list[float], list[float]]:
        base, laps = network.compare(left, again)
        return (base, base) if again else (base, laps)

    found = harmful_records(named([2.0]), lucky, network.in_place)
    assert not found.left
    assert [again for _, again in network.compared] == [False, True]
    assert found.after == found.before


def test_nothing_more_is_compiled_where_the_network_is_faster() -> None:
    network = Network(named([0.9, 1.05]))
    found = harmful_records(named([0.9, 1.05]), network.compare, network.in_place)
    assert network.compared == [(frozenset(), False)]
    assert found.after == found.found < found.before


def test_a_run_says_it_in_a_sentence() -> None:
    assert NetworkTimes(4e-3, 3.5e-3, 3.5e-3).sentence() == (
        "the whole network takes 3.5 ms tuned and 4 ms untuned, timed in turns"
    )
    assert NetworkTimes(3.9e-3, 6.4e-3, 3.88e-3, ("a", "b", "c", "d")).sentence() == (
        "the whole network took 6.4 ms with all that was found and 3.9 ms untuned, timed in turns; 4 kernels keep "
        "their own schedules (a, b, c and 1 more), and it takes 3.88 ms"
    )
    assert "1 kernel keeps its own schedule (conv), and it takes 950 µs" in (
        NetworkTimes(950e-6, 1.2e-3, 950e-6, ("conv",)).sentence()
    )
