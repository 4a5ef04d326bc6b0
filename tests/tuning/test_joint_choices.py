"""Choices of a network together: compared with trying all of them, on random graphs; what is measured next."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.layout.choices import Offer
from tvm_ext.layout.relax.neighbours import neighbouring_convolutions
from tvm_ext.tuning.joint_choices import MODEL_ERROR, Trial, best_together, expected_saving, next_network, to_confirm

Costs = dict[tuple[str, str], int]
Between = dict[tuple[tuple[str, str], tuple[str, str]], int]
"""In hundredths of the default's latency: what a choice takes beyond it, and what two of them do beyond their sum."""


def offers_of(costs: Costs) -> list[Offer]:
    keys = list(dict.fromkeys(key for key, _ in costs))
    return [
        Offer(key, ("default", *(option for of, option in costs if of == key)), "default", 10 - number)
        for number, key in enumerate(keys)
    ]


def latency(chosen: Mapping[str, str], costs: Costs, between: Between) -> float:
    rows = list(chosen.items())
    pairs = sum(between.get((one, other), 0) for one in rows for other in rows)
    return 1.0 + (sum(costs[row] for row in rows) + pairs) / 100


@st.composite
def networks(draw: st.DrawFn) -> tuple[Costs, Between]:
    """Chains, trees and other graphs of up to six kinds of operators."""
    count = draw(st.integers(1, 6))
    cost = st.integers(-6, 9)
    costs = {(str(number), option): draw(cost) for number in range(count) for option in "ab"[: draw(st.integers(1, 2))]}
    edges = {(draw(st.integers(0, number - 1)), number) for number in range(1, count)}  # a tree
    if draw(st.booleans()):
        edges |= set(draw(st.lists(st.sampled_from(list(itertools.combinations(range(count), 2)) or [(0, 0)]))))
    between = {
        (one, other): draw(st.integers(-12, 12))
        for first, second in sorted(edges)
        for one in costs
        for other in costs
        if (one[0], other[0]) == (str(first), str(second)) and first != second
    }
    return costs, between


@given(networks())
def test_no_other_choice_is_faster_by_what_was_measured(network: tuple[Costs, Between]) -> None:
    costs, between = network
    measured = [Trial({key: option}, 1 + cost / 100) for (key, option), cost in costs.items()]
    measured += [Trial(dict(pair), latency(dict(pair), costs, between)) for pair in between]
    offers = offers_of(costs)
    found = best_together(offers, measured)
    ways = [[None, *(row for row in costs if row[0] == offer.key)] for offer in offers]
    every = (dict(row for row in way if row is not None) for way in itertools.product(*ways))
    assert latency(found, costs, between) == pytest.approx(min(latency(way, costs, between) for way in every))


def test_two_choices_pay_together_that_do_not_alone() -> None:
    costs = {("a", "half"): 2, ("b", "half"): 2, ("c", "x"): -3}
    alone = [Trial({key: option}, 1 + cost / 100) for (key, option), cost in costs.items()]
    offers = offers_of(costs)
    assert best_together(offers, alone) == {"c": "x"}
    pair = Trial({"b": "half", "a": "half"}, 0.95)
    assert best_together(offers, [*alone, pair]) == {"a": "half", "b": "half", "c": "x"}
    # Two that save the same are not taken twice: c alone is as good as both.
    rival = [Trial({"a": "half"}, 0.97), *alone[1:], Trial({"a": "half", "c": "x"}, 1.02)]
    assert len(best_together(offers, rival)) == 1


def test_chance_changes_nothing() -> None:
    costs = {("a", "x"): 0, ("b", "x"): 0}
    trials = [Trial({"a": "x"}, 0.997), Trial({"b": "x"}, 0.998), Trial({"a": "x", "b": "x"}, 0.9975)]
    assert best_together(offers_of(costs), trials) == {}
    assert best_together([], []) == {}
    assert best_together(offers_of(costs), [Trial({"a": "x"}, None, "refused")]) == {}


