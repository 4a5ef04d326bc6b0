"""No command writes its output over what it reads, by whatever name that goes, nor among the files of an artifact."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.commands import Commands
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.errors import OutputError
from tvm_ext.system.files import check_output, write_atomically


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, mlp_path: Path, artifact: Path) -> Path:
    """Fill a folder with a model, by several names, an artifact and an input."""
    shutil.copyfile(mlp_path, tmp_path / "m.onnx")
    shutil.copyfile(mlp_path, tmp_path / "m.png")
    (tmp_path / "link").symlink_to("m.onnx")
    os.link(tmp_path / "m.onnx", tmp_path / "hard")
    shutil.copytree(artifact, tmp_path / "a")
    (tmp_path / "b").symlink_to("a")
    metadata = json.loads((tmp_path / "a" / "metadata.json").read_text())
    arrays = {row["name"]: np.zeros(row["shape"], row["dtype"]) for row in metadata["inputs"]}
    np.savez(tmp_path / "in.npz", **arrays)
    np.save(tmp_path / "in.npy", next(iter(arrays.values())))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "inspect m.onnx -o m.onnx",
        "inspect m.onnx -o link",
        "inspect link -o m.onnx",
        "inspect m.onnx -o hard",
        "inspect m.onnx -o a/model.so",
        "inspect m.onnx -o b/page.html",
        "vta run m.onnx -o m.onnx",
        "vta run m.onnx --input in.npz -o in.npz",
        "vta run m.onnx --calibrate in.npz -o in.npz",
        "run a -o a/metadata.json",
        "run a -o b/out.npz",
        "run a --input in.npz -o in.npz",
        "run a --input x=in.npy -o in.npy",
        "run a --check m.onnx -o m.onnx",
        "bench m.onnx --json m.onnx",
        "memory m.png --plot m.png",
        "tune m.png --work-dir w --chart m.png",
        "vta cycles m.png --picture m.png",
    ],
)
def test_what_is_read_stays(commands: Commands, place: Path, arguments: str) -> None:
    before = contents(place)
    words = [str(place / word) if (place / word.partition("/")[0]).exists() else word for word in arguments.split()]
    words = [word.replace("x=in.npy", f"x={place}/in.npy") for word in words]
    words = [str(place / "w") if word == "w" else word for word in words]
    commands(*words).error(7, "cannot write", words[-1])
    assert contents(place) == before


def test_a_pipe_that_nobody_reads(commands: Commands, place: Path) -> None:
    os.mkfifo(place / "pipe")
    commands("run", place / "a", "-o", place / "pipe").error(7, "cannot write", "pipe: nobody reads this pipe")
    with pytest.raises(OutputError, match="nobody reads this pipe"):
        write_atomically(place / "pipe", "x")
    reader = os.open(place / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_output(place / "pipe", [])
    write_atomically(place / "pipe", "x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)


def test_what_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    (tmp_path / "old").write_text("")
    for output in ("old", "new", "missing/new"):
        check_output(tmp_path / output, [tmp_path / "model", tmp_path / "gone"])
    check_output("/dev/null", [tmp_path / "model"])


def test_a_current_folder_that_is_gone(
    tmp_path: Path, compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OutputError, match="rel is relative to a folder that was deleted; give an absolute path"):
        compiled.save("rel")
    with pytest.raises(OutputError, match="cannot write rel"):
        check_output("rel", [])
    assert compiled.save(tmp_path / "whole") == tmp_path / "whole"


def test_unwritable_paths_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path, [])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*: .*/file is not a folder; choose another path"):
        check_output(tmp_path / "file" / "x.json", [])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(OutputError, match="no permission"):
        check_output(tmp_path / "x.json", [])


def test_writable_path_is_accepted_and_not_touched(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "x.json", [])
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    ["run a", "vta run m.onnx", "hexagon profile m.onnx", "vta cycles m.onnx", "inspect m.onnx", "profile m.onnx"],
)
def test_where_nothing_can_be_written_is_said_before_the_work(commands: Commands, place: Path, arguments: str) -> None:
    words = arguments.split()
    option, name = ("--picture", "x.png") if {"hexagon", "cycles"} & set(words) else ("-o", "x")
    output = place / "in.npy" / "folder" / name
    answer = commands(*words[:-1], place / words[-1], option, output)
    answer.error(7, f"cannot write {output}: {place}/in.npy is not a folder; choose another path")


def test_missing_folders_are_made(commands: Commands, place: Path) -> None:
    assert commands("run", place / "a", "-o", place / "new" / "folder" / "y.npz").code == 0
    assert np.load(place / "new" / "folder" / "y.npz").files
