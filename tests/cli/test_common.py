from __future__ import annotations

import io
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.cli.common import InputShape, step_display

SHAPE = InputShape()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:1,3,224,224", ("x", [1, 3, 224, 224])),
        ("x:1x3x8", ("x", [1, 3, 8])),
        ("input:0:2", ("input:0", [2])),
        ("scalar:", ("scalar", [])),
        ("a b: 1, 2", ("a b", [1, 2])),
        ("x:0,3", ("x", [0, 3])),
        ("x:n,3,224,224", ("x", ["n", 3, 224, 224])),
        ("x:max_batch,3x8", ("x", ["max_batch", 3, 8])),
    ],
)
def test_input_shapes(text: str, expected: tuple[str, list[int]]) -> None:
    assert SHAPE.convert(text, None, None) == expected
    assert SHAPE.convert(expected, None, None) is expected


@pytest.mark.parametrize("text", ["", "x", "1,2", ":1", "x:-1", "x:1.5", "x:1,,2", "x:2n", "x:n+1"])
def test_what_is_no_input_shape(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not of the form NAME:1,3,224,224"):
        SHAPE.convert(text, None, None)


@given(st.text(max_size=20))
def test_any_text_is_an_input_shape_or_a_usage_error(text: str) -> None:
    try:
        name, shape = SHAPE.convert(text, None, None)
    except click.BadParameter:
        return
    assert name
    assert all(isinstance(dim, str) or dim >= 0 for dim in shape)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_steps_are_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, quiet, shown in ((Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with step_display(quiet=quiet) as report:
            report("fold the dough")
        assert ("fold the dough" in stream.getvalue()) is shown
