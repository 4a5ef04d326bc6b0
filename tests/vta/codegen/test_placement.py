"""Tiles on the chip: none overlaps another that lives, contents that are there are found, the verifier sees faults."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.codegen.placement import Place, Tile, place_tiles, verify_places
from tvm_ext.errors import GraphError, VTAProgramError

DEPTHS, BYTES = {"inp": 40, "acc": 30}, {"inp": 16, "acc": 64}


@st.composite
def tile_lists(draw: st.DrawFn) -> list[Tile]:
    tiles = []
    for number in range(draw(st.integers(1, 25))):
        first = 3 * number + draw(st.integers(0, 5))
        group = draw(st.integers(0, 2))
        memory = draw(st.sampled_from(["inp", "acc"]))
        contents = draw(st.none() | st.integers(0, 2))
        key = None if contents is None else (contents, memory, group)
        tiles.append(
            Tile(f"tile {number}", memory, (4, 7, 11)[group], first, first + draw(st.integers(0, 6)), key, group)
        )
    return tiles


@given(tile_lists(), st.integers(1, 3))
def test_any_tiles(tiles: list[Tile], turns: int) -> None:
    with contextlib.suppress(VTAProgramError):
        verify_places(place_tiles(tiles, DEPTHS, BYTES, turns), tiles, DEPTHS)


def test_tiles_of_a_group_take_turns() -> None:
    tiles = [Tile(f"{n}", "inp", 8, 2 * n, 2 * n + 1) for n in range(5)]
    assert [place.base for place in place_tiles(tiles, DEPTHS, BYTES)] == [0, 8, 0, 8, 0]
    assert [place.base for place in place_tiles(tiles, DEPTHS, BYTES, turns=3)] == [0, 8, 16, 0, 8]
    alive = [replace(tile, last=9) for tile in tiles[:4]]
    assert [place.base for place in place_tiles(alive, DEPTHS, BYTES)] == [0, 8, 16, 24]


def test_what_is_there_is_not_loaded_again() -> None:
    tiles = [Tile(name, "inp", 8, 2 * n, 2 * n + 1, contents=name) for n, name in enumerate("abacbab")]
    places = place_tiles(tiles, DEPTHS, BYTES)
    assert [(place.base, place.is_loaded) for place in places] == [
        (0, False), (8, False), (0, True), (8, False), (0, False), (8, False), (0, True),
    ]  # fmt: skip
    verify_places(places, tiles, DEPTHS)


def test_tiles_that_do_not_fit() -> None:
    with pytest.raises(VTAProgramError, match="a: 784 bytes do not fit the inp memory of 640; choose smaller tiles"):
        place_tiles([Tile("a", "inp", 49, 0, 1)], DEPTHS, BYTES)
    both = [Tile("a", "acc", 20, 0, 5), Tile("b", "acc", 20, 3, 4)]
    with pytest.raises(VTAProgramError, match=r"b: 1280 bytes do not fit .* of 1920, of which 1280 are in use"):
        place_tiles(both, DEPTHS, BYTES)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([Place(35), Place(0)], "a at 35 leaves the inp memory"),
        ([Place(4), Place(0)], "b overlaps a, which is still in use"),
        ([Place(0), Place(20, True)], "b is not loaded, but element 20 does not hold its contents"),
    ],
)
def test_the_verifier_sees_faults(places: list[Place], message: str) -> None:
    tiles = [Tile("a", "inp", 8, 0, 3, "x"), Tile("b", "inp", 8, 2, 4, "x")]
    with pytest.raises(GraphError, match=message):
        verify_places(places, tiles, DEPTHS)
