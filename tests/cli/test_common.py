from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.cli.common import InputShape, step_display, write_atomically
from tvm_ext.errors import OutputError

SHAPE = InputShape()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:1,3,224,224", ("x", [1, 3, 224, 224])),
        ("x:1x3x8", ("x", [1, 3, 8])),
        ("input:0:2", ("input:0", [2])),
        ("scalar:", ("scalar", [])),
        ("a b: 1, 2", ("a b", [1, 2])),
    ],
)
def test_input_shapes(text: str, expected: tuple[str, list[int]]) -> None:
    assert SHAPE.convert(text, None, None) == expected
    assert SHAPE.convert(expected, None, None) is expected


@pytest.mark.parametrize("text", ["", "x", "1,2", ":1", "x:0", "x:-1", "x:1.5", "x:1,,2", "x:n"])
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
    assert all(dim > 0 for dim in shape)


class TestWriteAtomically:
    def test_text_and_bytes(self, tmp_path: Path) -> None:
        for data, expected in (("é\n", "é\n".encode()), (b"\0", b"\0")):
            write_atomically(tmp_path / "file", data)
            assert (tmp_path / "file").read_bytes() == expected
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_mode_follows_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            write_atomically(tmp_path / "file", "x")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600

    def test_what_is_no_file_is_written_to(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        write_atomically(Path(f"/proc/self/fd/{write}"), "x")
        assert os.read(read, 10) == b"x"
        os.close(read)
        os.close(write)

    def test_errors_leave_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("old")

        def fail(self: Path, data: bytes) -> int:
            with self.open("wb") as stream:
                stream.write(data[:1])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", fail)
        with pytest.raises(OutputError, match=r"cannot write .*file: No space left on device"):
            write_atomically(tmp_path / "file", "new")
        assert (tmp_path / "file").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    @pytest.mark.parametrize("path", ["/nowhere/file", "/proc/file", "/", "x" * 300])
    def test_where_nothing_can_be_written(self, path: str) -> None:
        with pytest.raises(OutputError, match="cannot write "):
            write_atomically(Path(path), "x")


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
