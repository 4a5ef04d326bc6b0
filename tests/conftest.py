"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import tvm_ext
from scripts.long_tests import GROUP, LONG_TESTS
from tests.commands import Commands
from tests.modules import Mlp
from tests.zoo import get
from tvm_ext.artifact.compiled_model import CompiledModel

# The same examples in every run, so that a change is judged by what it changes; `HYPOTHESIS_PROFILE=default` looks for
# new ones.
settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "reproducible"))


# What was measured of the machine of whoever runs the tests decides nothing in them, or in programs they start.
os.environ["TVM_EXT_CALIBRATION"] = ""


def pytest_configure() -> None:
    """Let programs that tests start be interrupted, also where this one runs in the background or under nohup."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``long`` what ``make test`` leaves out to stay short; ``scripts/long_tests.py`` writes the list."""
    long = set(LONG_TESTS.read_text().splitlines())
    for item in items:
        if GROUP.sub("", item.nodeid) in long:
            item.add_marker(pytest.mark.long)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Generators start anew with each test, a module's ``GENERATOR`` and torch's: no test depends on those before."""
    module = getattr(item, "module", None)
    generator = getattr(module, "GENERATOR", None)
    if isinstance(generator, np.random.Generator):
        module.GENERATOR = np.random.default_rng(0)
    elif generator is not None:
        generator.manual_seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Take pytest's handlers, which have no names, off MetaSchedule's loggers, which it configures by names."""
    for name in ("tvm.s_tir.meta_schedule", "tvm.s_tir.meta_schedule.logging"):
        logging.getLogger(name).handlers.clear()


@pytest.fixture(scope="session")
def commands() -> Commands:
    """Runs ``tvm-ext`` in a process of its own."""
    return Commands()


@pytest.fixture(scope="session")
def mlp_path() -> Path:
    """Path of an ONNX model with input x: float32[4,32] and output y: float32[4,8]."""
    return get("tiny_mlp").onnx_path()


@pytest.fixture(scope="session")
def artifact(commands: Commands, mlp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifact compiled from ``mlp_path``; not to be changed."""
    folder = tmp_path_factory.mktemp("artifact") / "mlp"
    result = commands("compile", mlp_path, "-o", folder)
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts file systems in memory, ``mount("size=64k")``; skips where that is not permitted."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command to make a small disk with")
        if done.returncode:
            pytest.skip(f"no permission to mount a small disk: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def compiled() -> CompiledModel:
    """The module ``tests.modules.Mlp``, compiled for this machine."""
    return tvm_ext.compile(Mlp)


@pytest.fixture(scope="session")
def saved(compiled: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``compiled`` as an artifact on disk; not to be changed."""
    return compiled.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """``compiled`` as an artifact on disk that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))
