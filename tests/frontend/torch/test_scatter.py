"""Writes at places that another tensor names: against torch, through the whole compilation."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import tvm_ext
from tvm_ext.errors import InputError, UnsupportedOperatorError
from tvm_ext.frontend.torch.model import import_torch
from tvm_ext.passes.value_checks import without_value_checks

pytestmark = pytest.mark.torch

Case = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(0)
CUBE = torch.randn(2, 7, 5, generator=GENERATOR)
SOURCE = torch.randn(2, 7, 5, generator=GENERATOR)
SOURCE[0, 1, 2], SOURCE[1, 0, 0], SOURCE[1, 2, 3] = float("nan"), float("inf"), float("-inf")
PLACES = torch.tensor([3, -1, 0])
REPEATED = torch.randint(0, 7, (2, 7, 5), generator=GENERATOR) // 2
COUNTS = torch.arange(-35, 35).reshape(2, 7, 5)


def assigned(*places: Any) -> Case:
    """Make ``x[places] = v`` of a copy."""

    def assign(x: Any, v: Any) -> Any:
        y = x.clone()
        y[places] = v
        return y

    return assign


WRITES: dict[str, Case] = {
    "index_copy": lambda x, s, i, r, n: x.index_copy(1, i % 7, s[:, :3]),
    "index_add": lambda x, s, i, r, n: x.index_add(1, i * 0 + 2, s[:, :3], alpha=2),
    "index_fill": lambda x, s, i, r, n: x.index_fill(1, i % 7, 2.0),
    "slice in front": lambda x, s, i, r, n: assigned(slice(None), i)(x, s[:, :3]),
    "first axis": lambda x, s, i, r, n: assigned(i // 3)(x, s[0]),
    "broadcast value": lambda x, s, i, r, n: assigned(slice(None), i)(x, s[0, 0]),
    "number": lambda x, s, i, r, n: assigned(slice(None), slice(None), i)(x, 0.5),
    "two side by side": lambda x, s, i, r, n: assigned(slice(None), i, i)(x, s[:, 0, :3]),
    "two apart": lambda x, s, i, r, n: assigned(i * 0 + 1, slice(None), i)(x, s[0, :, :3].T),
    "two that broadcast": lambda x, s, i, r, n: assigned(slice(None), i[:, None], i)(x, s[:, :3, :3]),
    "all axes": lambda x, s, i, r, n: assigned(i * 0, i, i)(x, s[0, 0, :3]),
    "index of rank 2": lambda x, s, i, r, n: assigned(slice(None), i.reshape(3, 1))(x, s[:, :3, None]),
    "mask, a number": lambda x, s, i, r, n: assigned(x > 0)(x, 3.0),
    "mask behind a slice": lambda x, s, i, r, n: assigned(slice(None), x[0, :, 0] > 0)(x, s[:1, 0]),
    "masked_scatter": lambda x, s, i, r, n: x.masked_scatter(x > 0, s),
    "masked_scatter of rows": lambda x, s, i, r, n: x.masked_scatter(x[:, :, :1] > 0, s),
    "mask of rows": lambda x, s, i, r, n: assigned(x[:, :, 0] > 0)(x, s[0, 0]),
    "repeated, last wins": lambda x, s, i, r, n: assigned(slice(None), i * 0)(x, s[:, :3]),
    "accumulate": lambda x, s, i, r, n: x.index_put((i * 0, i), s[0, :3], accumulate=True),
    "accumulate repeated": lambda x, s, i, r, n: x.index_put((i * 0, i * 0 + 1), s[0, :3], accumulate=True),
    "scatter": lambda x, s, i, r, n: x.scatter(1, r[:, :1], s),
    "scatter in a corner": lambda x, s, i, r, n: x.scatter(1, r[:1, :1, :3], s),
    "scatter a number": lambda x, s, i, r, n: x.scatter(1, r[:1, :, :3], 1.5),
    "scatter, add": lambda x, s, i, r, n: torch.scatter(x, 1, r, s, reduce="add"),
    "scatter_add": lambda x, s, i, r, n: x.scatter_add(1, r, s),
    "scatter_add in a corner": lambda x, s, i, r, n: x.scatter_add(-2, r[:, :4, 1:4], s),
    "scatter_add of integers": lambda x, s, i, r, n: n.scatter_add(1, r, n),
    "of a scalar": lambda x, s, i, r, n: x[0, 0, 0].scatter_add(0, r[0, 0, 0] * 0, s[0, 0, 0]),
    "index_reduce": lambda x, s, i, r, n: x.index_reduce(1, i * 0 + 4, s[:, :3], "amax"),
    "mean of integers": lambda x, s, i, r, n: n.scatter_reduce(1, r, n - 3, "mean"),
    "amin of integers": lambda x, s, i, r, n: n.scatter_reduce(1, r, n - 3, "amin", include_self=False),
}
for how in ("sum", "prod", "mean", "amax", "amin"):
    for own in (True, False):
        WRITES[f"{how}, {own}"] = lambda x, s, i, r, n, how=how, own=own: x.scatter_reduce(
            1, r, s, how, include_self=own
        )


class All(nn.Module):
    """Computes some functions of its inputs."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in self.cases]


