"""Attention of exported programs: its results, and that it is one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tvm_ext
from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.frontend import import_model
from tvm_ext.schedules.rule import RULE_ATTRIBUTE


class Attention(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, mask, **self.options)


def operands(shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def run(model: torch.nn.Module, inputs: Sequence[torch.Tensor], **export: Any) -> None:
    program = torch.export.export(model, tuple(inputs), **export)
    names = ("query", "key", "value", "mask")
    arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=False)}
    (result,) = tvm_ext.compile(program).run(arrays).values()
    np.testing.assert_allclose(result, model(*inputs).numpy(), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 17, 8), (2, 3, 17, 8), (2, 3, 17, 8)],
        [(1, 2, 7, 16), (1, 2, 33, 16), (1, 2, 33, 5)],
        [(1, 2, 33, 16), (1, 2, 7, 16), (1, 2, 7, 16)],
        [(3, 1, 4), (3, 1, 4), (3, 1, 4)],
        [(9, 4), (9, 4), (9, 4)],
    ],
)
def test_results(shapes: Sequence[Sequence[int]], causal: bool) -> None:
    run(Attention(is_causal=causal), operands(shapes))


def test_masks_and_scales_and_shared_heads() -> None:
    query, key, value = operands([(1, 4, 9, 8)] * 3)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    mask[3] = False  # a row of which everything is masked
    run(Attention(), [query, key, value, mask])
    run(Attention(scale=0.3), [query, key, value])
    run(Attention(enable_gqa=True), operands([(1, 4, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8)]))


def test_an_open_length() -> None:
    length = torch.export.Dim("length", min=3, max=64)
    shapes = {"query": {2: length}, "key": {2: length}, "value": {2: length}}
    run(Attention(is_causal=True), operands([(1, 2, 12, 8)] * 3), dynamic_shapes=shapes)


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_one_kernel_on_a_gpu(causal: bool) -> None:
    model, inputs = Attention(is_causal=causal), operands([(1, 2, 33, 16), (1, 2, 65, 16), (1, 2, 65, 16)])
    mod = import_model(torch.export.export(model, tuple(inputs))).mod
    target = target_of("sm_90")
    kernels = {str(kernel.scheduled.attrs[RULE_ATTRIBUTE]): kernel.scheduled for kernel in kernels_of("a", mod, target)}
    assert set(kernels) == {"cuda.attention"}
    arrays = [tensor.numpy() for tensor in inputs]
    if causal:
        arrays.append(np.triu(np.ones((33, 65), bool), 1))
    func = kernels["cuda.attention"].with_attr("global_symbol", "main")
    emulated = Emulator(func, target)([*arrays, np.zeros((1, 2, 33, 16), "float32")])
    assert not emulated.report.faults, str(emulated.report)
    np.testing.assert_allclose(emulated.arrays[-1], model(*inputs).numpy(), rtol=1e-4, atol=1e-5)


class Heads(torch.nn.Module):
    """A layer that divides features into heads and makes heads features again, as models write it."""

    def __init__(self, way: str, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.causal = way, causal
        self.projection = torch.nn.Linear(24, 72)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = x.shape
        parts = self.projection(x)
        if self.way == "unbind":
            query, key, value = parts.reshape(batch, rows, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            query, key, value = (part.view(batch, rows, 4, 6).transpose(1, 2) for part in parts.split(24, 2))
        result = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        heads_inside = result.permute(0, 2, 1, 3) if self.way == "permute" else result.transpose(1, 2)
        return heads_inside.contiguous().view(batch, rows, 24)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", ["split", "permute", "unbind"])
def test_heads_that_become_features_again(way: str, causal: bool, strict: bool) -> None:
    """Traced without gradients the program has no copy between the transpose and the view."""
    model = Heads(way, causal).eval()
    with torch.no_grad():
        x = torch.randn(2, 7, 24)
        program = torch.export.export(model, (x,), strict=strict)
        np.testing.assert_allclose(
            tvm_ext.compile(program).run({"x": x.numpy()})["output"], model(x).numpy(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_open_lengths_that_become_features_again(causal: bool) -> None:
    model = Heads("split", causal).eval()
    lengths = {0: torch.export.Dim("batch", max=5), 1: torch.export.Dim("rows", max=40)}
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(2, 7, 24),), dynamic_shapes=(lengths,))
        compiled = tvm_ext.compile(program)
        for shape in [(1, 1), (2, 7), (5, 40), (3, 17)]:
            x = torch.randn(*shape, 24)
            result = compiled.run({"x": x.numpy()})["output"]
            np.testing.assert_allclose(result, model(x).numpy(), rtol=1e-4, atol=1e-5)


class ViewedResult(torch.nn.Module):
    """A view puts heads together, which the traced kernel's result allows, and that of its decomposition does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (part.view(batch, length, 4, -1).transpose(1, 2) for part in x.split(width // 3, dim=2))
        result = functional.scaled_dot_product_attention(query, key, value, x.new_ones(batch, 1, length, length) > 0)
        return result.transpose(1, 2).reshape(batch, length, -1).view(-1, width // 3)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_view_behind_attention(is_open: bool) -> None:
    x = torch.randn(2, 12, 192)
    shapes = ({1: torch.export.Dim("length", min=2, max=64)},) if is_open else None
    program = torch.export.export(ViewedResult().eval(), (x,), dynamic_shapes=shapes, strict=False)
    compiled = tvm_ext.compile(program, dynamic="*" if is_open else None)
    for length in (12, 7, 33) if is_open else (12,):
        given = torch.randn(2, length, 192)
        (found,) = compiled.run({"x": given.numpy()}).values()
        np.testing.assert_allclose(found, ViewedResult()(given).numpy(), rtol=1e-5, atol=1e-5)


MASKS = {
    "of truth values": torch.rand(1, 2, 33, 65, generator=torch.Generator().manual_seed(0)) > 0.3,
    "of keys": torch.arange(65)[None, None, None] < torch.tensor(17),
    "to be added": torch.randn(2, 33, 65, generator=torch.Generator().manual_seed(0)),
    "of nothing": torch.zeros(1, 1, 33, 65, dtype=torch.bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_given_masks_are_part_of_the_kernel(name: str) -> None:
    mask = MASKS[name].clone()
    if name == "of truth values":
        mask[:, :, 7] = False  # a row of which everything is masked is zeros
    inputs = [*operands([(1, 2, 33, 16), (1, 2, 65, 16), (1, 2, 65, 16)]), mask]
    model = EmulatedModel(torch.export.export(Attention(), tuple(inputs)))
    kernels = [rule for name, rule in model.rules.items() if not name.startswith("reshape")]
    assert kernels.count("cuda.attention") == 1
    assert not any("matmul" in rule for rule in kernels)
    (result,) = model(*(tensor.numpy() for tensor in inputs))
    np.testing.assert_allclose(result, Attention()(*inputs).numpy(), rtol=1e-4, atol=1e-5)
    assert model.faults == []
    run(Attention(), inputs)


def test_a_bias_of_the_model_masks_nothing() -> None:
    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(MASKS["to be added"])

        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, key, value, self.bias)

    inputs = operands([(1, 2, 33, 16), (1, 2, 65, 16), (1, 2, 65, 16)])
    kernels = kernels_of("a", import_model(torch.export.export(Biased(), tuple(inputs))).mod, target_of("sm_90"))
    assert [str(kernel.scheduled.attrs[RULE_ATTRIBUTE]) for kernel in kernels] == ["cuda.attention"]


class ByHand(torch.nn.Module):
    """Attention of four axes that a model writes out itself; its products are exported as products of three."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        query, key, value = self.project(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2) / 4).softmax(-1)
        return self.out((scores @ value).transpose(1, 2).reshape(batch, rows, width))


@pytest.mark.parametrize(("batch", "rows"), [(1, 33), (3, 17), (2, 1)])
def test_products_written_by_hand_read_their_operands_in_place(batch: int, rows: int) -> None:
    torch.manual_seed(0)
    model, x = ByHand(24, 3).eval(), torch.randn(batch, rows, 24)
    compiled = tvm_ext.compile(torch.export.export(model, (x,)))
    (result,) = compiled.run([x.numpy()]).values()
    np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert compiled.metadata["decisions"]["statistics"]["kernel_calls"] <= 9  # 11 and 12, with the reshapes between
