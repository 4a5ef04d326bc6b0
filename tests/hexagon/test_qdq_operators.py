"""Operators between quantise and dequantise nodes, beside onnxruntime: those of HVX and those of the scalar core."""

from __future__ import annotations

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


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("makes", "shape"),
    [(makes, shape) for makes, shapes in SHAPES for shape in shapes],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("part", range(4))
def test_every_operator(makes: dict[str, Make], shape: tuple[int, ...], activations: str, part: int) -> None:
    cases = [draw_case(name, make, shape, activations) for name, make in list(makes.items())[part::4]]
    if not cases:
        pytest.skip("fewer operators than parts")
    assert run_cases(cases, f"hexagon-{('v67', 'v68', 'v69', 'v73')[part]}") == []


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
