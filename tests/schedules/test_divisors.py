from __future__ import annotations

import pytest

from tvm_ext.schedules.divisors import divisors


@pytest.mark.parametrize("number", [*range(200), 1024, 10_007])
def test_each_number_is_tried(number: int) -> None:
    assert divisors(number) == [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def test_an_axis_as_long_as_int32_allows() -> None:
    assert divisors(2**31 - 1) == [1, 2**31 - 1]
    assert len(divisors(2**40)) == 41
