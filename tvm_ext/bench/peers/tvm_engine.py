"""Stock TVM: ``tvm.compile`` with its default pipeline, on the module that this package's importer gives.

The importer is shared with the engine ``tvm_ext``, so that the two rows differ by the compilation alone.
"""

from __future__ import annotations

import time

import tvm

from tvm_ext.bench.peers.tvm_runtime import Machine, read
from tvm_ext.bench.protocol import Facts, Job
from tvm_ext.statistics import StatisticsInstrument
from tvm_ext.target import resolve_target


def version() -> str:
    """Version of TVM."""
    return str(tvm.__version__)


class Engine(Machine):
    """The model compiled by TVM alone."""

    def __init__(self, job: Job) -> None:
        start = time.perf_counter()
        imported = read(job)
        middle = time.perf_counter()
        instrument = StatisticsInstrument()
        with tvm.transform.PassContext(instruments=[instrument]):
            executable = tvm.compile(imported.mod, resolve_target(job["target"]))
        super().__init__(executable, job)
        self.facts: Facts = {
            "import_seconds": middle - start,
            "compile_seconds": time.perf_counter() - middle,
        }
        if instrument.statistics is not None:
            self.facts["planned_bytes"] = instrument.statistics.planned_bytes
            self.facts["kernels"] = instrument.statistics.kernels
            self.facts["kernel_calls"] = instrument.statistics.kernel_calls
