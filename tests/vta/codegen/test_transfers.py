"""Transfers cover a table of elements: what they write is what the table says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.codegen.transfers import ANYTHING, ZERO, Transfer, find_transfers
from tvm_ext.errors import VTAProgramError


def written(transfers: list[Transfer]) -> dict[int, int]:
    elements: dict[int, int] = {}
    for transfer in transfers:
        for to, source in zip(*(part.tolist() for part in transfer.table()), strict=True):
            assert to not in elements
            elements[to] = source
    return elements


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=30, unique_by=lambda pair: pair[0]))
def test_any_elements(pairs: list[tuple[int, int]]) -> None:
    sram, dram = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    assert written(find_transfers(sram, dram, (1, 1), may_pad=False)) == dict(pairs)


@given(st.data())
def test_tiles_at_the_edge_of_an_image(data: st.DataObject) -> None:
    """Every plane of a tile is one transfer, whatever of it lies outside."""
    draw = data.draw
    planes, height, width = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    top, left = draw(st.integers(-3, height - 1)), draw(st.integers(-3, width - 1))
    rows = draw(st.integers(max(1, 1 - top), 8))
    columns = draw(st.integers(max(1, 1 - left), 8))
    plane, y, x = np.ogrid[:planes, top : top + rows, left : left + columns]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    dram = np.where(inside, (plane * height + y) * width + x, ZERO).ravel()
    transfers = find_transfers(np.arange(dram.size), dram, (rows, columns), may_pad=True)
    assert written(transfers) == dict(enumerate(dram.tolist()))
    if (dram == ZERO).any():
        assert len(transfers) == planes


def test_rows_at_equal_distances_are_one_transfer() -> None:
    dram = (np.arange(5)[:, None] * 20 + np.arange(7)).ravel()
    assert find_transfers(np.arange(35), dram, (5, 7), may_pad=False) == [Transfer(0, 0, 7, 5, 20)]
    assert find_transfers(np.arange(35), np.arange(35), (5, 7), may_pad=False) == [Transfer(0, 0, 35, 1, 35)]


def test_long_rows_are_cut() -> None:
    transfers = find_transfers(np.arange(70_000), np.arange(70_000), (1, 70_000), may_pad=False)
    assert [(part.dram, part.columns) for part in transfers] == [(0, 65_535), (65_535, 4465)]


def test_what_nobody_reads_is_not_loaded() -> None:
    dram = np.array([4, 5, ANYTHING, ANYTHING, 8, 9])
    assert written(find_transfers(np.arange(6), dram, (2, 3), may_pad=False)) == {0: 4, 1: 5, 4: 8, 5: 9}


@pytest.mark.parametrize(
    ("dram", "plane", "may_pad", "message"),
    [
        ([3, ZERO], (1, 2), False, "zeros are only loaded into the input memory"),
        ([ZERO, ZERO], (1, 2), True, "a tile lies in the padding altogether"),
        ([3, ZERO, 4], (1, 3), True, "not around a rectangle of elements"),
        ([ZERO] * 16 + [3], (1, 17), True, "padded by 16 rows or columns; an instruction has room for 15"),
    ],
)
def test_what_cannot_be_loaded(dram: list[int], plane: tuple[int, int], may_pad: bool, message: str) -> None:
    with pytest.raises(VTAProgramError, match=message):
        find_transfers(np.arange(len(dram)), np.array(dram), plane, may_pad)
