"""What is found by its order, whole models in the emulator: NaN included, of integers and of open extents too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import te

from scripts.cuda.kernels import kernels_of
from tests.cuda.whole_model import SM_90, EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.errors import CompileError


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def flat(result: Any) -> Iterator[np.ndarray]:
    if isinstance(result, torch.Tensor):
        yield result.numpy()
    else:
        for part in result:
            yield from flat(part)


def check(function: Callable[..., Any], *given: torch.Tensor, open_rows: bool = False) -> dict[str, str]:
    """Compare a function of a model with PyTorch; gives the rules of its kernels."""
    dynamic = {"x": {0: torch.export.Dim("n", min=2, max=99)}} if open_rows else None
    model = EmulatedModel(torch.export.export(Of(function).eval(), (given[0],), dynamic_shapes=dynamic))
    for x in given:
        for got, wanted in zip(model(x.numpy()), flat(function(x)), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert not model.faults
    return model.rules


def drawn(*shape: int) -> torch.Tensor:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    x[1, 2] = x[1, 0] = float("nan")
    x[0, 1], x[2, 0], x[2, 1] = float("inf"), -float("inf"), x[2, 2]
    return x


ORDERS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: torch.sort(x, dim=1, stable=True),
    "argsort": lambda x: torch.argsort(x, dim=0, descending=True, stable=True),
    "topk": lambda x: torch.topk(x, 3, 1, largest=False)[0],
    "argmax": lambda x: (torch.argmax(x, 1), torch.argmin(x, 1), torch.max(x, 0)),
    "median": torch.median,
    "median of rows": lambda x: torch.median(x, 1),
    "median of columns": lambda x: torch.median(x, 0, keepdim=True),
    "nanmedian": lambda x: torch.nanmedian(x, 1),
    "kthvalue": lambda x: torch.kthvalue(x, 3, 1),
    "quantile": lambda x: torch.quantile(x, 0.5, 1),
}


@pytest.mark.parametrize("name", ORDERS)
def test_nan_has_its_place(name: str) -> None:
    check(ORDERS[name], drawn(3, 7))


def test_medians_of_integers() -> None:
    x = torch.tensor([[3, -1, 7, 7], [2**30, 5, 4, -9]], dtype=torch.int32)
    check(lambda x: (torch.median(x), torch.median(x, 1)), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_places_among_equal_integers(dtype: torch.dtype) -> None:
    """Of bytes of 0 the place of the largest was -1."""
    limits = torch.iinfo(dtype)
    x = torch.tensor([[limits.min] * 3, [limits.max] * 3, [limits.min, 1, 1]], dtype=dtype)
    check(lambda x: (torch.argmax(x, 1), torch.argmin(x, 1), torch.argmax(x), torch.argmax(x, 0)), x)


def test_open_extents() -> None:
    function = lambda x: (torch.median(x), torch.median(x, 0), torch.sort(x, 0)[0])  # noqa: E731
    check(function, drawn(9, 5), drawn(3, 5), drawn(17, 5), open_rows=True)


@pytest.mark.parametrize("rows", [3, 70])
def test_loops_that_are_written_out_become_threads(rows: int) -> None:
    """Searches and running extremes were refused as work of the host."""
    x = drawn(rows, 5)

    def function(x: torch.Tensor) -> Any:
        bounds = torch.tensor([-1.0, 0.0, 1.0])
        return torch.cummax(x, 1), torch.cummin(x, 0), torch.bucketize(torch.nan_to_num(x), bounds, right=True)

    rules = check(function, x)
    assert list(rules.values()).count("cuda.parallel_loops") == 3


def test_open_loops_that_are_written_out() -> None:
    rules = check(lambda x: torch.cummax(x, 0), drawn(9, 5), drawn(3, 5), open_rows=True)
    assert rules["running_extreme"] == "cuda.parallel_loops"


def test_a_function_of_the_runtime_is_named() -> None:
    """TVM's median asks its runtime on the CPU, which code generation refused with an internal message."""

    def kernel(x: te.Tensor) -> te.Tensor:
        call = lambda ins, outs: tvm.tirx.call_packed("tvm.contrib.sort.sort", ins[0], outs[0], 0, True)  # noqa: E731
        return te.extern([[7]], [x], call, dtype="float32", name="by_the_runtime")

    mod = graph(lambda builder, x: builder.emit_te(kernel, x), [((7,), "float32")])
    with pytest.raises(CompileError, match=r"kernel kernel.* calls tvm.contrib.sort.sort.*for CPUs; express it"):
        kernels_of("packed", mod, SM_90)
