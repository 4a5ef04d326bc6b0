"""Kernels for other CPUs, run under qemu on guarded memory, against the same kernels unscheduled on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tests.guarded.cases import draw
from tests.schedules.kernels import AARCH64
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.code_generation import build
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes

_SOURCE = Path(__file__).with_name("emulated_kernels.cpp")
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


@dataclass(frozen=True)
class Emulator:
    """A CPU that qemu plays.

    Attributes
    ----------
    architecture : str
        As Debian's cross compilers spell it.
    target : tvm.target.Target
    options : sequence of str
        What qemu has to be told.
    """

    architecture: str
    target: tvm.target.Target
    options: Sequence[str] = ()

    @property
    def compiler(self) -> str:
        """Name of the C++ compiler."""
        return f"{self.architecture}-linux-gnu-g++"

    @property
    def program(self) -> str:
        """Name of the emulator."""
        return f"qemu-{self.architecture}"

    def command(self, *words: str | Path) -> list[str]:
        """Give the command that runs a program with the C library of the architecture."""
        return [self.program, "-L", f"/usr/{self.architecture}-linux-gnu", *self.options, *map(str, words)]

    def missing(self) -> str:
        """Say what is not installed and is needed, or nothing."""
        packages = {self.compiler: f"g++-{self.architecture}-linux-gnu", self.program: "qemu-user"}
        absent = [name for name in packages if shutil.which(name) is None]
        if not absent:
            return ""
        return f"{' and '.join(absent)} (Debian: {', '.join(packages[name] for name in absent)})"

    def build(self, source: Path, program: Path, *options: str | Path) -> Path:
        """Compile a C++ program for the architecture."""
        command = [self.compiler, "-O1", "-std=c++17", "-rdynamic", source, "-o", program, *options, "-ldl"]
        subprocess.run(list(map(str, command)), check=True)
        return program


EMULATORS = {
    "aarch64": Emulator("aarch64", AARCH64),
    "riscv64": Emulator(
        "riscv64",
        tvm.target.Target(
            {
                "kind": "llvm",
                "mtriple": "riscv64-linux-gnu",
                "mcpu": "generic-rv64",
                "mattr": ["+m", "+a", "+f", "+d", "+c", "+v", "+zfhmin"],
                "num-cores": 4,
            }
        ),
        ("-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0,Zfh=true"),
    ),
}

MIXED_SIGNS = Emulator(
    "aarch64",
    tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1", "num-cores": 4}),
)
"""AArch64 that multiplies unsigned by signed bytes."""


_OPTIONS = PipelineOptions(memory="stock", flush_denormals=False)
"""The virtual machine calls each kernel: segments, which call several, would hide them."""


def build_runner(emulator: Emulator, folder: Path) -> Path:
    """Compile the program that runs kernels."""
    return emulator.build(_SOURCE, folder / "emulated_kernels")


def run_family(family: str, seed: int, emulator: Emulator, runner: Path, folder: Path) -> list[str]:
    """Run the kernels of one graph for another CPU.

    Returns
    -------
    list of str
        Their names.

    Raises
    ------
    AssertionError
        If a kernel touched what is not its own, or computed something else than it does unscheduled.
    """
    sample = draw(family, seed)
    return run_module(sample.module(), sample.inputs, sample.tolerance, f"{family} {seed}", emulator, runner, folder)


def run_module(
    module: tvm.IRModule,
    inputs: Sequence[np.ndarray],
    tolerance: float,
    what: str,
    emulator: Emulator,
    runner: Path,
    folder: Path,
) -> list[str]:
    """Run every kernel of a module as often as the module calls it; arguments and errors as of :func:`run_family`."""
    fused, scheduled = _lowered(module, emulator.target)
    calls = _calls(fused, list(inputs))
    run_calls(build(scheduled, emulator.target).mod, calls, tolerance, what, emulator, runner, folder)
    return [name for name, _, _ in calls]


def run_calls(
    compiled: Any,
    calls: list[tuple[str, list[Any], list[Any]]],
    tolerance: float,
    what: str,
    emulator: Emulator,
    runner: Path,
    folder: Path,
) -> None:
    """Call compiled functions: of each call the name, and the arguments before it and as they should be after it."""
    library = folder / "kernels.so"
    parts = [part for part in host_modules(compiled) if part.kind == "llvm"]
    objects = [folder / f"kernels{number}.o" for number in range(len(parts))]
    for part, path in zip(parts, objects, strict=True):
        part.write_to_file(str(path), "o")
    subprocess.run([emulator.compiler, "-shared", *objects, "-o", library], check=True)
    lines: list[str] = []
    for number, (name, before, _) in enumerate(calls):
        lines.append(f"kernel {name} {len(before)}")
        lines += [_describe(value, folder / f"{number}.{place}") for place, value in enumerate(before)]
    (folder / "jobs").write_text("".join(line + "\n" for line in lines))
    results = folder / "results"
    command = emulator.command(runner, library, folder / "jobs", results)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{what}: code {done.returncode} in {done.stdout[-200:]}{done.stderr[-300:]}"
    _compare(calls, results.read_bytes(), tolerance, what)


def _lowered(module: tvm.IRModule, target: tvm.target.Target) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Lower a module: as it is when its kernels are made, and as it is compiled."""
    fused = module
    with target:
        for phase, lower in phase_passes(target, _OPTIONS):
            module = lower(module)
            if phase.name == "fuse":
                fused = module
    return fused, module


