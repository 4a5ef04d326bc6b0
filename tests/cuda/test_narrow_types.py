"""Kernels of 8- and 16-bit types: what CUDA has no vectors, constants or shuffles of is compiled, and right."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from scripts.cuda.emulate import compare
from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.resources import kernel_resources
from tvm_ext.backends.cuda.toolkit import find_toolkit

TARGET = target_of("sm_90")
TYPES = ("int8", "uint8", "int16", "float16", "bfloat16")


def constant(x: relax.Expr, value: float) -> relax.Expr:
    return R.const(value, str(x.ty.dtype))


def product(x: relax.Expr) -> relax.Expr:
    """A depth that is no multiple of a tile's: copies have zeros of bytes beside it."""
    return R.matmul(R.strided_slice(x, [1], [0], [144]), R.permute_dims(R.strided_slice(x, [1], [0], [144])), "int32")


def scaled(x: relax.Expr, by: relax.Expr) -> relax.Expr:
    """Multiply in float32, to numbers that fit any of the types: what others become is not defined."""
    half = R.multiply(R.astype(x, "float32"), R.const(1 / 16, "float32"))
    return R.multiply(half, R.multiply(R.astype(by, "float32"), R.const(1 / 16, "float32")))


OPERATORS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "constant": lambda x: R.add(x, constant(x, 3)),
    "clip": lambda x: R.clip(x, 1, 5),
    "padding": lambda x: R.nn.pad(x, [0, 0, 0, 160]),
    "comparison": lambda x: R.where(R.equal(x, constant(x, 0)), constant(x, 7), x),
    "wider between": lambda x: R.astype(R.multiply(R.astype(x, "float32"), R.const(0.5, "float32")), str(x.ty.dtype)),
    "largest of rows": lambda x: R.max(x, [1]),
    "smallest of columns": lambda x: R.min(x, [0]),
    "sum of rows": lambda x: R.sum(x, [1]),
    "sum and what follows": lambda x: R.add(x, R.sum(x, [1], keepdims=True)),
    "channels": lambda x: R.add(x, R.reshape(R.strided_slice(x, [1], [0], [1]), (33, 1))),
    "wide channels": lambda x: R.astype(scaled(x, R.strided_slice(x, [1], [0], [1])), str(x.ty.dtype)),
    "place of the largest": lambda x: R.argmax(x, 1),
}


@pytest.mark.parametrize("dtype", TYPES)
def test_right_and_compiled(dtype: str) -> None:
    toolkit = find_toolkit()
    operators = dict(OPERATORS)
    if dtype == "bfloat16":
        del operators["place of the largest"]  # TVM has no arg max of it
    if dtype.endswith("int8"):
        operators["product"] = product
    scheduled = {}
    for name, build in operators.items():
        mod = graph(lambda _, x, build=build: build(x), [((33, 160), dtype)])
        for kernel in kernels_of(name, mod, TARGET):
            why, _ = compare(kernel, TARGET)
            assert why == "", f"{name}, {kernel.name}: {why}"
            scheduled[f"{name.replace(' ', '_')}_{kernel.name}"] = kernel.scheduled
    if toolkit is not None:
        assert len(kernel_resources(scheduled, TARGET, toolkit)) >= len(scheduled)


TRUTHS: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "comparison": lambda x, y: R.less(x, y),
    "not": lambda x, y: R.logical_not(R.equal(x, y)),
    "choice": lambda x, y: R.where(R.less(x, y), x, y),
    "any of rows": lambda x, y: R.max(R.astype(R.less(x, y), "int8"), [1]),
    "as numbers": lambda x, y: R.astype(R.less(x, y), "float32"),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_truth_values_are_moved_one_by_one(name: str) -> None:
    """TVM prints a vector of four as ``ushort4``, of eight bytes in memory; the emulator refuses such kernels."""
    for mod in (
        graph(lambda _, x, y: TRUTHS[name](x, y), [((20, 24), "float32")] * 2),
        graph(lambda _, x, y: R.logical_and(x, y), [((20, 24), "bool")] * 2),
    ):
        for kernel in kernels_of(name, mod, TARGET):
            why, _ = compare(kernel, TARGET)
            assert why == "", f"{name}, {kernel.name}: {why}"
            source = tirx.build(tvm.IRModule({"main": kernel.scheduled.with_attr("global_symbol", "main")}), TARGET)
            assert "ushort4*" not in source.imports[0].inspect_source()


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_whose_sums_are_no_numbers_of_the_type(dtype: str, is_open: bool) -> None:
    """The sum of 3600 pixels of 30 is beyond float16, and 70225 pixels are a number that is none."""
    torch = pytest.importorskip("torch")

    class Statistics(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.mean((2, 3)), x.var((2, 3)), x.std((1, 2, 3), unbiased=False, keepdim=True), x.mean()

    kind = getattr(torch, dtype)
    for pixels in (60, 265):
        x = (torch.randn(2, 1, pixels, pixels) + 30).to(kind)
        sizes = ({0: torch.export.Dim("n", min=1, max=16)},) if is_open else None
        model = EmulatedModel(torch.export.export(Statistics(), (x,), dynamic_shapes=sizes))
        given = x.numpy() if dtype == "float16" else x.float().numpy().astype(ml_dtypes.bfloat16)
        for found, wanted in zip(model(given), Statistics()(x.double()), strict=True):
            np.testing.assert_allclose(
                found.astype("float64"), wanted.numpy(), rtol=2e-3 if dtype == "float16" else 2e-2
            )
        assert model.faults == []
