"""Finds what turns CUDA sources into PTX and PTX into machine code, which needs no GPU.

Looked for, in this order: ``nvcc`` and ``ptxas`` in ``$CUDA_HOME/bin``, in the wheels ``nvidia-cuda-nvcc`` (with
``nvidia-nvvm``, ``nvidia-cuda-crt``, ``nvidia-cuda-runtime`` and ``nvidia-cuda-cccl``), in ``PATH``; and where there is
no ``nvcc``, NVRTC of the wheel ``nvidia-cuda-nvrtc``, with ``ptxas`` beside it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_ext.errors import CompileError

_SECONDS = 600
MISSING = (
    "resources of kernels are not known: there is no CUDA compiler (nvcc, or NVRTC) and no ptxas here; install a CUDA "
    "toolkit, or the packages nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime and nvidia-cuda-cccl"
)


@dataclass(frozen=True)
class Toolkit:
    """A compiler of CUDA C++ and an assembler of PTX, which fit each other.

    Attributes
    ----------
    ptxas : path
    nvcc, nvrtc : path, optional
        One of them.
    includes : tuple of paths
        Headers for NVRTC.
    """

    ptxas: Path
    nvcc: Path | None
    nvrtc: Path | None
    includes: tuple[Path, ...] = ()

    def version(self) -> str:
        """Name the release of the assembler, such as ``"13.0"``."""
        text = _run([str(self.ptxas), "--version"], "ptxas")
        return text.partition("release ")[2].partition(",")[0] or "unknown"

    def ptx(self, source: str, arch: str) -> str:
        """Compile CUDA C++ for an architecture such as ``"sm_90"``.

        Raises
        ------
        CompileError
            With the compiler's first words.
        """
        compute = _of_code(arch).replace("sm_", "compute_")
        if self.nvcc is None:
            return _nvrtc(self, source, compute)
        with tempfile.TemporaryDirectory() as folder:
            file, result = Path(folder, "kernels.cu"), Path(folder, "kernels.ptx")
            file.write_text(source, encoding="utf-8")
            _run([str(self.nvcc), "-w", "-ptx", f"-arch={compute}", "-o", str(result), str(file)], f"nvcc for {arch}")
            return result.read_text(encoding="utf-8")

    def assemble(self, ptx: str, arch: str) -> str:
        """Make machine code of PTX; gives what ``ptxas -v`` says of it.

        Raises
        ------
        CompileError
            With the assembler's first words, also for an architecture that it does not know.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "kernels.ptx")
            file.write_text(ptx, encoding="utf-8")
            command = [
                str(self.ptxas),
                "-v",
                f"-arch={_of_code(arch)}",
                "-o",
                str(Path(folder, "kernels.cubin")),
                str(file),
            ]
            return _run(command, f"ptxas for {arch}")


def find_toolkit() -> Toolkit | None:
    """Find a toolkit on this machine; None where something is missing, as :data:`MISSING` says."""
    wheels = [Path(folder, "nvidia") for folder in sys.path if folder and Path(folder, "nvidia").is_dir()]
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots += [root for wheel in wheels for root in sorted(wheel.iterdir(), reverse=True) if (root / "bin").is_dir()]
    for root in roots:
        nvcc, ptxas = root / "bin" / "nvcc", root / "bin" / "ptxas"
        if nvcc.exists() and ptxas.exists() and any((root / "nvvm" / "bin" / name).exists() for name in _CICC):
            return Toolkit(ptxas, nvcc, None)
    nvcc_path, ptxas_path = shutil.which("nvcc"), shutil.which("ptxas")
    if nvcc_path and ptxas_path:
        return Toolkit(Path(ptxas_path), Path(nvcc_path), None)
    libraries = [file for wheel in wheels for file in sorted(wheel.glob("*/lib/libnvrtc.so.*"), reverse=True)]
    assemblers = [root / "bin" / "ptxas" for root in roots if (root / "bin" / "ptxas").exists()]
    assemblers += [Path(ptxas_path)] if ptxas_path else []
    if libraries and assemblers:
        headers = [folder for root in [*roots, Path("/usr/local/cuda")] for folder in _headers(root / "include")]
        return Toolkit(assemblers[0], None, libraries[0], tuple(headers))
    return None


def _of_code(arch: str) -> str:
    """Name the architecture with the instructions that no later one has (``wgmma``), as TVM does at load time."""
    return "sm_90a" if arch == "sm_90" else arch


_CICC = ("cicc", "cicc.exe")


def _headers(folder: Path) -> list[Path]:
    return [path for path in (folder, folder / "cccl") if path.is_dir()]


def _run(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{what} did not run: {error}") from error
    said = done.stdout + done.stderr
    if done.returncode:
        words = [line for line in said.splitlines() if "error" in line or "fatal" in line] or said.splitlines() or [""]
        raise CompileError(f"{what} failed: {words[0].strip()}")
    return said


def _nvrtc(toolkit: Toolkit, source: str, compute: str) -> str:
    library = ctypes.CDLL(str(toolkit.nvrtc))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    options = [f"--gpu-architecture={compute}", "-w", "-default-device", *(f"-I{path}" for path in toolkit.includes)]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), encoded)

    def text(name: str) -> str:
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{name}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{name}")(program, buffer)
        return buffer.value.decode()

    try:
        if failed:
            lines = [line for line in text("ProgramLog").splitlines() if "error" in line] or ["no reason given"]
            raise CompileError(f"NVRTC for {compute} failed: {lines[0].strip()}")
        return text("PTX")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def can_compile() -> str:
    """Say what TVM lacks to compile kernels with; ``""`` if nothing.

    TVM asks NVRTC through the package ``cuda-bindings``, or nvcc where the variable ``TVM_CUDA_COMPILE_MODE`` says so.
    Where that is not set, and only nvcc is here, it is set.
    """
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE", "").lower()
    nvcc = shutil.which("nvcc") is not None
    if not mode and nvcc and not _has_bindings():
        mode = os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"
    if mode == "nvcc":
        return "" if nvcc else "TVM_CUDA_COMPILE_MODE says nvcc, which is not in PATH; install the CUDA toolkit"
    if _has_bindings():
        return ""
    return "TVM compiles kernels with NVRTC, whose package is missing: pip install cuda-python, or install nvcc"


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ImportError:  # not even the package it is in
        return False
