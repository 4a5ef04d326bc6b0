"""The combination table: its counts, its axes, and what follows from them."""

from __future__ import annotations

from collections import Counter

import pytest

from tvm_ext.fusion.combination import TABLE, Colour, combine
from tvm_ext.graph.mapping_types import MappingType, compose

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
FIVE = [kind for kind in MappingType if kind is not OPAQUE]


def test_counts_of_the_source() -> None:
    """23 of the 25 cells need code; the source has one code generation rule for each of them."""
    assert set(TABLE) == {(first, second) for first in FIVE for second in FIVE}
    assert Counter(cell.colour for cell in TABLE.values()) == {Colour.GREEN: 13, Colour.YELLOW: 10, Colour.RED: 2}
    red = {pair for pair, cell in TABLE.items() if not cell.is_allowed}
    assert red == {(ONE_TO_MANY, MANY_TO_MANY), (MANY_TO_MANY, MANY_TO_MANY)}


@pytest.mark.parametrize("kind", FIVE)
def test_one_to_one_goes_with_everything(kind: MappingType) -> None:
    assert TABLE[ONE_TO_ONE, kind] == TABLE[kind, ONE_TO_ONE]
    assert TABLE[ONE_TO_ONE, kind].colour is Colour.GREEN
    assert TABLE[ONE_TO_ONE, kind].mapping is kind


@pytest.mark.parametrize(("first", "second"), TABLE)
def test_the_more_complex_type_wins(first: MappingType, second: MappingType) -> None:
    cell = TABLE[first, second]
    assert cell.mapping is (compose(first, second) if cell.is_allowed else OPAQUE)


@pytest.mark.parametrize("kind", MappingType)
def test_opaque_is_never_fused(kind: MappingType) -> None:
    assert not combine(kind, OPAQUE).is_allowed
    assert not combine(OPAQUE, kind).is_allowed


def test_maximum_over_separate_windows() -> None:
    """It is fused into what reads it, and never into a convolution before it."""
    window = combine(ONE_TO_ONE, MANY_TO_MANY, into_window=True)
    assert window.is_allowed
    assert combine(window.mapping, MANY_TO_MANY).is_allowed
    assert not combine(MANY_TO_MANY, MANY_TO_MANY, into_window=True).is_allowed
    assert not combine(ONE_TO_MANY, MANY_TO_MANY, into_window=True).is_allowed
