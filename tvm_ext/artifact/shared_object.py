"""From an executable to a shared library on disk, with every way it can fail turned into an error.

``Executable.export_library`` lets LLVM write object files, and LLVM ends the process when the disk is full. Here object
code goes to memory first, and weights are written by Python and taken in by the assembler, which is quicker as well.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.artifact.memory_scopes import without_empty_scopes
from tvm_ext.errors import CompileError, MissingPackageError
from tvm_ext.system.cleanup import end_children
from tvm_ext.system.host import architecture_of, is_of_another_system
from tvm_ext.system.native_log import captured_stderr

SYMBOL = "__tvm_ffi__library_bin"
"""Where TVM's loader looks for everything that is not code: weights, virtual machine instructions, GPU kernels."""

LARGE = 2**30
"""Bytes of data from which on they stand behind everything else: between code and its variables, whose distances are
32-bit numbers, 2 GiB would be too much."""

_SECTION = ".tvm_ext_data"

# What compilers and linkers say, and the error number behind it.
_DISK_ERRORS = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "File size limit exceeded": errno.EFBIG,
}


def write_library(executable: Any, path: Path, workspace: Path, triple: str = "") -> None:
    """Link an executable into a shared library.

    Parameters
    ----------
    executable : tvm.runtime.Executable
        What ``tvm.compile`` returned.
    path : Path
        File to write.
    workspace : Path
        Folder for intermediate files, about twice as large as the library itself.
    triple : str
        Target triple of the host code; this machine's where empty.

    Raises
    ------
    OSError
        If the disk is full.
    MissingPackageError
        If there is no C++ compiler for the target.
    CompileError
        If the compiler refuses the code.
    """
    compiler = find_compiler(triple)
    module = executable.mod
    options: list[str] = []
    files = []
    for number, part in enumerate(host_modules(module)):
        if part.kind == "llvm":
            files.append(_write_object(part, workspace / f"code{number}.o"))
        else:
            files.append(_write_source(part, workspace / f"code{number}.c"))
            options = [f"-I{folder}" for folder in _include_folders()]
    # The build id would be a hash over all weights, which takes longer than everything else.
    flags = ["-shared", "-fPIC", "-Wl,--build-id=none"]
    if module.imports:
        source, size = _write_data(module, workspace)
        files.append(source)
        if size > LARGE:
            flags.append(f"-Wl,-T,{_write_order(workspace)}")
    _run([compiler, *flags, "-o", str(path), *options, *map(str, files)], workspace)


# What the architecture in a target triple begins with -> what GNU's cross compilers are called after.
_TOOLCHAINS = {"arm": "arm", "thumb": "arm", "i386": "i686", "i486": "i686", "i586": "i686", "ppc64le": "powerpc64le"}


def find_compiler(triple: str = "") -> str:
    """Find a C++ compiler: ``$CXX``, the one on PATH, or the cross compiler where the target is another architecture.

    Raises
    ------
    MissingPackageError
        If there is none; the message names the program that was looked for.
    """
    machine = architecture_of(triple)
    is_other = bool(machine) and machine != platform.machine()
    if machine == "hexagon":
        names = ["hexagon-clang++"]
    elif is_other:
        names = [f"{_toolchain(triple)}-g++"]
    else:
        names = ["g++", "clang++", "c++"]
    chosen = os.environ.get("CXX", "")
    if is_of_another_system(triple):  # GNU's compilers for the architecture would link for Linux
        if chosen and not _compiles_for_this_machine(chosen) and (found := shutil.which(chosen)):
            return found
        raise MissingPackageError(
            f"the library cannot be linked: {triple} is another operating system than this machine's; name a C++ "
            "compiler that links for it in the environment variable CXX, or compile on such a machine"
        )
    # CXX is often set to this machine's own compiler.
    names = [chosen, *names] if chosen and not (is_other and _compiles_for_this_machine(chosen)) else names
    for name in names:
        if found := shutil.which(name):
            return found
    where = f" for {triple}" if triple else ""
    named = names[-1].removesuffix("-g++")
    package = f" (Debian: g++-{named.replace('_', '-')})" if "-linux-gnu" in named else ""
    raise MissingPackageError(
        f"the library cannot be linked: no C++ compiler{where} on PATH (looked for {', '.join(names)}); "
        f"install one{package}, or name it in the environment variable CXX"
    )


