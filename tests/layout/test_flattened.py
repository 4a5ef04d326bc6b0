"""Dense layers behind images in blocked layout, with torch as reference; what turns images, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import tvm_ext
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.target import resolve_target

TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2}


def _network(
    channels: int, extents: tuple[int, ...], batch: int = 1, outputs: int = 7, transposed: bool = False,
    dtype: str = "float32", twice: bool = False, read_again: bool = False,
) -> tuple[tvm.IRModule, list[np.ndarray]]:  # fmt: skip
    rng = np.random.default_rng(3)
    filters = rng.standard_normal((channels, 3, 1, 1)).astype(dtype)
    weights = rng.standard_normal((channels * int(np.prod(extents)), outputs)).astype(dtype)
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((batch, 3, *extents), dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(data, relax.const(filters)))))
            row = builder.emit(relax.op.reshape(image, (batch, weights.shape[0])))
            matrix = relax.const(weights.T.copy()) if transposed else relax.const(weights)
            if transposed:
                matrix = builder.emit(relax.op.permute_dims(matrix))
            result = builder.emit(relax.op.matmul(row, matrix))
            if twice:
                result = builder.emit(relax.op.add(result, builder.emit(relax.op.matmul(row, matrix))))
            if read_again:
                result = builder.emit(relax.op.add(result, builder.emit(relax.op.sum(row, 1, keepdims=True))))
            result = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(result)
    return builder.get(), [filters, weights]


def _expected(data: np.ndarray, filters: np.ndarray, weights: np.ndarray, times: int, summed: bool) -> np.ndarray:
    image = torch.relu(torch.nn.functional.conv2d(torch.from_numpy(data).double(), torch.from_numpy(filters).double()))
    row = image.flatten(1)
    result = times * (row @ torch.from_numpy(weights).double())
    return torch.relu(result + row.sum(1, keepdim=True) if summed else result).numpy()


def _names(mod: tvm.IRModule) -> list[str]:
    lowered, *_ = lower(mod, resolve_target(TARGET), PipelineOptions(disable=("vectorize", "finalize")))
    return [variable.name_hint for variable, _ in lowered.functions_items()]


CASES = [
    {"channels": 16, "extents": (7, 7)},
    {"channels": 64, "extents": (3, 5), "batch": 3},
    {"channels": 32, "extents": (1, 17)},
    {"channels": 32, "extents": (33, 1), "outputs": 31},
    {"channels": 16, "extents": (31, 2), "outputs": 1},
    {"channels": 127, "extents": (3, 3)},
    {"channels": 33, "extents": (1, 1)},
    {"channels": 16, "extents": (7, 3), "transposed": True},
    {"channels": 16, "extents": (7, 3), "twice": True},
    {"channels": 16, "extents": (7, 3), "read_again": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_dense_layers_give_is_right(case: dict) -> None:
    mod, arrays = _network(**case)
    data = np.random.default_rng(1).standard_normal((case.get("batch", 1), 3, *case["extents"])).astype("float32")
    (result,) = tvm_ext.compile(mod, TARGET).run([data]).values()
    expected = _expected(data, *arrays, times=1 + ("twice" in case), summed="read_again" in case)
    assert np.abs(result - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("case", [case for case in CASES if case["channels"] % 16 == 0 and "read_again" not in case])
def test_the_image_is_not_copied(case: dict) -> None:
    assert not [name for name in _names(_network(**case)[0]) if "from_blocked" in name]


@pytest.mark.parametrize("case", [CASES[5], CASES[9]])
def test_images_that_others_read_or_that_do_not_fill_their_blocks_are(case: dict) -> None:
    assert [name for name in _names(_network(**case)[0]) if "from_blocked" in name]


def test_what_is_no_number_reaches_what_it_reached() -> None:
    mod, _ = _network(16, (7, 3))
    data = np.ones((1, 3, 7, 3), "float32")
    data[0, 0, 3, 1] = np.nan
    (result,) = tvm_ext.compile(mod, TARGET).run([data]).values()
    assert np.isnan(result).all()
