"""Folders of measurers: gone afterwards, also those that killed runs left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tvm_ext.tuners.measure.scratch import PREFIX, ScratchFolder


def test_folders_of_killed_runs_go_and_those_in_use_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = ScratchFolder()
    script = (
        "import time; from tvm_ext.tuners.measure.scratch import ScratchFolder; folder = ScratchFolder(); "
        "print(folder.path, flush=True); time.sleep(60)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "library.so").touch()
        old = time.time() - 3600
        for path in (mine.path, left):
            os.utime(path, (old, old))
        ScratchFolder().close()
        assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, left.name}, "both are in use"
        other.kill()
    new = ScratchFolder()
    assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, new.path.name}
    for folder in (mine, new):
        folder.close()
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_a_folder_that_is_new_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one whose process has not locked it yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{PREFIX}new").mkdir()
    ScratchFolder().close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}new"]
