"""Padding, repetition, windows, scattering and attention over open extents: the numbers of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import tvm_ext  # noqa: E402
from tvm_ext.errors import InputError  # noqa: E402

AUTO = torch.export.Dim.AUTO


class Forms(torch.nn.Module):
    """Windows of eight after padding, frames of three, a row for each sequence, and a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.row = torch.nn.Parameter(torch.randn(5, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Any, y: Any) -> Any:
        n, t, _ = x.shape
        whole = F.pad(x, (0, 0, 0, -t % 8), value=0.5)
        windows = whole.reshape(n, -1, 8, 5).amax(2)
        frames = F.pad(x, (0, 0, 2, 3)).unfold(1, 3, 2).sum(-1)
        like = F.pad(x, (0, 0, 0, y.shape[1] - t), value=2)
        return windows, frames, self.row.repeat(n, 1, 1) + x, like + y


def check(module: torch.nn.Module, cases: Any, dynamic: Any) -> None:
    model = tvm_ext.compile(torch.export.export(module.eval(), cases[-1], dynamic_shapes=dynamic))
    for given in cases:
        with torch.no_grad():
            wanted = module(*given)
        for want, found in zip(wanted, model.run([value.numpy() for value in given]).values(), strict=True):
            shapes = [value.shape for value in given]
            assert found.shape == tuple(want.shape), shapes
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=str(shapes))


def test_padding_repetition_and_windows() -> None:
    # From 9 on: torch makes it a condition that there is more than one window.
    extents = (
        (1, 9, 3),
        (2, 10, 10),
        (3, 11, 9),
        (7, 15, 12),
        (1, 16, 5),
        (4, 17, 17),
        (2, 31, 64),
        (5, 33, 2),
        (2, 12, 21),
    )
    cases = [(torch.randn(n, t, 5), torch.randn(n, s, 5)) for n, t, s in extents]
    check(Forms(), cases, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))


class Empty(torch.nn.Module):
    """Memory that is made empty and written over."""

    def forward(self, x: Any) -> Any:
        rows = torch.empty(x.shape[0], 3).fill_(2.0)
        flags = x.new_empty((x.shape[0], 1), dtype=torch.bool).fill_(True)
        like = torch.empty_like(x).copy_(x) + torch.empty_strided((x.shape[0], 7), (7, 1)).zero_()
        return rows, flags, like, F.rrelu(x)


def test_empty_tensors_of_open_extents() -> None:
    check(Empty(), [(torch.randn(rows, 7),) for rows in (1, 2, 9)], ({0: AUTO},))


class Graph(torch.nn.Module):
    """Messages along edges, added up and put where they belong."""

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        total = torch.zeros_like(x).index_add(0, target, x[source])
        pairs = torch.zeros(x.shape[0], x.shape[0]).index_put((source, target), torch.ones(()))
        return total, pairs


def test_sums_along_edges() -> None:
    cases = [(torch.randn(n, 4), torch.randint(0, n, (2, e))) for n, e in ((1, 1), (3, 7), (7, 3), (17, 31), (9, 20))]
    check(Graph(), cases, ({0: AUTO}, {1: AUTO}))


class Attention(torch.nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any) -> Any:
        return (F.scaled_dot_product_attention(q, k, k + 1, is_causal=self.causal),)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_a_mask_is_two_products_and_a_softmax(causal: bool) -> None:
    def given(n: int, s: int, t: int) -> Any:
        return torch.randn(n, 3, s, 8), torch.randn(n, 3, t, 8)

    sizes = ((1, 1, 1), (2, 7, 31), (3, 17, 17), (1, 33, 2), (2, 64, 9))
    cases = [given(n, s, t) for n, s, t in sizes]
    check(Attention(causal), cases, ({0: AUTO, 2: AUTO}, {0: AUTO, 2: AUTO}))
    program = torch.export.export(Attention(causal), cases[-1], dynamic_shapes=({0: AUTO, 2: AUTO},) * 2)
    assert "relax.any" not in tvm_ext.import_model(program).mod.script()


