"""Models with several open extents: those that a loop over the first batch cannot hold stay outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import tvm
from torch.export import Dim
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tests.modules import run
from tvm_ext.backends.cpu.target import native_target

SIZES = (0, 1, 2, 7, 33)
Roles = dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]]

ROLES: Roles = {
    "matmul": lambda y: y[0] @ y[1].t(),
    "broadcast": lambda y: torch.relu(y[0][:, None] + y[1][None]),
    "concat": lambda y: torch.cat([y[0], y[1]], 0),
    "outer": lambda y: torch.outer(y[0].sum(1), y[1].sum(1)),
    "cross_attention": lambda y: torch.softmax(y[0] @ y[1].t(), 1) @ y[1],
    "matmul_of_three": lambda y: (y[0] @ y[1].t()) @ (y[1] @ y[2].t()),
    "broadcast_of_three": lambda y: (y[0][:, None, None] * y[1][None, :, None] - y[2]).sum(-1),
    "concat_of_three": lambda y: torch.cat([y[2], y[0], y[1]], 0),
    "outer_of_three": lambda y: torch.einsum("i,j,k->ijk", y[0].amax(1), y[1].sum(1), y[2].sum(1)),
}


class Branches(torch.nn.Module):
    """A product for each input, what joins them, and the first one's own result."""

    def __init__(self, count: int, join: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6 - index, 4) for index in range(count))
        self.join = join

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the joined result and one of the first batch alone."""
        made = [layer(value) for layer, value in zip(self.layers, inputs, strict=True)]
        return self.join(made), torch.tanh(made[0])


SLOW = ("broadcast_of_three", "concat_of_three", "cross_attention")
"""Take as long to compile as the others, and go the same ways."""


@pytest.mark.parametrize("role", [pytest.param(r, marks=[pytest.mark.slow] if r in SLOW else []) for r in ROLES])
def test_open_extents_in_several_roles(role: str) -> None:
    torch.manual_seed(3)
    count = 3 if role.endswith("_three") else 2
    model = Branches(count, ROLES[role]).eval()
    example = tuple(torch.randn(3 + index, 6 - index) for index in range(count))
    open_extents = tuple({0: Dim(name)} for name in "btk"[:count])
    exported = torch.export.export(model, example, dynamic_shapes={"inputs": open_extents})
    compiled = tvm_ext.compile(exported)
    for turn in range(len(SIZES) + 1):
        sizes = [SIZES[turn * (index + 1) % len(SIZES)] for index in range(count)]
        inputs = [torch.randn(rows, 6 - index) for index, rows in enumerate(sizes)]
        with torch.no_grad():
            expected = model(*inputs)
        for found, wanted in zip(compiled.run(inputs).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"sizes {sizes}")


def test_kernels_with_extents_computed_from_the_batch() -> None:
    @T.prim_func(private=True, s_tir=True)
    def ends_and_pairs(a: T.handle, b: T.handle, c: T.handle) -> None:
        n = T.int64()
        x = T.match_buffer(a, (n, T.int64(8)), "float32")
        y = T.match_buffer(b, (n,), "float32")
        z = T.match_buffer(c, (n * T.int64(2),), "float32")
        for i in range(n):
            with T.sblock("ends"):
                v = T.axis.spatial(n, i)
                y[v] = x[v, T.int64(0)] - x[v, T.int64(7)]
        for i in range(n * T.int64(2)):
            with T.sblock("pairs"):
                v = T.axis.spatial(n * T.int64(2), i)
                z[v] = x[v // T.int64(2), v % T.int64(2)]

    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    kernel = builder.add_func(ends_and_pairs, "ends_and_pairs")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            types = [relax.TensorType((n,), "float32"), relax.TensorType((n * 2,), "float32")]
            both = builder.emit(relax.call_tir(kernel, [x], types))
            pairs = builder.emit(relax.TupleGetItem(both, 1))
            sums = builder.emit(relax.op.sum(builder.emit(relax.op.reshape(pairs, (n, 2))), [1]))
            ends = builder.emit(relax.op.add(builder.emit(relax.TupleGetItem(both, 0)), sums))
            results = builder.emit_output(relax.Tuple([ends, pairs]))
        builder.emit_func_output(results)
    mod = builder.get()
    executable, stock = tvm_ext.compile(mod).executable, tvm.compile(mod, native_target())
    for number in SIZES:
        values = np.random.default_rng(number).standard_normal((number, 8)).astype("float32")
        got = run(executable, [values])
        assert_all_close(got, [values[:, 0] - values[:, 7] + values[:, :2].sum(1), values[:, :2].ravel()])
        if number:
            assert_all_close(got, run(stock, [values]))


def assert_all_close(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
