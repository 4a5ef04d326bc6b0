"""The host machine: its processor, instruction sets, cores and memory, and the kind it is of."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_ext.system.threads import physical_cores

# The instruction-set extensions that decide how fast dense kernels can be, as /proc/cpuinfo spells them.
ISA_EXTENSIONS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)


def machine() -> dict[str, Any]:
    """Describe this machine.

    Returns
    -------
    dict
        ``cpu`` (model name), ``family`` (vendor, family, model and stepping numbers, since virtual machines shorten
        the name), ``cores`` (physical cores this process may use), ``logical_processors``, ``isa`` (extensions
        present, of :data:`ISA_EXTENSIONS`), ``memory_bytes`` and ``system``.
    """
    fields, flags = _cpuinfo(), processor_flags()
    numbers = [fields.get(key, "?") for key in ("vendor_id", "cpu family", "model", "stepping")]
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "family": "/".join(numbers) if "vendor_id" in fields else platform.machine(),
        "cores": physical_cores(),
        "logical_processors": len(os.sched_getaffinity(0)),
        "isa": [name for name in ISA_EXTENSIONS if name in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


# Architecture in a target triple -> as `uname -m` spells it, where they differ.
_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


def architecture_of(triple: str) -> str:
    """Return the architecture of a target triple, as ``platform.machine`` spells it; empty for an empty triple."""
    named = triple.partition("-")[0]
    return _ARCHITECTURES.get(named, named)


def family_of(triple: str) -> str:
    """Return the family of architectures of a target triple: 32-bit Arm and x86 have a name for each generation."""
    named = architecture_of(triple)
    if named.startswith(("arm", "thumb")):  # arm64 has been renamed
        return "arm"
    return "i386" if re.fullmatch(r"i[3-9]86", named) else named


_OTHER_SYSTEMS = ("darwin", "macos", "ios", "windows", "win32", "mingw", "freebsd", "android", "wasi", "emscripten")
"""Operating systems that LLVM's triples begin to name with."""


def is_of_another_system(triple: str) -> bool:
    """Whether a target triple names an operating system that is not Linux, which this package runs on."""
    machine, *rest = triple.split("-")
    return machine.startswith("wasm") or any(part.startswith(_OTHER_SYSTEMS) for part in rest)


def processor_flags() -> frozenset[str]:
    """Read the flags of the first processor, as ``/proc/cpuinfo`` spells them; none where there is no such file."""
    fields = _cpuinfo()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def waiting_seconds() -> float:
    """Return for how long the calling thread was ready to run, and other programs had the processors; 0 if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _cpuinfo() -> dict[str, str]:
    """Read the fields of the first processor in /proc/cpuinfo; empty where there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


# (vendor, family) -> (first model, last model, name), after the vendors' own lists of processors.
_MICROARCHITECTURES: dict[tuple[str, int], tuple[tuple[int, int, str], ...]] = {
    ("AuthenticAMD", 25): (
        (0x00, 0x0F, "Zen 3"),
        (0x10, 0x1F, "Zen 4"),
        (0x20, 0x5F, "Zen 3"),
        (0x60, 0xAF, "Zen 4"),
    ),
    ("AuthenticAMD", 26): ((0x00, 0xFF, "Zen 5"),),
    ("GenuineIntel", 6): ((0x6A, 0x6A, "Ice Lake"),),  # of servers
}


def machine_kind(machine: Mapping[str, Any]) -> str:
    """Name the kind of a machine, such as ``"Zen 5, 2 cores"``: what figures of one run can be compared with.

    Parameters
    ----------
    machine : mapping
        A description by :func:`machine`.
    """
    vendor, *numbers = str(machine["family"]).split("/")
    name = str(machine["cpu"])
    if len(numbers) >= 2 and all(number.isdigit() for number in numbers[:2]):
        family, model = int(numbers[0]), int(numbers[1])
        rows = _MICROARCHITECTURES.get((vendor, family), ())
        if vendor == "GenuineIntel":
            name = "Intel with AMX" if "amx_int8" in machine["isa"] else f"Intel {numbers[0]}/{numbers[1]}"
        name = next((row[2] for row in rows if row[0] <= model <= row[1]), name)
    cores = machine["cores"]
    return f"{name}, {cores} core{'s' if cores != 1 else ''}"
