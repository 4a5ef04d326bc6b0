"""Latencies of blocks, measured where no measurement is on record.

Measured are the yellow cells of the combination table, and blocks that TVM's fusion would make otherwise. A block is
compiled as the pipeline compiles it, run on random data, and its time noted in a
:class:`~tvm_ext.fusion.profile_database.ProfileDatabase`, with what the cost model said of it: that corrects the model
for what was not measured. Entries for common models come with the package; they count
for the target they were measured for, and for other targets only what is measured for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.fusion.corrected_model import CorrectedModel
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.limits import Latency
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.relax_utils import plain
from tvm_ext.system.host import machine, machine_kind
from tvm_ext.version import __version__

SHIPPED = Path(__file__).parents[1] / "profiles.json"
"""Entries that come with the package."""

RUNS, SECONDS = 10, 0.05
"""Timed runs of a kernel at least, and seconds for all of them; the least counts."""


class BlockLatencies:
    """Seconds of blocks for one target.

    Parameters
    ----------
    target : tvm.target.Target
    path : str or Path, optional
        File of measured latencies, read and added to. Without one nothing is measured.
    model : callable, optional
        Estimates the seconds of a block; a linear model when not given.
    runs_here : bool
        Whether this machine runs code of the target. Where it does not, nothing is measured, and entries of the file
        count whatever machine they are of: they were measured where the module is to run.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        path: str | Path | None = None,
        model: Latency | None = None,
        runs_here: bool = True,
    ) -> None:
        self._target, self._runs_here = target, runs_here
        name = _target_name(target)
        self._shipped = ProfileDatabase(SHIPPED if SHIPPED.is_file() else None, name, package=__version__)
        kind = machine_kind(machine()) if path is not None and runs_here else ""
        self._own = None if path is None else ProfileDatabase(path, name, package=__version__, machine=kind)
        samples = [sample for database in self._databases for sample in database.samples()]
        self._has_measured = False
        self._model = CorrectedModel(model or LinearModel().seconds, samples)

    @property
    def _databases(self) -> list[ProfileDatabase]:
        """Where seconds are looked up, one after the other."""
        return [database for database in (self._own, self._shipped) if database is not None]

    def _known(self, graph: OperatorGraph, members: Collection[int]) -> float | None:
        found = (database.measured(graph, members) for database in self._databases)
        return next((seconds for seconds in found if seconds is not None), None)

    @property
    def measures(self) -> bool:
        """Whether blocks of which nothing is on record are measured."""
        return self._own is not None and self._runs_here

    def estimate(self, graph: OperatorGraph, members: Collection[int]) -> float:
        """Give the seconds of a block: measured ones, or those of the corrected model."""
        found = self._known(graph, members)
        return self._model.seconds(graph, members) if found is None else found

    def seconds(self, graph: OperatorGraph, members: Collection[int], kernel: Any) -> float | None:
        """Find the seconds of a block, or measure them; None when they are not known and nothing is to be measured.

        Parameters
        ----------
        graph : OperatorGraph
        members : collection of int
            The operators of the block.
        kernel : callable
            Gives the scheduled kernel of the block, or None; one of open extents is not measured.
        """
        found = self._known(graph, members)
        if found is not None:
            return found
        func = kernel() if self.measures else None
        if func is None or self._own is None or not _has_known_extents(func):
            return None
        if not self._has_measured:
            self._own.check_writable()
            self._has_measured = True
        measured = kernel_seconds(func, self._target)
        self._own.note(graph, members, measured, self._model.estimate(graph, members))
        return measured

    def save(self) -> None:
        """Write what was measured; see :meth:`ProfileDatabase.save`."""
        if self._own is not None:
            self._own.save()


def kernel_seconds(kernel: Any, target: tvm.target.Target) -> float:
    """Compile a scheduled kernel of static sizes and time it on random data: the least of some runs, in seconds."""
    kernel = kernel.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    with target:
        built = tvm.compile(vector_code()(tvm.IRModule({"main": kernel})), target)
    generator = np.random.default_rng(0)
    arguments = [tvm.runtime.tensor(_random(generator, parameter.ty)) for parameter in kernel.params]
    run = built["main"]
    run(*arguments)
    least, begin, runs = float("inf"), time.perf_counter(), 0
    while runs < RUNS or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        run(*arguments)
        least = min(least, time.perf_counter() - start)
        runs += 1
    return least


def _has_known_extents(kernel: Any) -> bool:
    shapes = [getattr(parameter.ty, "shape", None) for parameter in kernel.params]
    return all(shape is not None and all(isinstance(extent, tvm.tirx.IntImm) for extent in shape) for shape in shapes)


def _random(generator: np.random.Generator, ty: Any) -> np.ndarray:
    shape, dtype = tuple(int(extent) for extent in ty.shape), str(ty.dtype)
    if dtype.startswith("float"):
        return generator.uniform(0.5, 1.5, shape).astype(dtype)
    return np.zeros(shape, dtype)  # indices, which must stay in range, and flags


def _target_name(target: tvm.target.Target) -> str:
    known = {key: value for key, value in target.export().items() if key in ("kind", "mcpu", "mattr", "num-cores")}
    return json.dumps({key: plain(value) for key, value in sorted(known.items())})
