"""Which choices of a network to measure next, and which are best together by what was measured.

A choice alone pays for the conversions around it, which go where its neighbour is changed as well; and what two choices
save may be the same. So choices of neighbours are measured in pairs, too. What a pair takes beyond the sum of its parts
is a cost between them, and the whole is a selection problem as that of layouts: solved exactly on chains, trees and all
graphs that are narrow, in parts elsewhere (:mod:`tvm_ext.layout.selection`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, inf, pi, sqrt

from tvm_ext.layout.choices import Offer
from tvm_ext.layout.selection import Edge, Operator, Plan, SelectionProblem, plan_selection, verify_selection

LOOKS_FASTER = 0.995
"""Ratio of latencies from which on a choice is taken for faster."""

SINGLES_A_PAIR = 3
"""A pair is measured after so many single choices, as long as there are both."""

WORTH_A_PAIR = 0.1
"""Pairs that lose more than this share of the latency, one by one, are not measured together."""

MODEL_ERROR = 0.1
"""Standard deviation of what an option takes over what the machine model expects, both relative to the default."""

UNIT = 10**6
"""Costs are counted in this part of the default's latency."""

DEFAULT = ""


@dataclass(frozen=True)
class Trial:
    """One network that was measured.

    Attributes
    ----------
    chosen : mapping from key to option
        Where it differs from the machine model.
    ratio : float or None
        Its latency over the default's, the median of turns; None where it could not be used.
    reason : str
        Why it could not.
    """

    chosen: Mapping[str, str]
    ratio: float | None
    reason: str = ""


def next_network(
    offers: Sequence[Offer], neighbours: Collection[tuple[str, str]], trials: Sequence[Trial]
) -> dict[str, str] | None:
    """Choose what to measure after these trials; None where nothing is left.

    The order is the same whatever the budget: options of the pipeline first, then those of operators by the time that
    they are expected to save; now and then two choices of neighbours.
    """
    tried = {tuple(sorted(trial.chosen.items())) for trial in trials}
    pairs = sum(len(trial.chosen) == 2 for trial in trials)
    single = next((row for row in _singles(offers) if tuple(row.items()) not in tried), None)
    if single is not None and (len(trials) - pairs) < SINGLES_A_PAIR * (pairs + 1):
        return single
    pair = next((row for row in _pairs(neighbours, trials) if tuple(sorted(row.items())) not in tried), None)
    return single if pair is None else pair


def _singles(offers: Sequence[Offer]) -> Iterator[dict[str, str]]:
    rows = [(offer, option) for offer in offers for option in offer.options if option != offer.default]
    for offer, option in sorted(rows, key=lambda row: (row[0].work > 0, -expected_saving(*row), -row[0].work)):
        yield {offer.key: option}


def expected_saving(offer: Offer, option: str) -> float:
    """Give the seconds that an option is expected to save: of those where it saves any, which the model may not know.

    What it takes by the machine model is the middle of a normal distribution (expected improvement: Mockus, 1975).
    """
    if not offer.seconds:
        return 0.0
    default, other = (offer.seconds[offer.options.index(name)] for name in (offer.default, option))
    if not 0 < default < inf or not other < inf:
        return 0.0
    gain = (1 - other / default) / MODEL_ERROR
    return default * MODEL_ERROR * (gain * (1 + erf(gain / sqrt(2))) / 2 + exp(-(gain**2) / 2) / sqrt(2 * pi))


def _ratios(trials: Sequence[Trial]) -> dict[tuple[tuple[str, str], ...], float]:
    return {tuple(sorted(row.chosen.items())): row.ratio for row in trials if row.ratio is not None}


def _pairs(neighbours: Collection[tuple[str, str]], trials: Sequence[Trial]) -> list[dict[str, str]]:
    """List choices of neighbours that were measured alone, those that lose least first."""
    alone: dict[str, list[tuple[float, str]]] = {}
    for chosen, ratio in _ratios(trials).items():
        if len(chosen) == 1:
            alone.setdefault(chosen[0][0], []).append((ratio, chosen[0][1]))
    found = [
        (one + other, {first: option, second: beside})
        for first, second in neighbours
        for one, option in alone.get(first, ())
        for other, beside in alone.get(second, ())
        if one + other < 2 + WORTH_A_PAIR
    ]
    return [row for _, row in sorted(found, key=lambda item: (item[0], sorted(item[1].items())))]


def problem_of(offers: Sequence[Offer], trials: Sequence[Trial]) -> SelectionProblem:
    """Make a selection problem of what was measured: costs in millionths of the default's latency.

    A choice costs what the network takes with it; one that does not look faster costs no less than the default. Between
    two choices stands what their pair takes beyond that, where it was measured and is more than chance.
    """
    ratios = _ratios(trials)
    keys = [offer.key for offer in offers if any(len(row) == 1 and row[0][0] == offer.key for row in ratios)]
    options = {key: [DEFAULT, *(row[0][1] for row in ratios if len(row) == 1 and row[0][0] == key)] for key in keys}

    def cost(key: str, option: str) -> float:
        ratio = 1.0 if option == DEFAULT else ratios[((key, option),)]
        return ratio if ratio < LOOKS_FASTER else max(ratio, 1.0)

    operators = tuple(
        Operator(key, tuple(Plan(option, round(UNIT * cost(key, option))) for option in options[key])) for key in keys
    )
    tables: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for row, ratio in ratios.items():
        if len(row) == 2 and all(option in options.get(key, ()) for key, option in row):
            (first, one), (second, other) = sorted(row, key=lambda item: keys.index(item[0]))
            beyond = ratio - 1.0 - (cost(first, one) - 1.0) - (cost(second, other) - 1.0)
            if abs(beyond) > 1.0 - LOOKS_FASTER:
                tables.setdefault((keys.index(first), keys.index(second)), {})[one, other] = beyond
    edges = []
    for (source, target), beyond_of in tables.items():
        least = min(0.0, *beyond_of.values())  # costs are not negative: the same number more for all
        costs = tuple(
            tuple(round(UNIT * (beyond_of.get((one, other), 0.0) - least)) for other in options[keys[target]])
            for one in options[keys[source]]
        )
        edges.append(Edge(source, target, costs))
    return SelectionProblem(operators, tuple(edges))


def best_together(offers: Sequence[Offer], trials: Sequence[Trial]) -> dict[str, str]:
    """Choose for all keys together, by what was measured alone and in pairs; empty where nothing is faster."""
    problem = problem_of(offers, trials)
    if not problem.operators:
        return {}
    selection = plan_selection(problem)
    verify_selection(selection, problem)
    plans = [(row.name, row.plans[index].name) for row, index in zip(problem.operators, selection.choice, strict=True)]
    return {key: option for key, option in plans if option != DEFAULT}


def to_confirm(offers: Sequence[Offer], trials: Sequence[Trial], surest: float) -> list[dict[str, str]]:
    """List at most three networks: the best together, of its choices those that are surely faster, the fastest of all.

    Parameters
    ----------
    surest : float
        Ratio of latencies from which on a choice is surely faster alone.
    """
    ratios = _ratios(trials)
    together = best_together(offers, trials)
    sure = {key: option for key, option in together.items() if ratios[((key, option),)] < surest}
    fastest = min((row for row in ratios if ratios[row] < LOOKS_FASTER), key=lambda row: ratios[row], default=())
    unique = {tuple(sorted(row.items())): row for row in (together, sure, dict(fastest)) if row}
    return list(unique.values())
