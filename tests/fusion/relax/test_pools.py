"""Poolings inside Winograd convolutions: values of float64, odd extents, volumes, NaN, who else reads, two threads."""

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
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.winograd_division import Strips, WinogradExtents
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

Array = np.ndarray


def pooled(
    ins: int, outs: int, size: Sequence[int], kind: str = "max", batch: int = 1, taps: int = 3, window: int = 2,
    stride: int = 2, padding: int = 0, planes: int = 2, read_again: bool = False,
) -> tuple[tvm.IRModule, Any]:  # fmt: skip
    """Convolve, add, clip, pool; ``planes`` are those that a window of a volume has."""
    rank = len(size)
    rng = np.random.default_rng(ins * 100 + outs)
    weight = rng.standard_normal((outs, ins, *[taps] * (rank - 2), 3, 3)).astype("float32") / np.sqrt(9 * ins)
    bias = rng.standard_normal((1, outs, *[1] * rank)).astype("float32")
    x = relax.Var("x", relax.TensorType((batch, ins, *size), "float32"))
    builder = relax.BlockBuilder()
    around = [*[taps // 2] * (rank - 2), 1, 1]
    windows, strides = (([planes] * (rank - 2)) + [value] * 2 for value in (window, stride))
    pool = getattr(op.nn, f"{kind}_pool{rank}d")
    convolve = op.nn.conv2d if rank == 2 else op.nn.conv3d
    with builder.function("main", [x]):
        with builder.dataflow():
            convolved = builder.emit(convolve(x, relax.const(weight), padding=[*around, *around]))
            y = builder.emit(op.nn.relu(builder.emit(op.add(convolved, relax.const(bias)))))
            result = builder.emit(
                pool(y, pool_size=windows, strides=strides, padding=[*[0] * (rank - 2), padding, padding])
            )
            result = builder.emit_output(relax.Tuple([result, *([y] if read_again else [])]))
        builder.emit_func_output(result)

    def expected(value: Array) -> list[Array]:
        functions = torch.nn.functional
        conv, pooling = getattr(functions, f"conv{rank}d"), getattr(functions, f"{kind}_pool{rank}d")
        total = conv(torch.from_numpy(value).double(), torch.from_numpy(weight).double(), padding=around)
        y = torch.relu(total + torch.from_numpy(bias).double())
        return [
            item.numpy()
            for item in (
                pooling(y, windows, strides, [*[0] * (rank - 2), padding, padding]),
                *([y] if read_again else []),
            )
        ]

    return builder.get(), expected


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let two threads share out small convolutions by Winograd's algorithm, divided as the test says."""
    outputs, rows, parts, shares = request.param

    def strips(extents: WinogradExtents, _machine: Machine) -> Strips:
        return Strips(min(rows, extents.tile_rows), parts if extents.chunks % parts == 0 else 1, shares)

    monkeypatch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: outputs)
    monkeypatch.setattr("tvm_ext.layout.convolution_plan.choose_strips", strips)
    monkeypatch.setattr("tvm_ext.schedules.cpu.machine.Machine.divides", lambda machine, _flops: machine.cores > 1)


def kernels(mod: tvm.IRModule) -> list[str]:
    """Names of the kernels that are called, and a check that no rule failed."""
    lowered, *_ = lower(mod, resolve_target(TARGET), PipelineOptions())
    found = [
        (variable.name_hint, func)
        for variable, func in lowered.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc) and RULE_ATTRIBUTE in (func.attrs or {})
    ]
    assert not [name for name, func in found if FAULT_ATTRIBUTE in func.attrs]
    return [name for name, _ in found]


CASES: list[dict[str, Any]] = [
    {"ins": 16, "outs": 32, "size": (14, 14)},
    {"ins": 4, "outs": 16, "size": (8, 12), "kind": "avg"},
    {"ins": 17, "outs": 33, "size": (31, 17)},
    {"ins": 3, "outs": 127, "size": (7, 33), "batch": 3},
    {"ins": 16, "outs": 31, "size": (4, 8, 6)},
    {"ins": 5, "outs": 16, "size": (3, 9, 9), "batch": 2},
    {"ins": 16, "outs": 32, "size": (2, 7, 12), "planes": 1},
    {"ins": 16, "outs": 16, "size": (1, 8, 8), "taps": 1, "planes": 1},
]


@pytest.mark.parametrize("divided", [(4, 2, 1, False), (2, 1, 2, False), (4, 99, 2, True)], indirect=True)
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_values(case: dict[str, Any]) -> None:
    mod, expected = pooled(**case)
    value = np.random.default_rng(1).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    assert any("winograd" in name and "pool" in name for name in kernels(mod))
    (found,) = tvm_ext.compile(mod, TARGET).run([value]).values()
    assert np.abs(found - expected(value)[0]).max() < 2e-5


REFUSED: list[dict[str, Any]] = [
    {"ins": 16, "outs": 7, "size": (2, 2)},
    {"ins": 16, "outs": 16, "size": (8, 8), "read_again": True},
    {"ins": 16, "outs": 16, "size": (9, 9), "window": 3},
    {"ins": 16, "outs": 16, "size": (8, 8), "padding": 1},
    {"ins": 16, "outs": 16, "size": (8, 8), "stride": 1},
]


@pytest.mark.parametrize("divided", [(4, 1, 1, False)], indirect=True)
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: "-".join(map(str, case.values())))
def test_what_a_tile_does_not_hold_stays_apart(case: dict[str, Any]) -> None:
    mod, expected = pooled(**case)
    value = np.random.default_rng(1).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    assert not any("winograd" in name and "pool" in name for name in kernels(mod))
    found = tvm_ext.compile(mod, TARGET).run([value]).values()
    for one, other in zip(found, expected(value), strict=True):
        assert np.abs(one - other).max() < 2e-5


@pytest.mark.parametrize("divided", [(2, 1, 1, False), (4, 99, 2, True)], indirect=True)
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spreads_at_least_as_far_as_it_should(value: float) -> None:
    mod, expected = pooled(16, 16, (12, 12))
    data = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype("float32")
    data[0, 3, 5, 6] = value
    (found,) = tvm_ext.compile(mod, TARGET).run([data]).values()
    right = expected(data)[0]
    # Winograd's transforms make NaN of a tile in which something is infinite, so that no value hides it.
    assert np.isnan(found[np.isnan(right)]).all()
    untouched = np.ones((6, 6), bool)
    untouched[1:5, 1:5] = False
    np.testing.assert_allclose(found[..., untouched], right[..., untouched], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("divided", [(4, 2, 1, False)], indirect=True)
@pytest.mark.usefixtures("divided")
def test_it_can_be_left_out() -> None:
    mod, _ = pooled(16, 16, (12, 12))
    lowered, *_ = lower(mod, resolve_target(TARGET), PipelineOptions(inverted_residuals=False))
    assert not any("winograd" in v.name_hint and "pool" in v.name_hint for v in lowered.get_global_vars())


def test_products_of_pairs_keep_their_instruction() -> None:
    """A tile of a pooling multiplies float32; a convolution of bfloat16 would run without its dot products."""
    mod, _ = pooled(64, 64, (112, 112))
    target = resolve_target({"kind": "llvm", "mcpu": "cooperlake", "num-cores": 2})
    lowered, *_ = lower(mod, target, PipelineOptions(precision="bfloat16", winograd=False))
    rules = {
        str(func.attrs[RULE_ATTRIBUTE])
        for func in lowered.functions.values()
        if func.attrs and RULE_ATTRIBUTE in func.attrs
    }
    assert "cpu.convolution" in rules
    assert "cpu.pooled_convolution" not in rules
