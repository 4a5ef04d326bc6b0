"""Embedded operators of the pipeline against the same operators auto-tensorised and tuned by stock MetaSchedule."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from scripts.embedding_cpu import CONV, CONV1D, CONV3D, GROUPED, PRODUCT, Case, compiled, interleaved
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.tuners import builder_and_runner

TRIALS = 64
POPULATION = 64
"""Candidates of a generation, of which 16 are measured; TVM's 512 take minutes on a small machine."""

CASES: dict[str, Case] = {
    "conv2d 3x3, int8": CONV.integer(),
    "conv2d grouped, int8": GROUPED.integer(),
    "conv1d, int8": CONV1D.integer(),
    "conv3d, int8": CONV3D.integer(),
    "matmul, int8": PRODUCT.integer(),
    "matmul, float32": PRODUCT,
}
"""Operators; for those of unsigned and signed bytes stock MetaSchedule knows the instruction ``vpdpbusd``."""


def compare(case: Case, trials: int = TRIALS) -> dict[str, Any]:
    """Tune an operator for so many trials with stock TVM, and time it beside the kernel of the embedding."""
    target = native_target()
    function, tensorised = stock(case, trials, target)
    machine, note = compiled(case, "all", {"winograd": False})
    data, weights = (tvm.runtime.tensor(case.draw(which)) for which in range(2))
    expected = machine["main"](data)
    result = tvm.runtime.tensor(np.zeros(expected.shape, str(expected.dtype)))
    function(data, weights, result)
    error = float(np.abs(result.numpy().astype("float64") - expected.numpy()).max())
    times = interleaved(lambda: function(data, weights, result), lambda: machine["main"](data))
    return {
        "embedding": note, "trials": trials, "stock_tensorised": tensorised, "exact": error == 0,
        "stock_us": round(times[0] * 1e6, 1), "embedded_us": round(times[1] * 1e6, 1),
        "speedup": round(times[0] / times[1], 3),
    }  # fmt: skip


def stock(case: Case, trials: int, target: tvm.target.Target) -> tuple[Any, bool]:
    """Tune with stock rules, of which one tensorises; gives the best kernel, and whether it has the instruction."""
    legalized = relax.transform.LegalizeOps()(
        Case(case.kind, case.shapes, case.attributes, case.dtypes, computed=True).module()
    )
    (kernel,) = (func for func in legalized.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    builder, runner = builder_and_runner(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        database = ms.tune_tir(
            module, target, work_dir=folder, max_trials_global=trials, num_trials_per_iter=16, num_tuning_cores=1,
            seed=0, builder=builder, runner=runner,
            strategy=ms.search_strategy.EvolutionarySearch(population_size=POPULATION),
        )  # fmt: skip
        schedule = ms.tir_integration.compile_tir(database, module, target)
    assert schedule is not None  # some trial ran
    tensorised = "dot_16x4" in str(schedule.trace) or "vpdpbusd" in str(schedule.mod)
    return tvm.compile(schedule.mod, target)["main"], tensorised
