"""Draws how a model is compiled: one combination of the options that change the code."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEVELS = ("x86-64-v2", "haswell", "skylake-avx512", "native")
"""Target levels: 128-bit vectors, 256-bit vectors with FMA, 512-bit vectors, and this machine."""

ACCELERATORS = ("vta", "hexagon")

_NEEDS = {"x86-64-v2": "sse4_2", "haswell": "avx2", "skylake-avx512": "avx512vl"}


@functools.cache
def runs_here(level: str) -> bool:
    """Whether this machine's processor has the instructions of a level."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return level == "native" or _NEEDS[level] in flags


@dataclass(frozen=True)
class Options:
    """How a model is compiled and run; the first fields are those of ``tvm_ext.compile``.

    Attributes
    ----------
    level : str
        Level of a CPU, or the target of an accelerator.
    threads : int
        Of the process.
    is_saved : bool
        Accelerators: whether it is saved and loaded before it runs.
    layers : str
        VTA: which layers are on it, those that are ``faster`` there, that would be beside a ``slow`` CPU, ``all`` that
        can be, or ``half`` of them.
    samples : int
        VTA: inputs to calibrate on; 0 for a quantised model that is to do without.
    schedules : str
        VTA: ``default`` ones, or ``drawn``.
    packets : str
        Hexagon: ``llvm``'s, or ``ours``, which take most of a compilation's time.
    """

    memory: str = "stock"
    rewrite: str = "off"
    fuse: str = "stock"
    winograd: bool = True
    prologues: bool = True
    inverted_residuals: bool = True
    embed: str = "uncovered"
    emit: str = "module"
    level: str = "native"
    threads: int = 1
    is_saved: bool = False
    layers: str = "faster"
    samples: int = 1
    schedules: str = "default"
    packets: str = "llvm"

    @property
    def accelerator(self) -> str:
        """``vta``, ``hexagon``, or nothing for a CPU."""
        return next((name for name in ACCELERATORS if name in self.level), "")

    def saved(self, compiled: Any, load: Callable[[Path], Any]) -> Any:
        """Save a compiled model and load it again, where that was drawn."""
        if not self.is_saved:
            return compiled
        with tempfile.TemporaryDirectory() as folder:
            return load(compiled.save(Path(folder) / "model"))

    def pipeline(self) -> dict[str, Any]:
        """Give the keyword arguments of ``tvm_ext.compile``."""
        names = ("memory", "rewrite", "fuse", "winograd", "prologues", "inverted_residuals", "embed")
        if self.accelerator:
            names = ("memory", "rewrite", "fuse", "embed")
        return {name: getattr(self, name) for name in names} | ({"emit": "c"} if self.emit == "c" else {})

    def target(self) -> str | dict[str, Any]:
        """Give the target of ``tvm_ext.compile``."""
        if self.level == "native" or not runs_here(self.level):
            return "native"
        return {"kind": "llvm", "mcpu": self.level, "num-cores": self.threads}

    def spelled(self) -> str:
        """Spell in one line."""
        return ",".join(f"{name}={value}" for name, value in asdict(self).items())

    def simpler(self) -> list[Options]:
        """List the combinations with one option more at its default."""
        plain = asdict(Options())
        mine = asdict(self)
        return [Options(**{**mine, name: plain[name]}) for name in mine if mine[name] != plain[name]]


def draw_options(rng: np.random.Generator, threads: int) -> Options:
    """Draw a combination; ``threads`` is what the process has."""
    return Options(
        memory=str(rng.choice(("stock", "arena", "optimal"))),
        rewrite=str(rng.choice(("off", "strict", "strict", "fast"))),
        fuse=str(rng.choice(("stock", "mapping-type"))),
        winograd=bool(rng.random() < 0.7),
        prologues=bool(rng.random() < 0.8),
        inverted_residuals=bool(rng.random() < 0.8),
        embed=str(rng.choice(("uncovered", "uncovered", "all", "off"))),
        emit="c" if rng.random() < 0.1 else "module",
        level=str(rng.choice([level for level in LEVELS if runs_here(level)])),
        threads=threads,
    )


def draw_accelerated(rng: np.random.Generator, targets: Sequence[str], threads: int) -> Options:
    """Draw a combination for one of the targets of an accelerator."""
    layers = str(rng.choice(("faster", "slow", "slow", "all", "all", "half")))
    return Options(
        memory=str(rng.choice(("stock", "arena", "optimal"))),
        rewrite=str(rng.choice(("off", "strict", "fast"))),
        fuse=str(rng.choice(("stock", "mapping-type"))),
        # What the matrix unit is embedded into by "all" is no layer any more that could be put there by name.
        embed=str(rng.choice(("uncovered", "off") if layers in ("all", "half") else ("uncovered", "all", "off"))),
        level=str(rng.choice(targets)),
        threads=threads,
        is_saved=bool(rng.random() < 0.25),
        layers=layers,
        samples=int(rng.integers(0, 4)),
        schedules="drawn" if rng.random() < 0.3 else "default",
        packets="ours" if rng.random() < 0.1 else "llvm",
    )
