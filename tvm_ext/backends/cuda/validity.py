"""Whether a scheduled kernel runs on a GPU, as far as that can be told without one: for tuners, as their oracle.

A kernel is lowered as for code generation, and what comes out is compared with the limits of the architecture. What is
not known before ptxas has seen it, registers above all, is not counted: such kernels spill, but run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import s_tir, tirx

from tvm_ext.backends.cuda.emulator.lowering import lower
from tvm_ext.backends.cuda.kernel_limits import over_a_limit
from tvm_ext.errors import first_line
from tvm_ext.schedules.cuda.finish import finished
from tvm_ext.schedules.cuda.machine import MOST_THREADS, machine_of

MOST_VIRTUAL_THREADS = 8
"""Copies of its work that a thread keeps side by side; TVM's space of schedules has no more."""

VECTOR_BYTES = 32
"""Bytes of the widest vector that TVM prints a type of CUDA for."""

Oracle = Callable[[np.ndarray], np.ndarray]
"""Tells of vectors of knobs (n x knobs) whether their kernels run (n, bool)."""


def kernel_fault(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Say why a scheduled kernel does not run on the GPU of a target; ``""`` if nothing is known against it."""
    try:
        func = finished(func)
        if reason := over_a_limit(func, target):
            return reason
        kernels = lower(func.with_attr("global_symbol", "main"), target).kernels
    except Exception as error:  # whatever TVM's passes raise of a schedule that cannot be
        return f"cannot be lowered: {first_line(error)}"
    if not kernels:
        return "has no loop bound to threads"
    machine = machine_of(target)
    most = {
        "max_threads_per_block": MOST_THREADS,
        "max_thread_x": MOST_THREADS,
        "max_thread_y": MOST_THREADS,
        "max_thread_z": 64,
        "max_shared_memory_per_block": machine.shared_per_block,
        "max_vthread": MOST_VIRTUAL_THREADS,
        "max_vector_bytes": VECTOR_BYTES,
    }
    for name, kernel in kernels.items():
        if not s_tir.analysis.verify_gpu_code(kernel, most):
            return f"has kernel {name}, which is beyond what sm_{machine.compute} or its vectors allow"
    return ""


def kernel_oracle(kernel_of: Callable[[np.ndarray], tirx.PrimFunc | None], target: tvm.target.Target) -> Oracle:
    """Make the oracle of a space of configurations for a tuner.

    Parameters
    ----------
    kernel_of : callable
        Makes the scheduled kernel of one vector of knobs; None where a schedule cannot be made.
    target : tvm.target.Target
    """

    def runs(vector: np.ndarray) -> bool:
        func = kernel_of(vector)
        return func is not None and not kernel_fault(func, target)

    def oracle(vectors: np.ndarray) -> np.ndarray:
        return np.array([runs(vector) for vector in vectors], bool)

    return oracle
