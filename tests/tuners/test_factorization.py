from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.tuners.factorization import divisors, factorizations


@given(st.integers(1, 60), st.integers(1, 4))
def test_every_factorization_is_listed_once(extent: int, parts: int) -> None:
    expected = {row for row in itertools.product(divisors(extent), repeat=parts) if prod(row) == extent}
    found = factorizations(extent, parts)
    assert len(found) == len(set(found))
    assert set(found) == expected


@given(st.integers(1, 5000))
def test_divisors(extent: int) -> None:
    assert list(divisors(extent)) == [number for number in range(1, extent + 1) if extent % number == 0]


@pytest.mark.parametrize(("extent", "parts", "count"), [(64, 4, 84), (224, 4, 224), (3, 2, 2), (512, 4, 220)])
def test_known_counts(extent: int, parts: int, count: int) -> None:
    assert len(factorizations(extent, parts)) == count


def test_the_last_factor_is_bounded() -> None:
    assert all(row[-1] <= 16 for row in factorizations(224, 3, 16))
    assert factorizations(7, 1, 3) == ()
