"""Kernels for AArch64, run under qemu on guarded memory, against the same kernels unscheduled on this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tests.guarded.cases import draw
from tests.schedules.kernels import AARCH64
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")
"""Where the C library for AArch64 lies."""

_SOURCE = Path(__file__).with_name("aarch64_kernels.cpp")
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


def missing() -> str:
    """Name what is not installed and is needed, or nothing."""
    names = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"{' and '.join(names)} (Debian: g++-aarch64-linux-gnu, qemu-user)" if names else ""


def build_runner(folder: Path) -> Path:
    """Compile the program that runs kernels."""
    runner = folder / "aarch64_kernels"
    subprocess.run([COMPILER, "-O1", "-std=c++17", "-rdynamic", _SOURCE, "-o", runner, "-ldl"], check=True)
    return runner


def run_family(family: str, seed: int, runner: Path, folder: Path) -> list[str]:
    """Run the kernels of one graph for AArch64.

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
    fused, scheduled = _lowered(sample.module())
    calls = _calls(fused, list(sample.inputs))
    executable = tvm.compile(scheduled, AARCH64, relax_pipeline=tvm.transform.Sequential([]))
    executable.mod.imports[0].write_to_file(str(folder / "kernels.o"), "o")
    library = folder / "kernels.so"
    subprocess.run([COMPILER, "-shared", folder / "kernels.o", "-o", library], check=True)
    lines: list[str] = []
    for number, (name, before, _) in enumerate(calls):
        lines.append(f"kernel {name} {len(before)}")
        lines += [_describe(value, folder / f"{number}.{place}") for place, value in enumerate(before)]
    (folder / "jobs").write_text("".join(line + "\n" for line in lines))
    results = folder / "results"
    command = [EMULATOR, "-L", SYSTEM, runner, library, folder / "jobs", results]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{family} {seed}: code {done.returncode} in {done.stdout[-200:]}{done.stderr[-300:]}"
    _compare(calls, results.read_bytes(), sample.tolerance, f"{family} {seed}")
    return [name for name, _, _ in calls]


def _lowered(module: tvm.IRModule) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Lower a module for AArch64: as it is when its kernels are made, and as it is compiled."""
    fused = module
    with AARCH64:
        for phase, lower in phase_passes(AARCH64, PipelineOptions(flush_denormals=False)):
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
        for phase, lower in phase_passes(host, PipelineOptions(flush_denormals=False)):
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
    if not isinstance(value, np.ndarray):
        return f"int {int(value)}"
    path.write_bytes(value.tobytes())
    shape = " ".join(map(str, value.shape))
    return f"tensor {_CODES[value.dtype.kind]} {value.itemsize * 8} {value.ndim} {shape} {path}"


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
