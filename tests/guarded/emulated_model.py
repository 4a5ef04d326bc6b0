"""Whole models for AArch64, run by TVM's own runtime for that CPU under qemu."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm_ffi.libinfo

from tests.guarded.emulated import EMULATORS, describe_tensor
from tvm_ext.artifact.compiled_model import LIBRARY
from tvm_ext.tensor_spec import TensorSpec

RUNTIME_VARIABLE = "TVM_EXT_AARCH64_RUNTIME"
"""Environment variable that names the folder into which the wheels of TVM for AArch64 were unpacked."""

_LIBRARIES = ("tvm/lib/libtvm_runtime.so", "tvm_ffi/lib/libtvm_ffi.so")
_EMULATOR = EMULATORS["aarch64"]
_SOURCE = Path(__file__).with_suffix(".cpp")


def missing() -> str:
    """Say what is not there and is needed, or nothing."""
    if _EMULATOR.missing():
        return _EMULATOR.missing()
    folder = os.environ.get(RUNTIME_VARIABLE, "")
    if not all(
        (Path(folder) / library).is_file() for library in ("tvm/lib/libtvm_runtime.so", "tvm_ffi/lib/libtvm_ffi.so")
    ):
        return (
            f"{RUNTIME_VARIABLE} to name a folder into which the wheels apache-tvm and apache-tvm-ffi for AArch64 were "
            "unpacked (pip download --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64)"
        )
    return ""


def build_model_runner(folder: Path) -> Path:
    """Compile the program that runs models."""
    runtime = Path(os.environ[RUNTIME_VARIABLE]).absolute()
    libraries = [runtime / "tvm/lib", runtime / "tvm_ffi/lib"]
    headers = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    return _EMULATOR.build(
        _SOURCE,
        folder / "emulated_model",
        *(f"-I{header}" for header in headers),
        *(f"-L{library}" for library in libraries),
        # The runtime registers what it has when it is loaded; no symbol of it is named.
        "-Wl,--no-as-needed",
        "-ltvm_runtime",
        "-ltvm_ffi",
        *(f"-Wl,-rpath,{library}" for library in libraries),
    )


def run_model(
    artifact: Path,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[TensorSpec],
    runner: Path,
    folder: Path,
    threads: int = 1,
) -> Mapping[str, np.ndarray]:
    """Run an artifact once.

    Parameters
    ----------
    artifact : Path
        Folder that ``CompiledModel.save`` wrote.
    inputs : sequence of numpy.ndarray
        In the order of the model's inputs.
    outputs : sequence of TensorSpec
        The model's outputs, of shapes without names.

    Raises
    ------
    AssertionError
        If the program fails, or gives more or fewer bytes than the outputs have.
    """
    lines = [describe_tensor(array, folder / f"input{number}") for number, array in enumerate(inputs)]
    (folder / "job").write_text("".join(line + "\n" for line in lines))
    command = _EMULATOR.command(runner, artifact / LIBRARY, folder / "job", folder / "results")
    # Threads that wait give way many times before they sleep, which takes minutes where the machine is busy.
    environment = {"TVM_THREAD_POOL_SPIN_COUNT": "0", **os.environ, "TVM_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"code {done.returncode}: {done.stderr[-300:]}"
    results, position = (folder / "results").read_bytes(), 0
    found: dict[str, np.ndarray] = {}
    for spec in outputs:
        shape = tuple(int(extent) for extent in spec.shape)
        array = np.frombuffer(results, spec.dtype, int(np.prod(shape)), position).reshape(shape)
        found[spec.name] = array
        position += array.nbytes
    assert position == len(results), f"{len(results)} bytes where the outputs have {position}"
    return found
