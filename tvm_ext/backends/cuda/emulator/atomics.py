"""Atomic operations on global memory, by the names of their functions in C++."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from tvm_ext.backends.cuda.emulator.lanes import Lanes
from tvm_ext.backends.cuda.emulator.memory import Global
from tvm_ext.backends.cuda.emulator.statements import Intrinsic, Statements, Step
from tvm_ext.schedules.cuda.atomics import ATOMICS, TYPES


def _atomic(operation: np.ufunc, code: Statements, call: Any) -> Step:
    """``tvm_ext_atomic_add_float32(address, value)``; threads in step do it one after the other."""
    target, value = code.target(call.args[1]), code.value(call.args[2])
    access = code.access(target.view.buffer, 0, target.view)
    access.text = "an atomic operation"

    def run(lanes: Lanes) -> None:
        memory = target.view.storage(lanes)
        assert type(memory) is Global, "atomic operations are on global memory"
        memory.join(lanes, target.view.dtype, target.index(lanes), value(lanes), operation, access)

    return run


_OPERATIONS: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}

ATOMIC_OPERATIONS: Mapping[str, Intrinsic] = {
    f"{ATOMICS}{name}_{dtype}": partial(_atomic, operation)
    for name, operation in _OPERATIONS.items()
    for dtype in TYPES
}
