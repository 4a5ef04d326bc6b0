"""Sizes of open dimensions that a user names: read, checked against ranges and conditions, completed."""

from __future__ import annotations

import pytest

from tvm_ext.errors import OptionError
from tvm_ext.sizes import all_extents, parse_size
from tvm_ext.tensor_spec import TensorSpec

SPECS = [
    TensorSpec("x", ("n", 4), "float32", ranges=((2, 8), None)),
    TensorSpec("y", ("4*n", "t"), "float32"),
]


@pytest.mark.parametrize("text", ["", "n", "n=", "=3", "n=-1", "n=1,n=2", "n=1.5", "n=1,,m=2"])
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(OptionError, match="option --size"):
        parse_size(text)


def test_text() -> None:
    assert parse_size("batch=1, seq=128") == {"batch": 1, "seq": 128}


def test_what_is_not_named_is_small_and_what_is_computed_follows() -> None:
    assert all_extents({"n": 3}, SPECS) == {"n": 3, "4*n": 12, "t": 1}
    assert all_extents({}, SPECS) == {"n": 2, "4*n": 8, "t": 1}
    assert all_extents({"t": 9}, SPECS, ["t > 4*n"]) == {"n": 2, "4*n": 8, "t": 9}


@pytest.mark.parametrize(
    ("size", "conditions", "words"),
    [
        ({"m": 3}, [], "no open dimension 'm'; it has n, t"),
        ({"n": 9}, [], r"n = 9 is not in the range of that dimension, 2\.\.8"),
        ({"t": 0}, [], r"t = 0 is not in the range of that dimension, 1\.\.$"),
        ({"t": 2**40}, [], r"t = 1099511627776 is not in the range of that dimension, 1\.\.2147483647$"),
        ({"n": 3}, ["n % 2 == 0"], "n=3.* does not fulfil n % 2 == 0"),
    ],
)
def test_sizes_that_a_model_does_not_take(size: dict[str, int], conditions: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        all_extents(size, SPECS, conditions)


def test_a_model_without_open_dimensions() -> None:
    with pytest.raises(OptionError, match="all its extents are fixed"):
        all_extents({"n": 3}, [TensorSpec("x", (3, 4), "float32")])