def _calls(fused: tvm.IRModule, inputs: list[np.ndarray]) -> list[tuple[str, list[Any], list[Any]]]:
    """Run unscheduled kernels here; of each call the name, and the arguments before and after it."""
    host = tvm.target.Target("llvm")
    kernels = {var.name_hint for var, func in fused.functions.items() if isinstance(func, tirx.PrimFunc)}
    wanted = ("lower", "memory", "finalize")
    with host:
        for phase, lower in phase_passes(host, _OPTIONS):
            if phase.name in wanted:
                fused = lower(fused)
    machine = relax.VirtualMachine(tvm.compile(fused, host, relax_pipeline=tvm.transform.Sequential([])), tvm.cpu())
    calls: list[tuple[str, list[Any], list[Any]]] = []
    pending: list[list[Any]] = []

    def watch(_function: Any, name: str, is_before: bool, _result: Any, *arguments: Any) -> None:
        if name not in kernels:
            return
        values = [argument.numpy().copy() if hasattr(argument, "numpy") else argument for argument in arguments]
        if is_before:
            pending.append(values)
        else:
            calls.append((name, pending.pop(), values))

    machine.set_instrument(watch)
    machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return calls


def _describe(value: Any, path: Path) -> str:
    return f"tensor {describe_tensor(value, path)}" if isinstance(value, np.ndarray) else f"int {int(value)}"


def describe_tensor(array: np.ndarray, path: Path) -> str:
    """Write an array to a file, and give the line about it that the programs under qemu read."""
    path.write_bytes(array.tobytes())
    shape = " ".join(map(str, array.shape))
    return f"{_CODES[array.dtype.kind]} {array.itemsize * 8} {array.ndim} {shape} {path}"


def _compare(calls: list[tuple[str, list[Any], list[Any]]], results: bytes, tolerance: float, what: str) -> None:
    position = 0
    for name, _, after in calls:
        for _ in range(2):
            for wanted in after:
                if not isinstance(wanted, np.ndarray):
                    continue
                got = np.frombuffer(results, wanted.dtype, wanted.size, position).reshape(wanted.shape)
                position += wanted.nbytes
                if wanted.size and not np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f"):
                    limit = max(tolerance, 1e-3) * max(1.0, float(np.abs(wanted.astype("float64")).max()))
                    difference = np.abs(got.astype("float64") - wanted.astype("float64")).max()
                    assert difference <= limit, f"{what}: {name} is off by {difference:.3g}"
    assert position == len(results)
