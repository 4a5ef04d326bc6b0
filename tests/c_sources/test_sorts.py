"""Sorts of sources, which have no library to call, are those of the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.c_sources.test_parts import agree


def _sorted(operator: str, shape: tuple[int, ...], axis: int, kind: str, **options: object) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, kind))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit(getattr(relax.op, operator)(x, axis=axis, **options))
            result = builder.emit_output(found)
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    ("operator", "shape", "axis", "dtype", "options"),
    [
        ("sort", (5, 700), 1, "float32", {"descending": True}),
        ("sort", (33, 4, 3), 0, "int32", {}),
        ("sort", (1, 9), -1, "float64", {}),
        ("argsort", (3, 40, 5), 1, "float32", {"descending": True, "dtype": "int32"}),
        ("argsort", (2500,), 0, "int64", {"dtype": "int64"}),
        ("topk", (2, 5000), 1, "float32", {"k": 3000}),
        ("topk", (60, 7), 0, "float32", {"k": 20, "largest": False}),
    ],
)
def test_sorts(
    tmp_path: Path, operator: str, shape: tuple[int, ...], axis: int, dtype: str, options: dict[str, object]
) -> None:
    mod = _sorted(operator, shape, axis, dtype, **options)
    random = np.random.default_rng(len(shape))
    x = random.integers(-50, 50, shape).astype(dtype)  # many are equal
    if dtype.startswith("float"):
        x[random.random(shape) < 0.02] = np.nan
    agree(tmp_path, tvm_ext.compile(mod, emit="c"), tvm_ext.compile(mod), [x])
