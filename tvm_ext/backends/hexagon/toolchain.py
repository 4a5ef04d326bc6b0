"""The programs that turn assembly into a file the emulator runs: Debian's clang, lld and qemu-user, no vendor's SDK."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_ext.errors import CompileError, MissingPackageError

RUNTIME = Path(__file__).parent / "runtime"
"""C sources that are linked to kernels."""


class MissingFunctionError(CompileError):
    """Kernels call what the runtime does not have.

    Attributes
    ----------
    functions : tuple of str
        What they call.
    """

    def __init__(self, functions: tuple[str, ...], kernels: Sequence[str] = ()) -> None:
        whose = f" ({'; '.join(kernels)})" if kernels else ""
        super().__init__(
            f"Hexagon kernels{whose} call {', '.join(functions)}, which the runtime does not have; of float64 it has "
            "sums and products only: make the model's tensors float32, or compile for another target"
        )
        self.functions = functions


@dataclass(frozen=True)
class Tool:
    """A program that is needed.

    Attributes
    ----------
    name, purpose : str
    programs : tuple of str
        Names it goes by, the preferred one first.
    least : tuple of int
        The oldest version that is known to work.
    package : str
        Debian's package.
    """

    name: str
    purpose: str
    programs: tuple[str, ...]
    least: tuple[int, int]
    package: str


TOOLS = (
    Tool("clang", "assembles kernels, compiles the runtime", ("clang-19", "clang-20", "clang-21", "clang"), (19, 0),
         "clang-19"),
    Tool("lld", "links them", ("ld.lld-19", "ld.lld-20", "ld.lld-21", "ld.lld"), (19, 0), "lld-19"),
    Tool("qemu-hexagon", "runs and counts them", ("qemu-hexagon",), (7, 2), "qemu-user"),
)  # fmt: skip
"""One row for each program."""

CLANG, LLD, EMULATOR = TOOLS


@dataclass(frozen=True)
class Found:
    """What there is of a tool on this machine.

    Attributes
    ----------
    tool : Tool
    path : str
        The program; empty where there is none.
    version : tuple of int
        Its version; empty where it does not say.
    """

    tool: Tool
    path: str = ""
    version: tuple[int, ...] = ()

    @property
    def fault(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if not self.path:
            return "not found"
        if not self.version:
            return f"{self.path} does not say its version"
        if self.version < self.tool.least:
            return f"{self.path} is version {_dotted(self.version)}, and {_dotted(self.tool.least)} is needed"
        return ""


def find(tool: Tool) -> Found:
    """Look for a tool on the path: the first of its programs that is new enough, else the first there is."""
    found = [Found(tool, path, _version(path)) for path in filter(None, map(shutil.which, tool.programs))]
    return next((item for item in found if not item.fault), found[0] if found else Found(tool))


def _version(path: str) -> tuple[int, ...]:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return () if match is None else tuple(int(part) for part in match.groups() if part)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


_found: dict[Tool, Found] = {}
"""Tools that can be used; others may be installed while the process runs."""


def installed() -> tuple[Found, ...]:
    """Look for every tool; one that can be used is looked for once in a process."""
    found = tuple(_found.get(tool) or find(tool) for tool in TOOLS)
    _found.update({item.tool: item for item in found if not item.fault})
    return found


def complaint(found: Sequence[Found] | None = None) -> str:
    """Say in one sentence what is missing and the one command that installs it; empty if nothing is missing."""
    faults = [item for item in (installed() if found is None else found) if item.fault]
    if not faults:
        return ""
    what = "; ".join(f"{item.tool.name} ({item.tool.purpose}): {item.fault}" for item in faults)
    packages = " ".join(item.tool.package for item in faults)
    return f"Hexagon code cannot be run here: {what}; install with: apt-get install {packages}"


def program(tool: Tool) -> str:
    """Give the path of a tool.

    Raises
    ------
    MissingPackageError
        If it is missing or too old; the message has the command that installs all that is missing.
    """
    found = next(item for item in installed() if item.tool is tool)
    if found.fault:
        raise MissingPackageError(complaint())
    return found.path


def compile_flags(processor: str) -> list[str]:
    """List the flags of clang for sources and assembly.

    Parameters
    ----------
    processor : str
        As LLVM names it.
    """
    return [
        "--target=hexagon", f"-mcpu={processor}", "-mhvx", "-mhvx-length=128b", "-O2", "-ffreestanding",
        "-fno-builtin", "-nostdlib", "-G0", "-Wno-unused-command-line-argument",
    ]  # fmt: skip


def compile_file(source: Path, result: Path, processor: str) -> None:
    """Compile C (``.c``) or assemble (``.s``).

    Raises
    ------
    CompileError
        With the first complaint of the assembler; if clang is older than the processor, it says so.
    MissingPackageError
        If there is no clang.
    """
    _run([program(CLANG), *compile_flags(processor), "-c", str(source), "-o", str(result)], f"compiling {source.name}")


def link(objects: Sequence[Path], result: Path) -> None:
    """Link objects to a static executable.

    Raises
    ------
    CompileError
        If a kernel calls what the runtime does not have; the message names it.
    MissingPackageError
        If there is no lld.
    """
    flags = ["-m", "hexagonelf", "-static", "-e", "_start", "--gc-sections"]
    _run([program(LLD), *flags, "-o", str(result), *map(str, objects)], "linking")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    unknown = re.search(r"(?:unknown target CPU|unsupported argument) '(hexagon\w+)'", done.stderr)
    if unknown:
        version = unknown[1].removeprefix("hexagon")
        raise CompileError(
            f"{command[0]} does not know the processor {unknown[1]}; compile for an older one, such as hexagon-v67, or "
            f"install a clang and lld that have {version}"
        )
    missing = re.findall(r"undefined symbol: (\S+)", done.stderr)
    if missing:
        raise MissingFunctionError(tuple(dict.fromkeys(missing)))
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    raise CompileError(f"{what} for Hexagon failed: {(lines or done.stderr.splitlines() or ['no message'])[0]}")
