"""Indices outside a tensor end a run of a PyTorch program, as PyTorch itself refuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.frontend import import_model
from tvm_ext.passes.value_checks import is_value_check

AUTO = torch.export.Dim.AUTO


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.table = torch.nn.Embedding(9, 4)
        self.bag = torch.nn.EmbeddingBag(9, 4)

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        """Call it."""
        return self.function(self, x, i)


def each(index: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, x.shape[1])


LOOK_UPS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "gather": lambda m, x, i: x.gather(0, each(i, x)),
    "rows": lambda m, x, i: x[i],
    "columns": lambda m, x, i: x[:, i],
    "places": lambda m, x, i: x[i, i],
    "index_select": lambda m, x, i: x.index_select(0, i),
    "take": lambda m, x, i: x.take(i),
    "scatter": lambda m, x, i: x.scatter(0, each(i, x), 1.0),
    "scatter_add": lambda m, x, i: x.scatter_add(0, each(i, x), torch.ones_like(x[:1]).expand(i.shape[0], -1)),
    "put": lambda m, x, i: x.index_put((i,), torch.ones(1)),
    "embedding": lambda m, x, i: m.table(i) + x.sum(),
    "bag": lambda m, x, i: m.bag(i[None]) + x.sum(),
}


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (IndexError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", LOOK_UPS)
def test_what_pytorch_refuses(name: str, opened: bool, computed: bool) -> None:
    function = LOOK_UPS[name]
    module = Of((lambda m, x, i: function(m, x, i * 2 - 1)) if computed else function).eval()
    x, start = torch.arange(20.0).reshape(5, 4), torch.tensor([1, 1, 0] if not computed else [1, 1, 1])
    shapes = {"x": {0: AUTO, 1: AUTO}, "i": {0: AUTO}} if opened else None
    compiled = tvm_ext.compile(torch.export.export(module, (x, start), dynamic_shapes=shapes))
    count = 0
    for last in (0, 1, 2, 3, 4, 5, 9, 10, 20, -1, -4, -5, -20, -21):
        given = torch.tensor([1, 1, last])
        with torch.no_grad():
            wrong = refused(lambda given=given: module(x, given))
            if wrong:
                count += 1
                with pytest.raises(InputError, match=r"indices into|takes numbers for places"):
                    compiled.run([x.numpy(), given.numpy()])
            else:
                (found,) = compiled.run([x.numpy(), given.numpy()]).values()
                np.testing.assert_allclose(found, module(x, given).numpy(), rtol=1e-6)
    assert 0 < count < 14


def checks(function: Callable[..., Any], *arguments: torch.Tensor, **dims: Sequence[int]) -> int:
    """Count the kernels that look at values."""

    class Module(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return function(*given)

    shapes = tuple({axis: AUTO for axis in range(argument.dim())} for argument in arguments)
    program = torch.export.export(Module(), arguments, dynamic_shapes=(shapes,))
    return sum(map(is_value_check, import_model(program).mod.functions.values()))


def test_indices_that_are_inside_whatever_is_fed_are_not_looked_at() -> None:
    x = torch.randn(5, 7)
    assert checks(lambda x: x[torch.arange(x.shape[0]), torch.arange(x.shape[0]) * 0], x) == 0
    assert checks(lambda x: x.gather(1, x.argsort(1)), x) == 0
    assert checks(lambda x: x.gather(1, x.topk(2, 1)[1]), x) == 0
    assert checks(lambda x: x.gather(0, x.argmax(0, keepdim=True)), x) == 0
    assert checks(lambda x: torch.ones(63)[(torch.arange(x.shape[0]) - 3).clamp(-31, 31) + 31], x) == 0
    assert checks(lambda x: torch.ones(5)[torch.arange(x.shape[0]) % 5], x) == 0
    assert checks(lambda x: torch.ones(4)[torch.arange(x.shape[0]) % 5], x) == 1
    assert checks(lambda x: x.gather(0, x.argmax(1, keepdim=True)), x) == 1
    assert checks(lambda x: x[torch.arange(x.shape[0]) + 1], x) == 1
    assert checks(lambda x: x[torch.arange(x.shape[1])], x) == 1


def test_one_index_of_two_look_ups_is_looked_at_once() -> None:
    x, i = torch.randn(5, 7), torch.tensor([1, 2])
    assert checks(lambda x, i: (x[i], (x * 2)[i], x.index_select(0, i)), x, i) == 2  # two ways to count


def test_many_indices() -> None:
    """More than one vector of them, and a rest."""
    x, i = torch.randn(5, 3), torch.zeros(50, 3, dtype=torch.int64)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x.gather(0, i + 1)

    program = torch.export.export(Module(), (x, i), dynamic_shapes={"x": {0: AUTO}, "i": {0: AUTO}})
    compiled = tvm_ext.compile(program)
    for count in (1, 5, 16, 21, 22, 50):
        for row, column in ((0, 0), (count // 2, 1), (count - 1, 2)):
            given = np.zeros((count, 3), "int64")
            given[row, column] = 3
            (found,) = compiled.run([x.numpy(), given]).values()
            np.testing.assert_array_equal(found, np.take_along_axis(x.numpy(), given + 1, 0))
            for wrong in (4, -2, 2**40):
                given[row, column] = wrong
                with pytest.raises(InputError, match="from 0 to"):
                    compiled.run([x.numpy(), given])