def _toolchain(triple: str) -> str:
    """Name GNU's cross compilers for a Linux triple, as ``arm-linux-gnueabihf`` for ``armv7l-linux-gnueabihf``."""
    _, *rest = triple.split("-")
    machine = architecture_of(triple)
    machine = next((name for start, name in _TOOLCHAINS.items() if machine.startswith(start)), machine)
    environment = next((part for part in rest if part.startswith(("gnu", "musl"))), "gnu")
    return f"{machine}-linux-{environment}"


def _compiles_for_this_machine(compiler: str) -> bool:
    """Whether a compiler says that it makes code for the architecture of this machine."""
    try:
        said = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return architecture_of(said.stdout.strip()) == platform.machine()


def host_modules(module: Any) -> Iterator[Any]:
    """Walk the modules that hold code for the host, each once."""
    seen: list[Any] = []
    queue = [module]
    while queue:
        part = queue.pop(0)
        if any(part.same_as(other) for other in seen):
            continue
        seen.append(part)
        if part.is_compilation_exportable():
            yield part
        queue.extend(part.imports)


def _write_object(part: Any, path: Path) -> Path:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and len(part.inspect_source("asm")) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))  # the limit counts for files in memory too
    with os.fdopen(os.memfd_create("tvm_ext"), "rb") as memory:
        part.write_to_file(f"/proc/self/fd/{memory.fileno()}", "o")
        with path.open("wb") as stream:
            shutil.copyfileobj(memory, stream)
    return path


def _write_source(part: Any, path: Path) -> Path:
    path.write_text(part.inspect_source(), encoding="utf-8")
    return path


def _write_data(module: Any, workspace: Path) -> tuple[Path, int]:
    """Write what is not code as a source that the assembler takes in; its path and the bytes of the data."""
    pack = tvm.get_global_func("runtime.ModulePackImportsToTensor")
    data = workspace / "data.bin"
    with captured_stderr() as said:
        packed = pack(module).numpy()
    for line in said:
        if "Scope Saving:" not in line:  # what is taken out below
            print(line, file=sys.stderr)
    with data.open("wb") as stream:
        size = sum(map(stream.write, without_empty_scopes(memoryview(packed))))
    section = f'{_SECTION},"a",%progbits' if size > LARGE else ".rodata"
    source = workspace / "data.s"
    escaped = str(data).replace("\\", "\\\\").replace('"', '\\"')
    source.write_text(
        f'.section {section}\n.balign 64\n.globl {SYMBOL}\n.type {SYMBOL}, %object\n{SYMBOL}:\n.incbin "{escaped}"\n'
        f".size {SYMBOL}, . - {SYMBOL}\n"
        '.section .note.GNU-stack,"",%progbits\n',
        encoding="utf-8",
    )
    return source, size


def _write_order(workspace: Path) -> Path:
    """Write what the linker is to add to its own order of sections: the data last."""
    script = workspace / "order.ld"
    place = "ALIGN(CONSTANT(MAXPAGESIZE))"  # pages of their own are never written to
    script.write_text(f"SECTIONS {{ {_SECTION} {place} : {{ *({_SECTION}) }} }} INSERT AFTER .bss;\n", encoding="utf-8")
    return script


def _include_folders() -> list[str]:
    import tvm_ffi.libinfo

    return [
        tvm.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_dlpack_include_path(),
    ]


def _run(command: Sequence[str], workspace: Path) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(workspace), "LC_ALL": "C"},
    )
    try:
        output = process.communicate()[0].decode("utf-8", errors="replace")
    except BaseException:
        end_children()  # an interrupt: the compiler has started an assembler and a linker, which would go on
        raise
    if process.returncode == 0:
        return
    numbers = [number for sign, number in _DISK_ERRORS.items() if sign in output]
    if numbers or _is_full(workspace):
        number = next(iter(numbers), errno.ENOSPC)
        raise OSError(number, os.strerror(number))
    raise CompileError(f"the library could not be linked: {_error_line(output, process.returncode)}")


def _is_full(folder: Path) -> bool:
    status = os.statvfs(folder)
    return status.f_bavail == 0 or (status.f_files > 0 and status.f_favail == 0)


def _error_line(output: str, code: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("error", "cannot", "undefined"):
        for line in lines:
            if word in line:
                return line
    return lines[-1] if lines else f"the compiler ended with code {code} and said nothing"
