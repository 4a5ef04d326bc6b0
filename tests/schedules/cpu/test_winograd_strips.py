"""Convolutions by strips: shared out among threads, on memory that ends with the arguments, with what is no number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm

import tvm_ext
from tests.guarded.pages import run_guarded
from tests.schedules.compute.test_winograd import _convolution, _expected
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.winograd_division import Strips, WinogradExtents
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2", "num-cores": 2}
"""Two threads, also where the machine that tests has one core."""

CASES = [
    (2, 2, 1, 3, 40, (17, 31), [2, 0, 1, 1]),
    (4, 1, 1, 33, 7, (31, 7), [0, 1, 3, 2]),
    (4, 3, 1, 17, 33, (33, 33), [1, 1, 1, 1]),
    (2, 3, 1, 7, 31, (17, 33), [1, 0, 0, 2]),
    (2, 2, 2, 17, 31, (17, 7), [1, 1, 1, 1]),
    (4, 9, 3, 33, 47, (33, 17), [1, 1, 1, 1]),
    (4, 2, 4, 5, 64, (7, 31), [0, 2, 1, 0]),
]
"""Outputs of a tile, rows of tiles in a strip, parts of the result, channels, extents and padding of a convolution."""


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        # Small kernels are not worth two threads.
        patched.setattr("tvm_ext.schedules.cpu.machine.Machine.divides", lambda machine, _flops: machine.cores > 1)
        yield patched


def choose(patch: pytest.MonkeyPatch, outputs: int, strip: int, parts: int = 1, shares: bool = False) -> None:
    def strips(extents: WinogradExtents, _machine: Machine) -> Strips:
        chosen = max(part for part in (1, parts) if extents.chunks % part == 0)
        return Strips(min(strip, extents.tile_rows), chosen, shares)

    patch.setattr("tvm_ext.layout.convolution_plan.winograd_outputs", lambda *_: outputs)
    patch.setattr("tvm_ext.layout.convolution_plan.choose_strips", strips)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_two_threads_touch_nothing_that_is_not_theirs(patch: pytest.MonkeyPatch, case: tuple, shares: bool) -> None:
    outputs, strip, parts, ins, outs, extents, padding = case
    mod, weight = _convolution(1, ins, outs, extents, padding)
    choose(patch, outputs, strip, parts, shares)
    target = resolve_target(TARGET)
    lowered, *_ = lower(mod, target, PipelineOptions())
    kernels = {
        var.name_hint: func
        for var, func in lowered.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc) and RULE_ATTRIBUTE in func.attrs
    }
    (strips,) = [func for func in kernels.values() if func.attrs[RULE_ATTRIBUTE] == "cpu.winograd_strips"]
    assert "T.parallel" in strips.script()
    data = np.random.default_rng(1).standard_normal((1, ins, *extents)).astype("float32")
    result, runs = run_guarded(tvm_ext.compile(mod, TARGET).executable, set(kernels), [data])
    assert len(runs) >= 2
    assert not [run for run in runs if run.fault]
    assert np.abs(result.numpy() - _expected(data, weight, padding)).max() < 2e-5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("shares", [False, True])
def test_what_is_no_number_spreads_as_far_as_in_images_at_once(
    patch: pytest.MonkeyPatch, case: tuple, value: float, shares: bool
) -> None:
    outputs, strip, parts, ins, outs, extents, padding = case
    mod, _ = _convolution(1, ins, outs, extents, padding)
    data = np.random.default_rng(1).standard_normal((1, ins, *extents)).astype("float32")
    data[0, 0, extents[0] // 2, extents[1] // 2] = value
    found = []
    for rows in (strip, 0):
        choose(patch, outputs, rows, parts if rows else 1, shares and rows > 0)
        (result,) = tvm_ext.compile(mod, TARGET).run([data]).values()
        found.append(result)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
