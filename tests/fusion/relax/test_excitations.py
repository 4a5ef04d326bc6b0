"""Squeeze and excitation as one kernel: values of float64, awkward channels, batches, NaN, who else reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op

import tvm_ext
from tests.schedules.cpu.test_winograd_strips import TARGET
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

Array = np.ndarray


def block(
    channels: int, hidden: int, size: Sequence[int], batch: int = 1, gate: str = "sigmoid", multiplies: bool = True,
    read_again: bool = False, ins: int = 8,
) -> tuple[tvm.IRModule, Any]:  # fmt: skip
    """Convolve, so that the image is blocked, average, two products, weight the channels; or give the weights."""
    rng = np.random.default_rng(channels * 10 + hidden)
    first, down, up = (
        rng.standard_normal((rows, columns, 1, 1)).astype("float32") / np.sqrt(columns)
        for rows, columns in ((channels, ins), (hidden, channels), (channels, hidden))
    )
    bias = rng.standard_normal((1, hidden, 1, 1)).astype("float32")
    x = relax.Var("x", relax.TensorType((batch, ins, *size), "float32"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            y = emit(op.nn.relu(emit(op.nn.conv2d(x, relax.const(first)))))
            mean = emit(op.mean(y, [2, 3], keepdims=True))
            h = emit(op.nn.silu(emit(op.add(emit(op.nn.conv2d(mean, relax.const(down))), relax.const(bias)))))
            weight = emit(op.nn.conv2d(h, relax.const(up)))
            weight = emit(op.sigmoid(weight) if gate == "sigmoid" else op.clip(weight, 0, 1))
            result = emit(op.multiply(y, weight)) if multiplies else weight
            outputs = builder.emit_output(relax.Tuple([result, *([mean] if read_again else [])]))
        builder.emit_func_output(outputs)

    def expected(value: Array) -> list[Array]:
        conv, double = torch.nn.functional.conv2d, [torch.from_numpy(item).double() for item in (first, down, up)]
        y = torch.relu(conv(torch.from_numpy(value).double(), double[0]))
        mean = y.mean((2, 3), keepdim=True)
        h = torch.nn.functional.silu(conv(mean, double[1]) + torch.from_numpy(bias).double())
        weight = conv(h, double[2])
        weight = torch.sigmoid(weight) if gate == "sigmoid" else weight.clip(0, 1)
        return [item.numpy() for item in ((y * weight) if multiplies else weight, *([mean] if read_again else []))]

    return builder.get(), expected


def rules(mod: tvm.IRModule, **options: bool) -> list[str]:
    """Names of the rules that took the kernels, and a check that none failed."""
    lowered, *_ = lower(mod, resolve_target(TARGET), PipelineOptions(**options))
    found = [func.attrs for func in lowered.functions.values() if RULE_ATTRIBUTE in (func.attrs or {})]
    assert not [attributes for attributes in found if FAULT_ATTRIBUTE in attributes]
    return [str(attributes[RULE_ATTRIBUTE]) for attributes in found]


CASES: list[dict[str, Any]] = [
    {"channels": 96, "hidden": 4, "size": (14, 14)},
    {"channels": 32, "hidden": 8, "size": (7, 7), "gate": "clip"},
    {"channels": 17, "hidden": 3, "size": (31, 33)},
    {"channels": 127, "hidden": 31, "size": (7, 3)},
    {"channels": 33, "hidden": 1, "size": (1, 17)},
    {"channels": 64, "hidden": 16, "size": (8, 8), "batch": 3},
    {"channels": 48, "hidden": 7, "size": (5, 5), "multiplies": False},
    {"channels": 5, "hidden": 2, "size": (9, 9)},
]


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_values(case: dict[str, Any], divides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if divides:  # small kernels are not worth two threads
        monkeypatch.setattr("tvm_ext.schedules.cpu.machine.Machine.divides", lambda machine, _flops: machine.cores > 1)
    mod, expected = block(**case)
    assert "cpu.excitation" in rules(mod)
    shape = tuple(map(int, mod["main"].params[0].ty.shape))
    value = np.random.default_rng(1).standard_normal(shape).astype("float32")
    (found,) = tvm_ext.compile(mod, TARGET).run([value]).values()
    assert np.abs(found - expected(value)[0]).max() < 2e-5


def test_averages_that_others_read_are_stored() -> None:
    mod, expected = block(32, 8, (8, 8), read_again=True)
    assert "cpu.excitation" not in rules(mod)
    value = np.random.default_rng(1).standard_normal((1, 8, 8, 8)).astype("float32")
    for found, right in zip(tvm_ext.compile(mod, TARGET).run([value]).values(), expected(value), strict=True):
        assert np.abs(found - right).max() < 2e-5


def test_a_pixel_that_is_no_number_makes_every_channel_none() -> None:
    mod, _ = block(32, 8, (8, 8), batch=2)
    value = np.random.default_rng(1).standard_normal((2, 8, 8, 8)).astype("float32")
    value[1, 2, 3, 4] = np.nan
    (found,) = tvm_ext.compile(mod, TARGET).run([value]).values()
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_it_can_be_left_out() -> None:
    assert "cpu.excitation" not in rules(block(32, 8, (8, 8))[0], inverted_residuals=False)


@pytest.mark.parametrize("order", [1, -1])
def test_two_averages_whose_products_are_added(order: int) -> None:
    """As where a concatenation of two images is taken apart: what follows the sum is in one kernel only."""
    rng = np.random.default_rng(0)
    shapes = [(24, 8, 1, 1), (24, 8, 1, 1), (16, 24, 1, 1), (16, 24, 1, 1), (48, 16, 1, 1)]
    weights = [rng.standard_normal(shape).astype("float32") / np.sqrt(shape[1]) for shape in shapes]
    x = relax.Var("x", relax.TensorType((1, 8, 12, 12), "float32"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            images = [emit(op.nn.relu(emit(op.nn.conv2d(x, relax.const(weight))))) for weight in weights[:2]]
            means = [emit(op.mean(image, [2, 3], keepdims=True)) for image in images]
            sums = [
                emit(op.nn.conv2d(mean, relax.const(weight))) for mean, weight in zip(means, weights[2:4], strict=True)
            ]
            h = emit(op.nn.relu(emit(op.add(*sums[::order]))))
            gate = emit(op.sigmoid(emit(op.nn.conv2d(h, relax.const(weights[4])))))
            output = builder.emit_output(relax.Tuple([gate, *images]))
        builder.emit_func_output(output)
    data = rng.standard_normal((1, 8, 12, 12)).astype("float32")
    found, *_ = tvm_ext.compile(builder.get(), TARGET).run([data]).values()
    convolve, double = torch.nn.functional.conv2d, [torch.from_numpy(weight).double() for weight in weights]
    kept = [torch.relu(convolve(torch.from_numpy(data).double(), weight)) for weight in double[:2]]
    parts = [convolve(y.mean((2, 3), keepdim=True), weight) for y, weight in zip(kept, double[2:4], strict=True)]
    expected = torch.sigmoid(convolve(torch.relu(parts[0] + parts[1]), double[4])).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
