"""Modules that take and return containers of their own, as language models do caches of keys and values."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.utils import _pytree as pytree

from tests.frontend.compiled import Compiled, assert_same
from tvm_ext.errors import ModelError
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch


class Cache:
    """Puts what is new behind what it has, and begins with nothing."""

    def __init__(self, keys: Any = None) -> None:
        self.keys = torch.tensor([])
        if keys is not None:
            self.update(keys)

    def update(self, keys: Any) -> None:
        self.keys = torch.cat([self.keys, keys], -2)


class Unknown(Cache):
    """Like it, and not registered."""


pytree.register_pytree_node(
    Cache,
    lambda cache: ([cache.keys], None),
    lambda keys, context: Cache(*keys),
    serialized_type_name="tests.Cache",
    flatten_with_keys_fn=lambda cache: ([(pytree.MappingKey("keys"), cache.keys)], None),
)


class Pair(NamedTuple):
    left: Any
    right: Any


class Prefill(nn.Module):
    def __init__(self, cache: type) -> None:
        super().__init__()
        self.linear, self.cache = nn.Linear(5, 5), cache

    def forward(self, x: Any) -> Any:
        cache = self.cache()
        cache.update(self.linear(x))
        return {"logits": cache.keys.sum(-1), "cache": cache, "pair": Pair(x + 1, OrderedDict(last=x[:, -1]))}


class Step(nn.Module):
    def forward(self, x: Any, cache: Cache) -> Any:
        cache.update(x)
        return cache.keys.mean(-1), cache


@pytest.mark.parametrize("tracked", [False, True])
def test_containers_that_compute_while_they_are_made(tracked: bool) -> None:
    x, module = torch.randn(2, 3, 5), Prefill(Cache)
    with torch.set_grad_enabled(tracked):
        imported = import_torch(module, (x,))
    with torch.no_grad():
        expected = module(x)
    assert [spec.name for spec in imported.outputs] == ["logits", "cache_0", "pair_left", "pair_right_last"]
    assert_same(Compiled(imported.mod)(x), tuple(pytree.tree_leaves(expected)))


def test_containers_are_inputs() -> None:
    x, keys = torch.randn(2, 1, 5), torch.randn(2, 4, 5)
    imported = import_torch(Step(), (x, Cache(keys)))
    expected = Step()(x, Cache(keys))
    assert len(imported.inputs) == 2
    assert_same(Compiled(imported.mod)(x, keys), (expected[0], expected[1].keys))


def test_containers_that_torch_does_not_know() -> None:
    with pytest.raises(ModelError, match=r"does not know the container .*Unknown that .*; register it .*use_cache = F"):
        import_torch(Prefill(Unknown), (torch.randn(2, 3, 5),))
    with pytest.raises(ModelError, match=r"does not know the container .*Unknown that .*; register it"):
        import_torch(Step(), (torch.randn(2, 1, 5), Unknown(torch.randn(2, 3, 5))))
