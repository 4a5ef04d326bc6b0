"""Operators between quantise and dequantise nodes, beside onnxruntime: those of HVX and those of the scalar core."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.hexagon.emulated import needs_emulator
from tests.hexagon.qdq_operators import MATRICES, PICTURES, ROWS, SHAPES, Make, draw_case, run_cases
from tvm_ext.backends.hexagon.code import assembly
from tvm_ext.backends.hexagon.packer.pack import Packed

QUICK: tuple[tuple[str, dict[str, Make], tuple[int, ...]], ...] = (
    ("linear", PICTURES, (1, 3, 7, 17)),
    ("average", PICTURES, (1, 3, 7, 17)),
    ("transposed convolution", PICTURES, (1, 17, 7, 3)),
    ("squeeze and excite", PICTURES, (2, 3, 7, 7)),
    ("convolution of a row", ROWS, (1, 3, 17)),
    ("gemm", MATRICES, (3, 7)),
)
"""Few, each of another kind."""

A_FEW = 8
"""Operators of a model, which then takes seconds to compile, not minutes."""

TARGETS = ("hexagon-v67", "hexagon-v68", "hexagon-v69", "hexagon-v73")


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 5)


@needs_emulator
@pytest.mark.parametrize(("activations", "target"), [("uint8", "hexagon-v67"), ("int8", "hexagon-v73")])
def test_a_few_operators(activations: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LLVM's packets: packing takes most of the time, and has tests of its own."""
    plain = "tvm_ext.backends.hexagon.model.program.packed_kernels"
    monkeypatch.setattr(plain, lambda mod, target, share: Packed(assembly(mod, target)))
    cases = [draw_case(name, makes[name], shape, activations) for name, makes, shape in QUICK]
    assert all(np.unique(case.expected).size > 10 for case in cases)
    assert run_cases(cases, target) == []


def _parts() -> Iterator[Any]:
    """A few operators at a time, each on all shapes, and on another processor from shape to shape."""
    for makes, shapes in SHAPES:
        for first, shape in itertools.product(range(0, len(makes), A_FEW), shapes):
            names = list(makes)[first : first + A_FEW]
            target = TARGETS[(first // A_FEW + shapes.index(shape)) % len(TARGETS)]
            yield pytest.param(
                {name: makes[name] for name in names}, shape, target, id=f"{names[0]}-{'x'.join(map(str, shape))}"
            )


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(("makes", "shape", "target"), list(_parts()))
def test_every_operator(makes: dict[str, Make], shape: tuple[int, ...], target: str, activations: str) -> None:
    cases = [draw_case(name, make, shape, activations) for name, make in makes.items()]
    assert run_cases(cases, target) == []


def test_what_is_off_is_noticed() -> None:
    """An element a step off is right where float32 may round either way, and nowhere else."""
    case = draw_case("linear", PICTURES["linear"], (1, 3, 7, 17), "uint8")
    assert case.wrong(case.expected) == ""
    (sure, *_), (either, *_) = np.flatnonzero(~case.between), np.flatnonzero(case.between)
    for place, steps, is_right in ((sure, 1, False), (either, 1, True), (either, 2, False)):
        found = case.expected.copy()
        found.flat[place] += steps * np.float32(case.step)
        assert (case.wrong(found) == "") == is_right
    assert "shape" in case.wrong(case.expected[..., 1:])
