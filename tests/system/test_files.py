"""Files appear whole or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_ext.artifact.metadata import check_file, read_metadata
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.simulate.listing import load_stream
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.compiler import compile
from tvm_ext.database.files import lines_of
from tvm_ext.errors import (
    InputError,
    ModelError,
    OptionError,
    OutputError,
    TuningError,
    TvmExtError,
    VTAConfigError,
    VTAProgramError,
)
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.inputs import read_arrays
from tvm_ext.system.files import exchange, require_regular, write_atomically


def test_text_and_bytes(tmp_path: Path) -> None:
    for data, expected in (("é\n", "é\n".encode()), (b"\0", b"\0")):
        write_atomically(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    read, write = os.pipe()
    write_atomically(Path(f"/proc/self/fd/{write}"), "x")
    assert os.read(read, 10) == b"x"
    os.close(read)
    os.close(write)


def test_errors_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_where_nothing_can_be_written(path: str) -> None:
    with pytest.raises(OutputError, match="cannot write "):
        write_atomically(Path(path), "x")


def test_folders_are_made_where_asked(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", "x", make_folders=True)
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_two_names_are_exchanged_in_one_step(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["other"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["one"]
    assert not exchange(tmp_path / "one", tmp_path / "missing")
    assert (tmp_path / "one").exists()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    kinds = {"/dev/zero": "a device", tmp_path / "pipe": "a pipe", tmp_path / "socket": "a socket"}
    for place, kind in kinds.items():
        with pytest.raises(ModelError, match=f"^{place} is {kind}, and only a regular file can be read"):
            require_regular(place, ModelError)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for place in ("file", "link", "missing"):
        require_regular(tmp_path / place, ModelError)


READERS: dict[str, tuple[type[TvmExtError], Callable[[Path], object]]] = {
    "model": (ModelError, compile),
    "metadata": (ModelError, read_metadata),
    "library": (ModelError, lambda path: check_file(path, {})),
    "input": (InputError, lambda path: read_arrays([], [f"x={path}"])),
    "tuning records": (TuningError, lines_of),
    "profiles": (OptionError, ProfileDatabase),
    "VTA configuration": (VTAConfigError, load_config),
    "VTA stream": (VTAProgramError, load_stream),
    "VTA recording": (VTAProgramError, load_recording),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_open_no_pipe(tmp_path: Path, reader: str) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    refusal, read = READERS[reader]
    with pytest.raises(refusal, match="is a pipe, and only a regular file can be read"):
        read(tmp_path / "pipe")
