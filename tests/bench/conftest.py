"""Engines made for the tests: each is a file that does one thing on purpose."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.zoo import get
from tvm_ext.bench.peers import ENGINES, EngineInfo

COMPARE = import_module("tvm_ext.bench.compare")
"""The module; the function of its name hides it in the package."""

PREAMBLE = """
import ctypes, os, subprocess, sys, threading, time
import numpy as np

def version():
    return "1.0"

class Engine:
    def __init__(self, job):
        self.facts = {"import_seconds": 0.25, "compile_seconds": 0.5}

    def run(self):
        time.sleep(0.001)

    def outputs(self):
        return [np.arange(4.0)]
"""


def engine_file(folder: Path, name: str, body: str) -> Path:
    """Write an engine: the one of PREAMBLE, changed by ``body`` (statements that see ``Engine``)."""
    path = folder / f"{name}_engine.py"
    path.write_text(PREAMBLE + "\n" + textwrap.dedent(body), encoding="utf-8")
    return path


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write an engine and register it under its name for the length of the test."""

    def make(name: str, body: str) -> Path:
        path = engine_file(tmp_path, name, body)
        packages = {"onnx": (), "ir": (), "pt2": ()}
        monkeypatch.setitem(ENGINES, name, EngineInfo(name, packages, "", path))
        return path

    return make


@pytest.fixture(autouse=True)
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take processors as they are: tests run beside each other, and turns would be repeated."""
    monkeypatch.setattr(COMPARE, "_full_speed", lambda threads, device: None)


@pytest.fixture(scope="session")
def mlp() -> Path:
    """The path of a small ONNX model."""
    return get("tiny_mlp").onnx_path()


SLEEPER = """
def run(self):
    time.sleep({seconds})
Engine.run = run
"""
CRASH_IN_RUN = """
def run(self):
    ctypes.string_at(0)
Engine.run = run
"""
CRASH_IN_COMPILE = """
def init(self, job):
    os.kill(os.getpid(), 11)
Engine.__init__ = init
"""
EXIT_IN_COMPILE = """
def init(self, job):
    print("the library said goodbye", flush=True)
    os._exit(7)
Engine.__init__ = init
"""
HANG = """
def init(self, job):
    time.sleep(1000)
Engine.__init__ = init
"""
ERROR_IN_RUN = """
def run(self):
    raise RuntimeError("kernel 7 is missing\\nand this line is not shown")
Engine.run = run
"""
BROKEN_IMPORT = """
import a_package_that_is_not_there
"""
SPINNER = """
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
"""
GRANDCHILD = """
def init(self, job):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    self.facts = {"notes": [f"pid {child.pid}"]}
Engine.__init__ = init
"""
