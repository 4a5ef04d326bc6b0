"""Landscapes that were recorded: what is written is read, and a damaged file is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_ext.errors import TuningError
from tvm_ext.tuners.replay.recorded import RecordedLandscape, load_landscapes, save_landscapes
from tvm_ext.tuners.space import ConfigSpace, Knob

SPACE = ConfigSpace([Knob.split("tile", 6, 2), Knob("threads", (1, 2)), Knob("order", ("ab", "ba", "cab"))])
CYCLES = np.arange(SPACE.size, dtype=np.uint32) * 100
"""Of one configuration, index 0, it is known that it does not work."""


def landscape(name: str = "layer", clock: float = 1e8) -> RecordedLandscape:
    return RecordedLandscape(name, SPACE, CYCLES, clock)


def test_times_validity_and_the_best_are_those_of_the_table() -> None:
    vectors = SPACE.vectors(np.arange(SPACE.size))
    found = landscape().seconds(vectors)
    assert found[0] == np.inf
    np.testing.assert_allclose(found[1:], CYCLES[1:] / 1e8)
    np.testing.assert_array_equal(landscape().works(vectors), CYCLES > 0)
    np.testing.assert_array_equal(landscape().measure(vectors, 3), found)
    assert landscape().best_seconds == 100 / 1e8
    assert landscape().valid_share == (SPACE.size - 1) / SPACE.size


def test_a_table_that_does_not_fit_its_space_is_refused() -> None:
    with pytest.raises(TuningError, match=f"space of {SPACE.size} configurations"):
        RecordedLandscape("layer", SPACE, CYCLES[1:])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "two.npz"
    save_landscapes(path, {7: landscape(), 9: landscape("other", 2e8)}, {"model": "made up"})
    found = load_landscapes(path)
    assert {number: (row.name, row.clock) for number, row in found.items()} == {7: ("layer", 1e8), 9: ("other", 2e8)}
    for row in found.values():
        assert row.space.signature() == SPACE.signature()
        assert [knob.choices for knob in row.space.knobs] == [knob.choices for knob in SPACE.knobs]
        np.testing.assert_array_equal(row.cycles, CYCLES)


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "damaged.npz"
    save_landscapes(path, {7: landscape()}, {})
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(TuningError, match=r"damaged\.npz"):
        load_landscapes(path)


@pytest.mark.parametrize("part", [0.2, 0.4, 0.6])
def test_damage_within_a_table_is_noticed(tmp_path: Path, part: float) -> None:
    """A stream that cannot be inflated, or a sum that does not fit."""
    path = tmp_path / "flipped.npz"
    cycles = np.random.default_rng(0).integers(1, 1 << 30, SPACE.size).astype(np.uint32)
    save_landscapes(path, {7: RecordedLandscape("layer", SPACE, cycles)}, {})
    data = bytearray(path.read_bytes())
    at = int(part * len(data))
    data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    path.write_bytes(data)
    with pytest.raises(TuningError, match=r"flipped\.npz"):
        load_landscapes(path)


@pytest.mark.parametrize("about", ["[]", "{", '{"landscapes": [{"number": 1}]}', '{"landscapes": 3}'])
def test_a_file_of_other_contents_is_refused(tmp_path: Path, about: str) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, about=np.array(about))
    with pytest.raises(TuningError, match=r"other\.npz"):
        load_landscapes(path)
    np.save(tmp_path / "plain.npy", CYCLES)
    with pytest.raises(TuningError, match=r"plain\.npy"):
        load_landscapes(tmp_path / "plain.npy")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"none\.npz"):
        load_landscapes(tmp_path / "none.npz")


def test_landscapes_of_vta_come_with_the_package() -> None:
    found = load_landscapes()
    assert len(found) == 13
    assert sum(row.space.size for row in found.values()) == 141_696  # as docs/results/hardware_aware.json counts
    for row in found.values():
        assert 0 < row.valid_share < 1
        best = row.space.vectors(np.flatnonzero(row.cycles == row.cycles[row.cycles > 0].min()))
        assert row.works(best).all()
        np.testing.assert_allclose(row.seconds(best), row.best_seconds)
