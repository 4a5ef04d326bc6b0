"""However the parent ends, no worker outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench import conftest as engines
from tests.bench.conftest import engine_file
from tests.bench.test_process import eventually, state

DRIVER = """
import sys
from pathlib import Path
from tvm_ext.bench.peers import ENGINES, EngineInfo
for path in sys.argv[2:]:
    name = Path(path).name.removesuffix("_engine.py")
    ENGINES[name] = EngineInfo(name, {"onnx": ()}, "", Path(path))
from tvm_ext.cli.main import main
main(["bench", sys.argv[1], "--engines", ",".join(Path(p).name.removesuffix("_engine.py") for p in sys.argv[2:])])
"""
# Native code that never looks at Python's signals or pipes: as a long compilation does.
DEAF = """
def init(self, job):
    open(__file__ + ".deaf", "w").close()
    ctypes.PyDLL(None).sleep(1000)  # holds the interpreter lock
Engine.__init__ = init
"""


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@contextmanager
def running(model: Path, *engine_files: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", DRIVER, str(model), *map(str, engine_files)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def deaf_and_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """One engine that goes deaf while compiling, and one that is ready and frozen by then."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    return engine_file(tmp_path, "frozen", engines.SPINNER), engine_file(tmp_path, "deaf", DEAF)


def both_there(process: subprocess.Popen[str], deaf: Path) -> Callable[[], bool]:
    def check() -> bool:
        return deaf.with_name(f"{deaf.name}.deaf").exists() and "T" in map(state, children(process.pid))

    return check


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(
    deaf_and_frozen: tuple[Path, Path], mlp: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """After Ctrl-C no folder is left either."""
    with running(mlp, *deaf_and_frozen) as process:
        assert eventually(both_there(process, deaf_and_frozen[1]), 60)
        workers = children(process.pid)
        assert len(workers) >= 2
        assert list((tmp_path / "scratch").glob("*tvm-ext*"))
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert eventually(lambda: all(state(pid) in ("", "Z") for pid in workers), 10)
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert errors.strip() == "tvm-ext: interrupted"
            assert not list((tmp_path / "scratch").glob("*tvm-ext*"))
