"""Operators whose conversion is ours, or is corrected: each against torch, many in one module to build it once."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn
from tvm import relax

from tests.frontend.compiled import Compiled, assert_same
from tvm_ext.frontend.torch.model import import_torch
from tvm_ext.frontend.torch.operators import CONVERTERS, REFINED, type_fault

pytestmark = pytest.mark.torch

Case = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(0)
CUBE = torch.randn(2, 6, 8, generator=GENERATOR)
TABLE = torch.randn(3, 4, generator=GENERATOR)
INTEGERS = torch.arange(-6, 6).reshape(3, 4)
PICTURE = torch.randn(1, 4, 9, 9, generator=GENERATOR)

# inputs, and what is computed of them
FAMILIES: dict[str, tuple[tuple[Any, ...], dict[str, Case]]] = {
    "places": (
        (CUBE, torch.tensor([0, 2, -1]), torch.tensor([[1, 4, 2]])),
        {
            "select from the end": lambda x, i, j: x[:, -1],
            "select first axis from the end": lambda x, i, j: x[-2],
            "select last axis": lambda x, i, j: x[..., 3],
            "negative index tensor": lambda x, i, j: x[:, i],
            "index tensor of rank 2": lambda x, i, j: x[:, j],
            "two side by side": lambda x, i, j: x[:, i, i],
            "two apart": lambda x, i, j: x[i - i, :, i],
            "two that broadcast": lambda x, i, j: x[:, i[:, None], j],
            "all axes": lambda x, i, j: x[i - i, i, i],
            "32-bit index": lambda x, i, j: x[:, i.to(torch.int32)],
            "constant index": lambda x, i, j: x[:, torch.tensor([-1, 0])],
            "gather": lambda x, i, j: torch.gather(x, 1, j.expand(2, 1, 3)),
            "unfold": lambda x, i, j: x.unfold(1, 3, 2),
            "norm of order 0": lambda x, i, j: torch.linalg.vector_norm(x * (x > 0), 0, 1, keepdim=True),
            "norms without end": lambda x, i, j: torch.linalg.vector_norm(x, float("inf")) - x.norm(float("-inf"), 1),
            "embedding": lambda x, i, j: F.embedding(j, x[0]),
        },
    ),
    "promotion": (
        (INTEGERS, TABLE, INTEGERS.to(torch.uint8), TABLE.half()),
        {
            "integers by integer": lambda i, x, u, h: i / 2,
            "integers by integers": lambda i, x, u, h: i / (i + 10),
            "integers times float": lambda i, x, u, h: i * 1.5,
            "bytes times float": lambda i, x, u, h: u * 0.5,
            "float minus integers": lambda i, x, u, h: 1.5 - i,
            "integers and floats": lambda i, x, u, h: i + x,
            "half and float": lambda i, x, u, h: h + x,
            "32 and 64 bits": lambda i, x, u, h: i.to(torch.int32) + i,
            "truth values": lambda i, x, u, h: (i > 0) + (x > 0),
            "product of truth values": lambda i, x, u, h: (i > 0) * (x > 0),
            "truth value times float": lambda i, x, u, h: (x > 0) * x,
            "compare with float": lambda i, x, u, h: i > 0.5,
            "compare mixed": lambda i, x, u, h: i > x,
            "exp of integers": lambda i, x, u, h: torch.exp(i),
            "square root of integers": lambda i, x, u, h: torch.sqrt(i.abs()),
            "reciprocal of integers": lambda i, x, u, h: torch.reciprocal(i + 20),
            "concatenation": lambda i, x, u, h: torch.cat([i, x], 1),
            "choice": lambda i, x, u, h: torch.where(x > 0, i, x),
            "clamp of integers by floats": lambda i, x, u, h: i.clamp(-1.5, 2.5),
            "power": lambda i, x, u, h: i.abs() ** 0.5,
            "sum of truth values": lambda i, x, u, h: (x > 0).sum(1),
            "running sum of truth values": lambda i, x, u, h: (x > 0).cumsum(1),
            "sum in other type": lambda i, x, u, h: x.sum(1, dtype=torch.float64),
        },
    ),
    "arithmetic": (
        (TABLE, INTEGERS),
        {
            "add alpha": lambda x, i: torch.add(x, x * x, alpha=0.5),
            "add alpha of integers": lambda x, i: torch.add(x, i, alpha=2),
            "sub alpha": lambda x, i: torch.sub(x, x * x, alpha=3),
            "rsub alpha": lambda x, i: torch.rsub(x, 2, alpha=3),
            "floor division": lambda x, i: torch.div(x * 5, 2, rounding_mode="floor"),
            "truncated division": lambda x, i: torch.div(x * 5, 2, rounding_mode="trunc"),
            "floor division of integers": lambda x, i: i // 4,
            "truncated division of integers": lambda x, i: torch.div(i, 4, rounding_mode="trunc"),
            "remainder of a negative": lambda x, i: torch.remainder(x * 5, -2.0),
            "remainder of integers": lambda x, i: i % 4,
            "clamp below": lambda x, i: x.clamp(min=-0.2),
            "clamp above": lambda x, i: x.clamp(max=0.1),
            "clamp without end": lambda x, i: x.clamp(0.0, float("inf")),
            "clamp between bounds in the wrong order": lambda x, i: x.clamp(0.5, -0.5),
            "clamp of integers, wrong order": lambda x, i: i.clamp(3, -2),
            "clamp to infinity": lambda x, i: (x.clamp(min=float("inf")) > 1) | (x.clamp(max=-float("inf")) > 1),
            "elu": lambda x, i: F.elu(x, 0.7),
            "selu": lambda x, i: F.selu(x),
            "celu": lambda x, i: F.celu(x, 0.5),
            "softplus": lambda x, i: F.softplus(x),
        },
    ),
    "reductions": (
        (CUBE, PICTURE),
        {
            "amax": lambda x, p: x.amax((1, 2)),
            "amin": lambda x, p: x.amin(1, keepdim=True),
            "product": lambda x, p: x.prod(1),
            "logsumexp": lambda x, p: x.logsumexp(1),
            "group norm": lambda x, p: F.group_norm(p, 2),
            "group norm with weights": lambda x, p: F.group_norm(p, 2, torch.arange(1.0, 5.0), torch.ones(4)),
            "instance norm": lambda x, p: F.instance_norm(p),
            "layer norm": lambda x, p: F.layer_norm(x, (6, 8)),
            "average by a divisor": lambda x, p: F.avg_pool2d(p, 3, 2, 1, divisor_override=5),
            "average by a divisor, past the padding": lambda x, p: F.avg_pool2d(p, 2, 3, 1, True, divisor_override=1),
            "average of cubes by a divisor": lambda x, p: F.avg_pool3d(p, (2, 3, 2), 2, 1, False, False, 7),
            "average of one picture by a divisor": lambda x, p: F.avg_pool2d(x, (3, 2), divisor_override=2),
            "average past the padding": lambda x, p: F.avg_pool2d(p, 2, 3, 1, True),
        },
    ),
    "sizes": (
        (PICTURE,),
        {
            "nearest, whole factor": lambda p: F.interpolate(p, scale_factor=2),
            "nearest, odd size": lambda p: F.interpolate(p, size=(13, 17)),
            "nearest, factor": lambda p: F.interpolate(p, scale_factor=1.7),
            "nearest, smaller": lambda p: F.interpolate(p, size=(4, 5)),
            "bilinear, whole factor": lambda p: F.interpolate(p, scale_factor=2, mode="bilinear"),
            "bilinear, factor": lambda p: F.interpolate(p, scale_factor=1.7, mode="bilinear"),
            "bilinear, corners": lambda p: F.interpolate(p, size=(13, 17), mode="bilinear", align_corners=True),
            "bilinear, smaller": lambda p: F.interpolate(p, size=(5, 4), mode="bilinear"),
            "bilinear, antialias": lambda p: F.interpolate(p, size=(5, 4), mode="bilinear", antialias=True),
            "bicubic, larger": lambda p: F.interpolate(p, size=(13, 17), mode="bicubic"),
            "bicubic, smaller": lambda p: F.interpolate(p, size=(4, 1), mode="bicubic"),
            "bicubic, corners": lambda p: F.interpolate(p, size=(1, 17), mode="bicubic", align_corners=True),
            "bicubic, factor": lambda p: F.interpolate(p, scale_factor=1.7, mode="bicubic"),
            "circular padding": lambda p: F.pad(p, (1, 2, 9, 0), mode="circular"),
            "circular padding of rows": lambda p: F.pad(p[0], (3, 4), mode="circular"),
            "bicubic, antialias": lambda p: F.interpolate(p, size=(5, 4), mode="bicubic", antialias=True),
        },
    ),
}


class All(nn.Module):
    """Computes every case of a family."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in self.cases.values()]


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_the_numbers_of_torch(family: str) -> None:
    inputs, cases = FAMILIES[family]
    module = All(cases)
    found = Compiled(import_torch(module, inputs).mod)(*inputs)
    assert_same(found, module(*inputs), list(cases))


