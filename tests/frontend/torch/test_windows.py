"""Pooling to a size, sums of embeddings, transposed convolutions of volumes: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError

pytestmark = pytest.mark.torch

Case = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(0)
PICTURE = torch.randn(2, 3, 7, 12, generator=GENERATOR)
PICTURE[0, 1, 3, 4], PICTURE[1, 0, 0, 0], PICTURE[1, 2, 6] = float("nan"), float("inf"), float("-inf")
VOLUME = torch.randn(1, 4, 3, 4, 5, generator=GENERATOR)
WEIGHT = torch.randn(4, 3, 2, 3, 3, generator=GENERATOR)
TABLE = torch.randn(11, 5, generator=GENERATOR)
WORDS = torch.randint(0, 11, (4, 3), generator=GENERATOR)
FLAT = torch.tensor([1, 4, 4, 0, 10, 2, 7])
BAGS = torch.tensor([0, 2, 2, 5])

COLUMNS, FLAT_COLUMNS = torch.randn(2, 18, 35, generator=GENERATOR), torch.randn(12, 25, generator=GENERATOR)

FAMILIES: dict[str, tuple[tuple[Any, ...], dict[str, Case]]] = {
    "folding": (
        (COLUMNS, FLAT_COLUMNS),
        {
            "overlapping": lambda c, f: F.fold(c, (5, 7), 3, padding=1),
            "apart": lambda c, f: F.fold(c, (18, 15), (2, 3), dilation=(1, 2), stride=(4, 2), padding=(0, 1)),
            "steps of a part of a window": lambda c, f: F.fold(c, (9, 11), 3, stride=2, padding=(1, 2)),
            "side by side": lambda c, f: F.fold(c[:, :, :12], (9, 8), (3, 2), stride=(3, 2)),
            "without a batch": lambda c, f: F.fold(f, (7, 7), (2, 3), dilation=(2, 1), stride=(1, 2), padding=(0, 2)),
        },
    ),
    "pooling": (
        (PICTURE, VOLUME),
        {
            "to one": lambda p, v: F.adaptive_max_pool2d(p, 1),
            "to a divisor": lambda p, v: F.adaptive_max_pool2d(p, (7, 4)),
            "to any size": lambda p, v: F.adaptive_max_pool2d(p, (3, 5)),
            "to a larger size": lambda p, v: F.adaptive_max_pool2d(p, (9, 12)),
            "one axis kept": lambda p, v: F.adaptive_max_pool2d(p, (None, 1)),
            "without a batch": lambda p, v: F.adaptive_max_pool2d(p[0], 2),
            "of a row": lambda p, v: F.adaptive_max_pool1d(p[0], 5),
            "of a volume": lambda p, v: F.adaptive_max_pool3d(v, (2, 2, 1)),
        },
    ),
    "bags": (
        (TABLE, WORDS, FLAT, BAGS),
        {
            f"{mode}, {name}": lambda t, w, f, b, mode=mode, case=case: case(t, w, f, b, mode)
            for mode in ("sum", "mean", "max")
            for name, case in {
                "of rows": lambda t, w, f, b, mode: F.embedding_bag(w, t, mode=mode),
                "by places": lambda t, w, f, b, mode: F.embedding_bag(f, t, b, mode=mode),
                "by constant places": lambda t, w, f, b, mode: F.embedding_bag(
                    f, t, torch.tensor([0, 3, 7]), mode=mode, include_last_offset=True
                ),
                "with padding": lambda t, w, f, b, mode: F.embedding_bag(f, t, b, mode=mode, padding_idx=4),
                "of rows, with padding": lambda t, w, f, b, mode: F.embedding_bag(w, t, mode=mode, padding_idx=0),
            }.items()
        }
        | {
            "weighted": lambda t, w, f, b: F.embedding_bag(
                w, t, mode="sum", per_sample_weights=torch.linspace(-1, 1, 12).reshape(4, 3)
            )
        },
    ),
    "volumes": (
        (VOLUME, WEIGHT),
        {
            "plain": lambda v, w: F.conv_transpose3d(v, w),
            "strided": lambda v, w: F.conv_transpose3d(v, w, torch.ones(3), (2, 1, 3), 1, (1, 0, 2)),
            "grouped": lambda v, w: F.conv_transpose3d(v, w, groups=2, stride=2),
            "dilated": lambda v, w: F.conv_transpose3d(v, w, dilation=2),
            "without a batch": lambda v, w: F.conv_transpose3d(v[0], w),
        },
    ),
    "more output padding than a stride": (
        (PICTURE[:, :, :5].nan_to_num(0, 1, 1), torch.randn(3, 2, 3, 2, generator=GENERATOR), torch.ones(2)),
        {
            "less padding": lambda p, w, b: F.conv_transpose2d(p, w, b, 1, 1, 1, dilation=2),
            "zeros behind": lambda p, w, b: F.conv_transpose2d(p, w, b, 1, 0, 1, dilation=2),
            "both": lambda p, w, b: F.conv_transpose2d(p, w, b, (2, 1), (1, 0), (2, 1), dilation=3),
            "grouped": lambda p, w, b: F.conv_transpose2d(p, w, None, 2, 1, 2, groups=3, dilation=3),
            "of rows": lambda p, w, b: F.conv_transpose1d(p[:, :, 0], w[:, :, 0], b, 1, 1, 1, dilation=2),
            "of volumes": lambda p, w, b: F.conv_transpose3d(p[None, :1], w[None, :1], None, 1, 0, 1, dilation=3),
        },
    ),
}


class All(nn.Module):
    """Computes some functions of its inputs."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in self.cases]


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_torch(family: str) -> None:
    inputs, cases = FAMILIES[family]
    module = All(list(cases.values()))
    found = tvm_ext.compile(module, example_inputs=inputs).run([value.numpy() for value in inputs])
    for name, ours, theirs in zip(cases, found.values(), module(*inputs), strict=True):
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), name
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("axes", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_places_of_maxima(axes: int) -> None:
    picture = torch.randint(-9, 9, (2, 3, 7, 5, 6)[: axes + 2], generator=torch.Generator().manual_seed(axes)).float()
    picture[0, 0, 3], picture[1, 2, 0] = float("nan"), float("nan")
    pool = getattr(F, f"adaptive_max_pool{axes}d")
    counts = [1, 3, 7, (5, 2, 3)[:axes]]
    module = All([lambda x, count=count: pool(x, count, return_indices=True) for count in counts])  # type: ignore[misc]
    module.cases += [lambda x: pool(x[0], 2, return_indices=True)[1], lambda x: pool(x[:0], 2, True)[1]]
    found = tvm_ext.compile(module, example_inputs=(picture,)).run([picture.numpy()])
    for ours, theirs in zip(found.values(), pytree.tree_leaves(module(picture)), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


SAMPLE_WEIGHTS = {
    "one": lambda x, w, s: F.conv2d(x.reshape(1, -1, 7, 12), w.reshape(-1, 3, 2, 3), groups=s),
    "windows": lambda x, w, s: F.conv2d(x.reshape(1, -1, 7, 12), w.reshape(-1, 3, 2, 3), None, 2, (1, 0), (1, 2), s),
    "samples": lambda x, w, s: F.conv2d(
        torch.stack([x, x + 1]).reshape(2, -1, 7, 12), w.reshape(-1, 3, 2, 3), groups=s
    ),
    "bias": lambda x, w, s: F.conv2d(
        x.reshape(1, -1, 7, 12), w.reshape(-1, 3, 2, 3), w[:, :, 0, 0, 0].reshape(-1), groups=s
    ),
    "row": lambda x, w, s: F.conv1d(x[:, :, 0].reshape(1, -1, 12), w[..., 0, :].reshape(-1, 3, 3), padding=1, groups=s),
    "transposed": lambda x, w, s: F.conv_transpose2d(
        x.reshape(1, -1, 7, 12), w.transpose(1, 2).reshape(-1, 4, 2, 3), None, (2, 1), 1, (1, 0), s
    ),
}


def test_convolutions_of_each_sample_with_its_own_weights() -> None:
    """The batch is the number of groups, and open."""

    class Modulated(nn.Module):
        def forward(self, x: Any, scale: Any) -> Any:
            weight = torch.linspace(-1, 1, 72).reshape(4, 3, 2, 3)[None] * scale[:, :, None, None, None]
            return {name: convolve(x, weight, x.shape[0]) for name, convolve in SAMPLE_WEIGHTS.items()}

    pictures, scales = torch.randn(3, 3, 7, 12), torch.randn(3, 4)
    spec = {0: torch.export.Dim("batch", min=1, max=9)}
    opened = torch.export.export(Modulated(), (pictures[:2], scales[:2]), dynamic_shapes=(spec, spec))
    model = tvm_ext.compile(opened)
    for count in (1, 2, 3):
        found = model.run([pictures[:count].numpy(), scales[:count].numpy()]).values()
        expected = Modulated()(pictures[:count], scales[:count])
        for (name, theirs), ours in zip(expected.items(), found, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4, err_msg=name)


def test_a_convolution_of_each_sample_needs_a_known_picture() -> None:
    class Modulated(nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            batch, _, height, width = x.shape
            return F.conv2d(x.reshape(1, batch * 3, height, width), weight.reshape(-1, 3, 2, 3), groups=batch)

    batch, height = torch.export.Dim("batch", min=1, max=9), torch.export.Dim("height", min=4, max=99)
    inputs = torch.randn(2, 3, 7, 12), torch.randn(2, 4, 3, 2, 3)
    opened = torch.export.export(Modulated(), inputs, dynamic_shapes=({0: batch, 2: height}, {0: batch}))
    with pytest.raises(UnsupportedOperatorError, match="the number of groups is an open size, and so are extents"):
        tvm_ext.compile(opened)
