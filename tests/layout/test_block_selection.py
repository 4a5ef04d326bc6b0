"""Blocks of channels selected for a whole network: the best ones by the model, and the same numbers as others give."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_ext
from tvm_ext.layout import block_selection
from tvm_ext.layout.block_selection import (
    PLAIN,
    BlockedOperator,
    Tensor,
    convolution_seconds,
    problem_of,
    select_blocks,
)
from tvm_ext.layout.convolution_plan import ConvolutionShape, plan_convolution
from tvm_ext.schedules.cpu.machine import ROWS

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

AVX512 = replace(ROWS[0][1], cores=2)


@st.composite
def graphs(draw: st.DrawFn) -> list[BlockedOperator]:
    operators = [BlockedOperator("input", {PLAIN: 0.0})]
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["any", "same", "kept"]))
        count = draw(st.integers(1, 1 if kind == "kept" else 2))
        channels = draw(st.sampled_from([4, 12, 24, 33]))
        operands = tuple(
            Tensor(draw(st.integers(0, number)), channels, draw(st.sampled_from([49, 3136]))) for _ in range(count)
        )
        blocks = [16, 8, 4] if kind == "any" else [PLAIN, 16, 8, 4] if kind == "kept" else [PLAIN, 8, 4]
        seconds = {block: 0.0 if block == PLAIN else draw(st.integers(1, 40)) * 1e-7 for block in blocks}
        operators.append(BlockedOperator(kind, seconds, operands, kind))
    return operators


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_other_blocks_take_less(operators: list[BlockedOperator]) -> None:
    found = select_blocks(operators, AVX512)
    problem = problem_of(operators, AVX512)
    every = itertools.product(*(range(len(operator.seconds)) for operator in operators))
    best = min(problem.aggregate_cost(choice) for choice in every)
    assert round(found.seconds * 1e12) == best
    assert found.optimal
    assert found.seconds <= found.default_seconds
    for block, operator in zip(found.blocks, operators, strict=True):
        assert block in operator.seconds


def test_narrow_blocks_take_longer_and_copies_cost() -> None:
    shape = ConvolutionShape(1, 64, 64, 1, (28, 28), (1, 1), (1, 1), (0,) * 4, (1, 1))
    wide, narrow = (
        convolution_seconds(plan, shape, AVX512)
        for width in (16, 4)
        if (plan := plan_convolution(shape, AVX512, 0, False, False, width)) is not None and plan.block_out == width
    )
    assert narrow > 1.5 * wide
    tensor = Tensor(0, 24, 784)
    assert tensor.copied_seconds(16, 8, AVX512) > tensor.copied_seconds(8, 8, AVX512) > AVX512.call_seconds
    assert Tensor(0, 64, 1 << 20).copied_seconds(1, 16, AVX512) > 0.01


class Ghosts(nn.Module):
    """Convolutions whose results stand beside those of a depthwise one (GhostNet)."""

    def __init__(self, halves: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [16, *(2 * half for half in halves)]
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.primary = nn.ModuleList([nn.Conv2d(w, half, 1) for w, half in zip(widths, halves, strict=False)])
        self.cheap = nn.ModuleList([nn.Conv2d(half, half, 3, padding=1, groups=half) for half in halves])
        self.last = nn.Conv2d(widths[-1], 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = torch.relu(self.first(image))
        for primary, cheap in zip(self.primary, self.cheap, strict=True):
            made = torch.relu(primary(image))
            image = torch.cat([made, torch.relu(cheap(made))], 1)
        return self.last(image)


def compiled_in_both_ways(module: nn.Module, image: torch.Tensor, monkeypatch: pytest.MonkeyPatch, target: object):  # type: ignore[no-untyped-def]
    found = []
    for pays in (0.0, 1e9):
        monkeypatch.setattr(block_selection, "PAYS", pays)
        compiled = tvm_ext.compile(module.eval(), target, example_inputs=(image,))
        rows = [row for row in compiled.metadata["decisions"]["layout"] if row["operator"] == "whole graph"]
        assert len(rows) <= (pays > 0)  # halves of whole vectors leave nothing to select
        found.append((compiled, rows))
    return found


@pytest.mark.parametrize("mcpu", [None, "haswell", "nehalem"])
@pytest.mark.parametrize(("halves", "size"), [([12, 36, 20], (7, 17)), ([3, 33, 7], (1, 31)), ([4, 9], (33, 2))])
def test_the_same_numbers_in_other_blocks(halves, size, mcpu, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    target = None if mcpu is None else {"kind": "llvm", "mcpu": mcpu, "num-cores": 2}
    image = torch.randn(2, 3, *size)
    module = Ghosts(halves)
    with torch.no_grad():
        expected = module(image).numpy()
    for compiled, _ in compiled_in_both_ways(module, image, monkeypatch, target):
        (result,) = compiled.run([image.numpy()]).values()
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5 * max(1.0, float(np.abs(expected).max())))
        image_of_nan = image.numpy().copy()
        image_of_nan[0] = np.nan
        (result,) = compiled.run([image_of_nan]).values()
        assert np.isnan(result[0]).all()
        np.testing.assert_allclose(result[1], expected[1], rtol=0, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def test_a_concatenation_keeps_blocks_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_selection, "PAYS", 0.98)
    target = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
    compiled = tvm_ext.compile(Ghosts([8, 36, 12, 36]).eval(), target, example_inputs=(torch.randn(1, 3, 56, 56),))
    (row,) = [row for row in compiled.metadata["decisions"]["layout"] if row["operator"] == "whole graph"]
    assert row["form"] == "blocks of channels"
    assert row["plan"]["optimal"]
    assert row["plan"]["microseconds"] < row["plan"]["chosen one by one"]
    blocks = {row["plan"]["block_out"] for row in compiled.metadata["decisions"]["layout"] if "conv" in row["operator"]}
    assert blocks > {16}  # the others are as narrow as concatenations ask for


def test_whole_vectors_leave_nothing_to_select() -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 32, 1)).eval()
    compiled = tvm_ext.compile(module, example_inputs=(torch.randn(1, 3, 9, 9),))
    assert all(row["operator"] != "whole graph" for row in compiled.metadata["decisions"]["layout"])
