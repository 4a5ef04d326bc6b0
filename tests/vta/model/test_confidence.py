"""The bound of a mean that few samples were seen of: it holds in nineteen of twenty cases, and is not too wide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.backends.vta.model.confidence import CONFIDENCE, student_quantile, upper_mean

DRAWS = 2000


def gamma(rng: np.random.Generator, spread: float, count: int) -> np.ndarray:
    return rng.gamma(1 / spread**2, spread**2, (DRAWS, count))


def logarithmic(rng: np.random.Generator, spread: float, count: int) -> np.ndarray:
    deviation = np.log1p(spread**2) ** 0.5
    return np.exp(deviation * rng.standard_normal((DRAWS, count)) - deviation**2 / 2)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("spread", [0.25, 0.5])
@pytest.mark.parametrize("family", [gamma, logarithmic])
def test_the_bound_holds(family: Callable[..., np.ndarray], spread: float, count: int) -> None:
    """Errors whose mean is 1: the bound of few of them is above in 95 % of the draws, up to what draws differ by."""
    drawn = family(np.random.default_rng(count), spread, count)
    held = np.mean([upper_mean(row) >= 1 for row in drawn])
    # The bound is meant for a gamma distribution; the other one has a longer tail.
    allowed = 0.01 if family is gamma else 0.02
    assert held >= CONFIDENCE / 100 - allowed


@pytest.mark.parametrize(("count", "least"), [(3, 0.79), (8, 0.85), (16, 0.88)])
def test_errors_that_few_inputs_have(count: int, least: float) -> None:
    """Of a spread as large as the mean, most of what is lost is lost on few inputs; the plain mean is too low there."""
    drawn = gamma(np.random.default_rng(0), 1.0, count)
    assert np.mean([upper_mean(row) >= 1 for row in drawn]) >= least
    assert np.mean(drawn.mean(axis=1) >= 1) < 0.5


def test_more_samples_give_a_narrower_bound() -> None:
    """Of a usual spread, sixteen inputs leave a model nearly all of the error allowed; one leaves three fifths."""
    found = {count: np.median([upper_mean(row) for row in gamma(np.random.default_rng(1), 0.3, count)]) ** 0.5
             for count in (1, 2, 3, 8, 16, 100)}  # fmt: skip
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found[100] < 1.04
    assert found[16] < 1.1
    assert found[8] < 1.15
    assert 1.6 < found[1] < 1.8


@settings(max_examples=200, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(1e-200, 1e300), min_size=1, max_size=20))
def test_orders(values: list[float]) -> None:
    """The bound is at least the mean, goes with the unit, and is not below that of errors that are all smaller."""
    bound = upper_mean(values)
    mean = float(np.mean(np.array(values) / max(max(values), 1e-300)) * max(values))
    assert bound >= mean * (1 - 1e-9)
    assert upper_mean([value / 2 for value in values]) <= bound
    np.testing.assert_allclose(upper_mean([value * 2.0**-40 for value in values]), bound * 2.0**-40, rtol=1e-9)
    assert upper_mean(values[::-1]) == pytest.approx(bound)


def test_ends() -> None:
    assert upper_mean([0.0]) == upper_mean([0.0] * 9) == 0
    assert upper_mean([1.0, np.inf]) == upper_mean([np.nan]) == upper_mean([1.0, np.nan]) == np.inf
    assert 0 < upper_mean([0.0, 0.0, 1e-320]) < 1e-318
    # One of many samples has all that is lost: nothing but it tells how much.
    assert upper_mean([0.0] * 15 + [1.0]) > 3 / 16


@pytest.mark.parametrize(
    ("freedom", "expected"), [(4, 2.1318), (5, 2.0150), (6, 1.9432), (11, 1.7959), (19, 1.7291), (1e6, 1.6449)]
)
def test_quantiles(freedom: float, expected: float) -> None:
    """Of the tables of Student's distribution."""
    assert student_quantile(freedom) == pytest.approx(expected, rel=2e-3)