def test_writes() -> None:
    inputs = (CUBE, SOURCE, PLACES, REPEATED, COUNTS)
    module = All(list(WRITES.values()))
    found = tvm_ext.compile(module, example_inputs=inputs).run([value.numpy() for value in inputs])
    for name, ours, theirs in zip(WRITES, found.values(), module(*inputs), strict=True):
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), name
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_value_for_each_place_of_a_mask_is_refused() -> None:
    module = All([lambda x, v: assigned(x > 0)(x, v)])
    message = r"aten\.index_put\.default .*test_scatter\.py, line \d+.* which goes where depends on values"
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_torch(module, (CUBE, CUBE[CUBE > 0]))


def test_cache_of_any_batch() -> None:
    """Also computed places out of range write no foreign memory; where they can be, they are refused."""

    class Cache(nn.Module):
        def forward(self, cache: Any, places: Any, values: Any) -> Any:
            return cache.index_copy(1, places * 2, values)

    def inputs(batch: int) -> tuple[Any, ...]:
        return torch.randn(batch, 9, 4), torch.tensor([1, 3]), torch.randn(batch, 2, 4)

    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Cache(), inputs(2), dynamic_shapes=({0: batch}, None, {0: batch}))
    artifact = tvm_ext.compile(program)
    for size in (1, 5):
        given = inputs(size)
        (found,) = artifact.run([value.numpy() for value in given]).values()
        np.testing.assert_array_equal(found, Cache()(*given).numpy())
    cache, _, values = (value.numpy() for value in given)
    with pytest.raises(InputError, match="must hold indices into dimension 1 of 'cache', which is 9: from -9 to 8"):
        artifact.run([cache, np.array([10**9, -(10**9)]), values])
    plain = tvm_ext.compile(without_value_checks()(import_torch(program).mod))  # as where none can refuse
    (found,) = plain.run([cache, np.array([10**9, -(10**9)]), values]).values()
    np.testing.assert_array_equal(found, np.concatenate([values[:, 1:], cache[:, 1:8], values[:, :1]], 1))


def test_values_that_are_fewer_than_places_are_refused() -> None:
    class Put(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.index_put(x, (i,), v)

    def made(places: int, values: int) -> tuple[torch.Tensor, ...]:
        return torch.zeros(50, 3), torch.arange(places), torch.arange(3.0 * values).reshape(values, 3)

    compiled = tvm_ext.compile(Put(), example_inputs=made(4, 4), dynamic={"i:0": (1, 50), "v:0": (1, 50)})
    for count in (1, 7, 33):
        x, i, v = made(count, count)
        (found,) = compiled.run({"x": x, "i": i, "v": v}).values()
        np.testing.assert_array_equal(found, Put()(x, i, v))
    x, i, v = made(33, 5)
    with pytest.raises(InputError, match="i_0 = 33 and v_0 = 5"):
        compiled.run({"x": x, "i": i, "v": v})