def test_what_is_confirmed() -> None:
    trials = [
        Trial({"a": "1"}, 0.9),
        Trial({"a": "2"}, 0.85),
        Trial({"b": "1"}, 0.99),
        Trial({"c": "1"}, 1.0),
        Trial({"d": "1"}, None, "refused"),
        Trial({"e": "1"}, 0.97),
    ]
    offers = [Offer(key, ("0", "1", "2"), "0") for key in "abcde"]
    found = to_confirm(offers, trials, surest=0.98)
    assert found == [{"a": "2", "b": "1", "e": "1"}, {"a": "2", "e": "1"}, {"a": "2"}]
    assert to_confirm(offers, [], 0.98) == []


def test_the_order_of_measurements_does_not_depend_on_the_budget() -> None:
    costs = {(key, option): 1 for key in "abcd" for option in "xyz"}
    offers, neighbours = offers_of(costs), (("a", "b"), ("c", "d"))
    trials: list[Trial] = []
    while (chosen := next_network(offers, neighbours, trials)) is not None:
        assert dict(chosen) not in [dict(trial.chosen) for trial in trials]
        trials.append(Trial(chosen, None if chosen == {"b": "y"} else 1.01))
    pairs = [dict(trial.chosen) for trial in trials if len(trial.chosen) == 2]
    assert len(trials) - len(pairs) == len(costs)
    assert {tuple(pair) for pair in pairs} == {("a", "b"), ("c", "d")}
    assert len(pairs) == 3 * 2 + 3 * 3  # what could not be used alone is in no pair
    # A pair after three single choices, as soon as there is one: of a and b there is none before b was tried.
    assert [len(trial.chosen) for trial in trials[:8]] == [1, 1, 1, 1, 2, 1, 1, 2]


def test_what_is_expected_to_save_most_is_measured_first() -> None:
    offers = [
        Offer("small", ("0", "faster"), "0", 10, (1.0, 0.8)),
        Offer("large", ("slow", "0", "alike"), "0", 10, (30.0, 20.0, 20.2)),
        Offer("unknown", ("0", "1"), "0", 99),
        Offer("endless", ("0", "1"), "0", 7, (1.0, inf)),
        Offer("option", ("on", "off"), "on"),
    ]
    order, trials = [], []
    while (chosen := next_network(offers, (), trials)) is not None:
        order += [(key, option) for key, option in chosen.items()]
        trials.append(Trial(chosen, 1.0))
    assert order[:4] == [("option", "off"), ("large", "alike"), ("small", "faster"), ("large", "slow")]
    assert set(order[4:]) == {("unknown", "1"), ("endless", "1")}


@given(st.floats(0.3, 3.0), st.floats(1e-6, 1.0))
def test_expected_savings_are_those_of_a_normal_distribution(ratio: float, seconds: float) -> None:
    drawn = np.random.default_rng(0).normal(ratio, MODEL_ERROR, 200_000)
    saved = seconds * np.maximum(1 - drawn, 0).mean()
    found = expected_saving(Offer("key", ("a", "b"), "a", 1, (seconds, ratio * seconds)), "b")
    assert found == pytest.approx(saved, rel=0.02, abs=1e-4 * seconds)


def test_pairs_that_lose_much_are_left_out() -> None:
    offers = offers_of({("a", "x"): 0, ("b", "x"): 0})
    trials = [Trial({"a": "x"}, 1.08), Trial({"b": "x"}, 1.03)]
    assert next_network(offers, [("a", "b")], trials) is None
    assert next_network(offers, [("a", "b")], [trials[0], Trial({"b": "x"}, 1.01)]) == {"a": "x", "b": "x"}


def test_convolutions_that_follow_one_another() -> None:
    def weights(outputs: int, inputs: int, size: int) -> relax.Constant:
        return relax.const(np.ones((outputs, inputs, size, size), "float32"))

    def network(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(x, weights(8, 3, 1)))))
        left = bb.emit(relax.op.nn.conv2d(first, weights(8, 8, 3), padding=1))
        both = bb.emit(relax.op.add(left, first))
        return relax.op.nn.conv2d(bb.emit(relax.op.nn.max_pool2d(both, (2, 2), (2, 2))), weights(5, 8, 1))

    found = neighbouring_convolutions(graph(network, [((1, 3, 6, 6), "float32")]))
    names = {tuple(key.removeprefix("convolution ").partition(",")[0] for key in pair) for pair in found}
    one, two, three = "3x6x6 -> 8", "8x6x6 -> 8", "8x3x3 -> 5"
    assert names == {(one, two), (one, three), (two, three)}
