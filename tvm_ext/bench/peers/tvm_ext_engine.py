"""``tvm_ext.compile``, with the options of the job."""

from __future__ import annotations

import time

import tvm_ext
from tvm_ext.bench.peers.tvm_runtime import Machine, read
from tvm_ext.bench.protocol import Facts, Job
from tvm_ext.compiler import compile


def version() -> str:
    """Version of this package."""
    return tvm_ext.__version__


class Engine(Machine):
    """The model compiled by this package."""

    def __init__(self, job: Job) -> None:
        start = time.perf_counter()
        imported = read(job)
        middle = time.perf_counter()
        compiled = compile(imported, **{"target": job["target"], **job["options"]})
        super().__init__(compiled.executable, job)
        self.facts: Facts = {
            "import_seconds": middle - start,
            "compile_seconds": time.perf_counter() - middle,
        }
        statistics = compiled.metadata["decisions"]["statistics"]
        if statistics is not None:
            self.facts["planned_bytes"] = statistics["planned_bytes"]
            self.facts["kernels"] = statistics["kernels"]
            self.facts["kernel_calls"] = statistics["kernel_calls"]
