"""Runs the command line in processes of its own, each forked from one that has imported TVM already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOAD = ["tvm_ext.compiler", "tvm_ext.verify", "tvm_ext.cli.compile", "tvm_ext.cli.run", "onnx", "rich.progress"]


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    def error(self, code: int, *parts: str) -> str:
        """Give the one line on stderr, after making sure that it is one, that the code is right, and what it says."""
        assert self.code == code, f"exit code {self.code} where {code} was expected; stderr: {self.stderr}"
        lines = self.stderr.splitlines()
        assert len(lines) == 1, f"one line expected on stderr, found {len(lines)}: {self.stderr}"
        assert lines[0].startswith("tvm-ext: error: "), lines[0]
        for part in parts:
            assert part in lines[0], f"{part!r} is not in: {lines[0]}"
        return lines[0]


class Running:
    """A command that runs."""

    def __init__(self, process: BaseProcess, folder: Path) -> None:
        self.process = process
        self.folder = folder
        assert process.pid is not None
        self.pid: int = process.pid

    def wait(self, seconds: float = 120.0) -> Result:
        """Wait for the end; a command that takes longer is killed, which fails the test."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the command still ran after {seconds} s; stderr: {self.read('stderr')}")
        return Result(self.process.exitcode, self.read("stdout"), self.read("stderr"))

    def read(self, stream: str) -> str:
        """What the command wrote so far."""
        return (self.folder / stream).read_text(errors="backslashreplace")


class Commands:
    """Starts commands: ``commands("compile", "model.onnx")`` waits for the end, ``commands.start(...)`` does not."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._folders = tempfile.TemporaryDirectory(prefix="tvm-ext-test-")  # goes with the tests

    def __call__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        file_size: int | None = None,
        stdout: str | None = None,
        seconds: float = 120.0,
    ) -> Result:
        running = self.start(*arguments, cwd=cwd, environment=environment, file_size=file_size, stdout=stdout)
        return running.wait(seconds)

    def start(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        file_size: int | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
    ) -> Running:
        """Start a command.

        ``file_size`` limits the files it writes, in bytes; ``stdout`` and ``stderr`` are paths to write to.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folders.name))
        for stream in ("stdout", "stderr"):
            (folder / stream).touch()
        process = self._context.Process(
            target=_child,
            args=(list(map(str, arguments)), str(folder), str(cwd or folder), dict(environment or {})),
            kwargs={"file_size": file_size, "stdout": stdout, "stderr": stderr},
        )
        process.start()
        return Running(process, folder)


def real_command(*arguments: str | Path, stdout: str | None = None, seconds: float = 120.0) -> Result:
    """Run ``python -m tvm_ext`` as a user would, from nothing; ``stdout`` is a path to write to."""
    with open(stdout or os.devnull, "wb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "tvm_ext", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stream,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    return Result(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


def _child(
    arguments: list[str],
    folder: str,
    cwd: str,
    environment: dict[str, str],
    file_size: int | None,
    stdout: str | None,
    stderr: str | None,
) -> None:
    for descriptor, path in ((1, stdout or f"{folder}/stdout"), (2, stderr or f"{folder}/stderr")):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(cwd)
    os.environ.update(environment)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    from tvm_ext.cli.main import main

    main(arguments)
