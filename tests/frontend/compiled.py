"""Runs an imported PyTorch model as TVM's own default pipeline builds it, and compares with torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

# Most of a test is LLVM optimising kernels that run once.
TARGET = {"kind": "llvm", "opt-level": 1}


class Compiled:
    """A module that is built; called with torch tensors, it gives a list of arrays."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target(TARGET)), tvm.cpu())

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        result = self.machine["main"](*(tvm.runtime.tensor(value.numpy()) for value in inputs))
        fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [field.numpy() for field in fields]


def assert_same(found: Sequence[np.ndarray], expected: Any, names: Sequence[str] | None = None) -> None:
    """Compare with what torch gave: shapes, types, and numbers to 1e-5 of their deviation."""
    tensors = expected if isinstance(expected, tuple | list) else (expected,)
    for index, (ours, theirs) in enumerate(zip(found, tensors, strict=True)):
        name = names[index] if names else f"output {index}"
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), name
        if wanted.dtype.kind == "f":
            scale = max(float(wanted.std()), 1e-3)
            assert np.abs(ours - wanted).max() <= 1e-5 * scale, name
        else:
            np.testing.assert_array_equal(ours, wanted, name)
