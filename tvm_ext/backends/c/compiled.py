"""A model as C sources, in memory and on disk; it runs here through a C compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.artifact.compiled_model import METADATA, CompiledModel
from tvm_ext.artifact.metadata import file_record
from tvm_ext.backends.c.sources import REFUSED, Sources, make_sources, write_sources
from tvm_ext.errors import CompileError, InputError, MissingPackageError
from tvm_ext.inputs import check_array, match_names, numpy_dtype

COMPILE_SECONDS = 1200


class CModel(CompiledModel):
    """A model as C sources; ``executable`` is a :class:`~tvm_ext.backends.c.sources.Sources`.

    :meth:`save` writes them. :meth:`run` takes and gives arrays by name, as other compiled models do: it builds the
    program in a temporary folder at first use.
    """

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Build the program with this machine's C compiler, unless that was done, and run it.

        Raises
        ------
        InputError
            If an input has the wrong name, shape or dtype, or the model refuses its values.
        CompileError
            If the sources cannot be compiled here, or the program fails.
        MissingPackageError
            If there is no C compiler.
        """
        bound: dict[str, int] = {}
        given = [
            check_array(spec, np.asarray(value), bound)
            for spec, value in zip(self.inputs, match_names(self.inputs, inputs), strict=True)
        ]
        with self._lock:
            if getattr(self, "_built", None) is None:
                folder = Path(tempfile.mkdtemp(prefix="tvm-ext-c-"))
                # Unlike TemporaryDirectory, which warns when the model that holds it goes.
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                self.write_to(folder)
                build(folder)
                self._built = folder
            return self.run_program(self._built, given)

    def write_to(self, folder: Path, in_file: bool | None = None) -> list[str]:
        """Write the sources into a folder that exists, and list their names.

        Parameters
        ----------
        folder : Path
        in_file : bool, optional
            Whether constants go into a file of their own; by default where they are many.
        """
        files = write_sources(self.executable, self.inputs, self.outputs, in_file)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return list(files)

    def run_program(
        self, folder: Path, given: Sequence[np.ndarray], launcher: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Run the program that was built in a folder.

        Parameters
        ----------
        folder : Path
        given : sequence of np.ndarray
            The inputs.
        launcher : sequence of str
            What runs it, such as ``qemu-aarch64``.

        Raises
        ------
        CompileError
            If it fails.
        InputError
            If the model refuses the values.
        """
        with tempfile.TemporaryDirectory(prefix="tvm-ext-c-") as name:
            files = []
            for number, array in enumerate(given):
                files.append(f"{name}/input{number}.npy")
                np.save(files[-1], array)
            program: Sources = self.executable
            command = [*launcher, f"./{program.name}", "-o", f"{name}/output", *files]
            _called(command, folder, "the program", REFUSED)
            return {
                spec.name: np.load(f"{name}/output{number}.npy").astype(numpy_dtype(spec.dtype), copy=False)
                for number, spec in enumerate(self.outputs)
            }

    def _write(self, partial: Path) -> None:
        names = self.write_to(partial)
        self.metadata["files"] = {name: file_record(partial / name) for name in names}
        (partial / METADATA).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")


def build(folder: Path, compiler: str = "", options: Sequence[str] = ()) -> None:
    """Build the sources in a folder with ``make``.

    Parameters
    ----------
    folder : Path
    compiler : str
        By default what the environment variable ``CC`` names, or ``gcc``.
    options : sequence of str
        For ``make``, such as ``CFLAGS=-std=c11 -O3``.

    Raises
    ------
    CompileError
        If they cannot be compiled.
    MissingPackageError
        If there is no such compiler, or no ``make``.
    """
    compiler = compiler or os.environ.get("CC", "") or "gcc"
    for tool in (compiler, "make"):
        if shutil.which(tool) is None:
            raise MissingPackageError(
                f"{tool} is needed to build C sources and is not installed; install it, or set CC"
            )
    jobs = min(8, len(os.sched_getaffinity(0)))
    _called(["make", f"-j{jobs}", f"CC={compiler}", *options], folder, "building the C sources")


def _called(command: Sequence[str], folder: Path, what: str, refused: int | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"{what} did not end within {COMPILE_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if done.returncode == refused and lines:
            raise InputError(f"the model itself refuses its inputs: {lines[-1]}; give values that it allows")
        telling = next(
            (line for line in lines if "error" in line), lines[-1] if lines else f"exit code {done.returncode}"
        )
        raise CompileError(f"{what} failed: {telling[:300]}")
    return done.stdout


def c_sources(mod: tvm.IRModule, target: tvm.target.Target, name: str) -> tuple[Sources, dict[str, Any], type]:
    """Make what :func:`tvm_ext.compile` returns with ``emit="c"``; errors as :func:`~.sources.make_sources`."""
    sources = make_sources(name, mod, target)
    notes = {
        "arena": sources.plan.arena,
        "planned": sources.plan.planned,
        "stack": sources.stack,
        "weights": sources.weights.bytes,
        "kernels": len(sources.kernels),
        "calls": len(sources.plan.steps),
        "threads": 1,
        "options": list(sources.options),
        "run_with": f"make && ./{sources.name} INPUT.npy",
    }
    return sources, notes, CModel