@pytest.mark.parametrize("operator", [lambda x, i: x[i], lambda x, i: F.embedding(i, x)])
def test_index_out_of_range_reads_no_foreign_memory(operator: Case) -> None:
    """PyTorch refuses such an index; a compiled kernel cannot, and gives the nearest row."""
    table, places = torch.arange(12.0).reshape(4, 3), torch.tensor([0, 3])
    compiled = Compiled(import_torch(All({"": operator}), (table, places)).mod)
    (rows,) = compiled(table, torch.tensor([10**9, -(10**9)]))
    assert rows.tolist() == [[9.0, 10.0, 11.0], [0.0, 1.0, 2.0]]


def test_select_from_the_end_of_a_symbolic_dimension() -> None:
    class Last(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, -1] * 2

    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Last(), (CUBE,), dynamic_shapes=({1: length},))
    compiled = Compiled(import_torch(program).mod)
    for size in (2, 5, 31):
        x = torch.randn(2, size, 8)
        assert_same(compiled(x), x[:, -1] * 2)


def test_a_result_of_another_type_is_refused() -> None:
    """What a converter gives is held against what the exported program says of the node."""
    made = relax.const(np.zeros(3, "float32"))
    message = "its converter makes it float32, in PyTorch it is int64"
    assert type_fault(made, torch.zeros(3, dtype=torch.int64)) == message
    assert type_fault(made, torch.zeros(3)) is None


def test_an_operator_has_one_converter() -> None:
    """One that leaves some cases to TVM would take the place of one that does not, without a word."""
    assert not CONVERTERS.keys() & REFINED.keys()
