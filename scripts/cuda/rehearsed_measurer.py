"""In the place of a machine with a GPU: candidates are compiled to machine code, and "timed" by the cost model.

Tuners and databases are gone through as where there is a GPU. What comes of it is no measurement.
"""

from __future__ import annotations

from concurrent.futures import Future
from math import prod
from typing import Any, Self

import tvm
import tvm_ffi
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_ext.backends.cuda.kernel_limits import kernel_use
from tvm_ext.backends.cuda.toolkit import Toolkit
from tvm_ext.backends.cuda.validity import kernel_fault
from tvm_ext.errors import TvmExtError
from tvm_ext.relax_utils import plain
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.finish import finished
from tvm_ext.schedules.cuda.machine import WARP, machine_of
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import Arguments, Candidate, Counts


class RehearsedMeasurer:
    """Has the methods of :class:`~tvm_ext.tuners.measure.measurer.Measurer` that tuning calls.

    Parameters
    ----------
    target : tvm.target.Target
    toolkit : Toolkit, optional
        Compiles the first ``compiled`` candidates; without one they only go through TVM's code generator.
    compiled : int
        How many.
    """

    is_here = False

    def __init__(self, target: tvm.target.Target, toolkit: Toolkit | None = None, compiled: int = 2) -> None:
        self._target, self._toolkit, self._left = target, toolkit, compiled
        self.counts, self.broken = Counts(), None
        self._mods: dict[str, tvm.IRModule] = {}
        self._known: dict[str, Candidate] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: there are no workers."""

    def candidate(self, mod: tvm.IRModule, target: tvm.target.Target) -> Candidate:
        """Give the candidate of a module with one kernel, ``main``; the same object for equal modules."""
        key = f"{tvm_ffi.structural_hash(mod):x}"
        self._mods[key] = mod
        return self._known.setdefault(key, Candidate(key, "", plain(target.export())))

    def build(self, candidates: list[Candidate]) -> None:
        """Generate code of candidates, and compile some; what fails has its ``error`` set."""
        for row in candidates:
            if row.error is None and row.seconds is None:
                self._build_one(row)

    def _build_one(self, row: Candidate) -> None:
        mod = self._mods[row.key]
        try:
            if reason := kernel_fault(mod["main"], self._target):
                row.error = f"compiling failed: its kernel {reason}"
            elif self._left > 0:
                self._left -= 1
                source = build(mod, self._target).imports[0].inspect_source()
                if self._toolkit is not None:
                    arch = str(self._target.attrs["arch"])
                    self._toolkit.assemble(self._toolkit.ptx(source, arch), arch)
        except (TvmExtError, RuntimeError, ValueError) as error:
            row.error = f"compiling failed: {' '.join(str(error).split())[:300]}"
        self.counts.built += row.error is None
        self.counts.failed += row.error is not None

    def run_all(self, rows: list[tuple[Candidate, str, Arguments]]) -> list[Future[Candidate]]:
        """Give each candidate what the cost model says of it."""
        done = []
        for row, _, _ in rows:
            if row.error is None and row.seconds is None:
                row.seconds = [rehearsed_seconds(self._mods[row.key]["main"], self._target)] * 3
                self.counts.run += 1
            future: Future[Candidate] = Future()
            future.set_result(row)
            done.append(future)
        return done

    def check_noise(self, workloads: Any) -> list[float]:
        """Give nothing: figures of a model do not vary."""
        return []


def rehearsed_seconds(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> float:
    """Give some seconds that depend on the tile: what the cost model says of its grid, threads and shared memory."""
    use = kernel_use(finished(func), target)
    blocks, threads = prod(blocks or 1 for blocks in use.blocks), prod(use.threads)
    work = float(estimate_tir_flops(tvm.IRModule({"main": func}))) / 2 / WARP
    shared = use.static_shared + use.dynamic_shared
    launch = Launch(blocks, threads, registers=64, shared=shared, issue=work / blocks + 2 * shared / WARP, bytes=1e5)
    return min(1.0, kernel_seconds(launch, machine_of(target)))
