"""A damaged archive is refused, whatever is damaged; what is wrong is said in a few words."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.tuners.archives import read_arrays, spelled


def test_what_was_written_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", rows=np.arange(7), about=np.array("text"))
    found = read_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["rows"], np.arange(7))
    assert str(found["about"]) == "text"


def test_every_byte_may_be_damaged(tmp_path: Path) -> None:
    """Also those that say how the archive is packed, of which each has an error of its own."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, rows=np.arange(40.0).reshape(5, 8))
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        for value in (0x00, 0x21, 0xFF):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with contextlib.suppress(ValueError):
                refused += 1
                found = read_arrays(path)
                refused -= 1
                for rows in found.values():  # dates and the like are damaged without harm
                    assert (rows == np.arange(40.0).reshape(5, 8)).all()
    assert refused > len(whole)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.npz", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(OSError, match=r"none|directory") as caught:
            read_arrays(path)
        assert spelled(caught.value) == words
    assert spelled(KeyError("about")) == "it has no 'about'"