class Spread(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.var(1), x.std((0, 1), correction=2, keepdim=True), x.var(), torch.var(x, 1, correction=0)


def test_variances_of_open_extents() -> None:
    sizes = ((1, 2), (3, 1), (2, 7), (17, 31), (5, 33))
    check(Spread(), [(torch.randn(n, t, 3),) for n, t in sizes], ({0: AUTO, 1: AUTO},))


class Cut(torch.nn.Module):
    """A convolution of even width whose last place is cut off, and places counted from both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Conv1d(5, 5, 4, padding=2)

    def forward(self, x: Any) -> Any:
        same = x + self.wide(x)[:, :, :-1]
        rows = same.transpose(1, 2)
        return rows[:, 0] + rows[:, -1], rows[:, 1:-2].cumsum(1), rows[:, -3:] * rows[:, :3], rows[:, 2:40]


def test_slices_and_places_of_open_extents() -> None:
    sizes = ((1, 6), (3, 5), (2, 7), (1, 39), (2, 38), (2, 33), (3, 9))
    check(Cut(), [(torch.randn(n, 5, t),) for n, t in sizes], ({0: AUTO, 2: AUTO(min=4, max=100)},))


class Rolled(torch.nn.Module):
    """Windows that are shifted around the end, a dividing extent among what is computed."""

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        whole = F.pad(x, (0, 0, 0, -t % 4)).roll(-2, 1)
        rows = whole.reshape(n, whole.shape[1] // 4, 4, d).cumsum(2)
        return (rows.reshape(n, -1, d).roll(2, 1)[:, :t],)


class Strided(torch.nn.Module):
    """Extents that arithmetic on sizes and that of convolutions spell differently."""

    def __init__(self) -> None:
        super().__init__()
        self.halved = torch.nn.Conv1d(5, 6, 3, 2, 1)

    def forward(self, x: Any) -> Any:
        y = self.halved(self.halved(x).relu()[:, :5]).transpose(1, 2)
        n, t, d = y.shape
        heads = y.reshape(n, t, 2, d // 2).transpose(1, 2)
        mixed = (heads @ heads.transpose(2, 3)).softmax(-1) @ heads
        return (mixed.transpose(1, 2).reshape(n, t, d) + torch.arange(t)[:, None],)


def test_shifted_windows() -> None:
    check(
        Rolled(),
        [(torch.randn(n, t, 3),) for n, t in ((1, 5), (2, 7), (3, 17), (1, 33), (2, 13))],
        ({0: AUTO, 1: AUTO},),
    )


def test_extents_are_spelled_alike() -> None:
    cases = [(torch.randn(n, 5, t),) for n, t in ((1, 5), (2, 7), (3, 17), (1, 33), (2, 30))]
    check(Strided(), cases, ({0: AUTO, 2: AUTO(min=5, max=100)},))


class Positions(torch.nn.Module):
    """A learnt table of which a part is read that extents tell."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(64.0).reshape(16, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, m = x.shape[1], y.shape[1]
        return x + self.table[:n], self.table[n : n + 2].sum(), self.table[m:][:1], self.table[None, :m] * y


def test_a_part_of_a_table() -> None:
    auto, module = torch.export.Dim.AUTO, Positions()
    shapes = ({0: auto, 1: auto(max=14)}, {0: auto, 1: auto(max=12)})
    program = torch.export.export(module, (torch.randn(2, 5, 4), torch.randn(2, 3, 4)), dynamic_shapes=shapes)
    compiled = tvm_ext.compile(program)
    for n, m in ((1, 1), (14, 12), (7, 3), (2, 12), (13, 7)):
        given = torch.randn(3, n, 4), torch.randn(3, m, 4)
        found = compiled.run([value.numpy() for value in given]).values()
        with torch.no_grad():
            for got, want in zip(found, module(*given), strict=True):
                np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
    with pytest.raises(InputError, match="the model is made for"):
        compiled.run([np.zeros((3, 15, 4), "float32"), np.zeros((3, 3, 4), "float32")])


class InstanceNorms(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.scaled = torch.nn.InstanceNorm1d(3), torch.nn.InstanceNorm2d(2, affine=True, eps=1e-3)
        torch.nn.init.normal_(self.scaled.weight)
        torch.nn.init.normal_(self.scaled.bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.plain(x), self.scaled(y)


def test_instance_norms_of_open_extents() -> None:
    sizes = ((1, 2, 2, 2), (2, 7, 3, 17), (3, 33, 31, 1), (2, 17, 5, 9))
    cases = [(torch.randn(n, 3, t), torch.randn(n, 2, h, w)) for n, t, h, w in sizes]
    check(InstanceNorms(), cases, ({0: AUTO, 2: AUTO}, {0: AUTO, 2: AUTO, 3: AUTO}))


@pytest.mark.parametrize("dynamic", [None, ({0: AUTO, 2: AUTO},)], ids=["known", "open"])
def test_instance_norms_are_one_operator(dynamic: Any) -> None:
    """PyTorch's own decomposition has batch and channels in one axis, with reshapes on both sides."""
    module = torch.nn.InstanceNorm1d(3, affine=True)
    program = torch.export.export(module.eval(), (torch.randn(2, 3, 9),), dynamic_shapes=dynamic)
    found: list[str] = []

    def visit(call: relax.Call) -> None:
        found.append(call.op.name)

    tvm_ffi.structural_walk(tvm_ext.import_model(program).mod["main"], [(relax.Call, visit)])
    assert found == ["relax.nn.group_norm"]


class Parts(torch.nn.Module):
    """Parts of one element of what is computed from an open extent, next to extents that are fixed."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[1]
        first = torch.ones(n, n, dtype=torch.bool).tril()[None, :, :1]
        both = torch.cat([x, x * 2], 1)
        return x.masked_fill(~first, -5.0), x[:, -1:] * x, both - both[:, :1]


def test_parts_of_one_element_have_one() -> None:
    sizes = ((1, 2), (2, 3), (3, 7), (2, 130), (1, 33), (2, 17))
    cases = [(torch.randn(b, n, 7),) for b, n in sizes]
    for extent in (AUTO, torch.export.Dim("n", min=2, max=130)):
        check(Parts(), cases, ({0: AUTO, 1: extent},))
    program = torch.export.export(Parts(), cases[2], dynamic_shapes=({0: AUTO, 1: AUTO},))
    with pytest.raises(
        InputError, match=r"x_1 = 0 where the model needs x_1 >= 1; give sizes that it takes \(x_1 = 1\)"
    ):
        tvm_ext.compile(program).run([np.zeros((2, 0, 7), "float32")])
    program = torch.export.export(Parts(), cases[2], dynamic_shapes=({0: AUTO, 1: AUTO(min=3)},))
    assert not [text for text in tvm_ext.import_model(program).conditions if "x_1 >=" in text]


class Written(torch.nn.Module):
    """Parts of what is assigned to: inside, every other, one row, and two tensors side by side."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b, n, d = x.shape
        inside, half, rows = x.clone(), x.clone(), x.clone()
        inside[:, 1:-1] = inside[:, 1:-1] * 2
        half[:, 1::3] = 0.0
        rows[:, 0], rows[:, -1] = 1, 2
        both = torch.zeros(b, n + y.shape[1], d)
        both[:, :n], both[:, n:] = x, y
        mixed, framed = torch.zeros(b, 2 * n, d), x.new_zeros(b, n + 2, d + 2)
        mixed[:, 0::2], mixed[:, 1::2] = x, x + 1
        framed[:, 1:-1, 1:-1] = x
        return inside, half, rows, both, mixed, framed


def test_assignments_to_parts() -> None:
    sizes = ((1, 5, 1), (2, 6, 2), (1, 7, 3), (3, 17, 33), (1, 127, 1), (2, 31, 64))
    cases = [(torch.randn(b, n, 3), torch.randn(b, m, 3)) for b, n, m in sizes]
    check(Written(), cases, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))
