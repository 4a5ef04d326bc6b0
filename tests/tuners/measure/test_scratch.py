"""Folders of measurers: gone afterwards, also those that killed and interrupted runs left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tvm_ext.tuners.measure.scratch import ScratchFolder

HOLD = """
import time
from tvm_ext.cli import interrupt
from tvm_ext.tuners.measure.scratch import ScratchFolder
interrupt.install()
folder = ScratchFolder()
print(folder.path, flush=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:  # it is at work on something that it cannot leave
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_folders_of_runs_that_were_ended_go_and_those_in_use_stay(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = ScratchFolder()
    assert mine.path.stat().st_mode & 0o777 == 0o700
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "library.so").touch()
        ScratchFolder().close()
        assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, left.name}, "both are in use"
        other.send_signal(number)
        other.wait()
    if number == signal.SIGKILL:
        assert left.exists()
        ScratchFolder().close()
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.close()
    assert not list(tmp_path.iterdir())
