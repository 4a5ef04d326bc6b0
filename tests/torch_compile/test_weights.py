"""Weights are inside the compiled code, and answers are never those of older ones."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn, randn

from tests.torch_compile.eager import LENIENT, STRICT, assert_same, compiled
from tvm_ext.errors import PerformanceWarning
from tvm_ext.torch_compile import graph
from tvm_ext.torch_compile.weights import WHOLE, Weights, can_be_constant

pytestmark = pytest.mark.torch


def replaced(net: nn.Module) -> None:
    net.weight = nn.Parameter(randn(4, 4))


def data_replaced(net: nn.Module) -> None:
    net.weight.data = randn(4, 4)


def in_numpy(net: nn.Module) -> None:
    net.weight.detach().numpy()[1, 2] = 7


CHANGES: dict[str, Callable[[Any], Any]] = {
    "load_state_dict": lambda net: net.load_state_dict(nn.Linear(4, 4).state_dict()),
    "in_place": lambda net: net.weight.mul_(2),
    "one_element": lambda net: net.weight[2, 3].fill_(9),
    "bias": lambda net: net.bias.zero_(),
    "replaced": replaced,
    "data_replaced": data_replaced,
    "data_in_place": lambda net: net.weight.data.zero_(),
    "data_one_element": lambda net: net.bias.data[3].fill_(5),
    "numpy": in_numpy,
    "transposed": lambda net: net.weight.set_(net.weight.clone().t()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str) -> None:
    net, x = nn.Linear(4, 4).eval(), randn(3, 4)
    run = compiled(net)
    with torch.no_grad():
        before = run(x)
        CHANGES[name](net)
        after = run(x)
        assert_same(after, net(x))
        assert not torch.equal(before, after)
        assert_same(run(x), net(x))


def test_a_large_weight_is_sampled_in_all_its_columns() -> None:
    weight = randn(512, 1024)
    assert weight.nbytes > WHOLE
    weights = Weights({0: weight})
    assert weights.are_unchanged([weight])
    weight.data[:, 512:] *= 1.5
    assert not weights.are_unchanged([weight])
    weights = Weights({0: weight})
    weight.data.clamp_(-0.5, 0.5)
    assert not weights.are_unchanged([weight])


def test_memory_that_is_used_again_is_not_taken_for_the_weight() -> None:
    weight = randn(1 << 20)
    weights, address = Weights({0: weight}), weight.data_ptr()
    values = weight.clone()
    del weight
    gc.collect()
    assert weights.are_gone()
    for _ in range(100):  # the allocator soon gives out the same address
        other = values.clone()
        if other.data_ptr() == address:
            break
    else:
        pytest.skip("no tensor came to lie at the same address")
    assert not weights.are_unchanged([other])


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        pytest.param(randn(3, 4), True, id="contiguous"),
        pytest.param(randn(3, 4).t(), True, id="transposed"),
        pytest.param(randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), True, id="channels_last"),
        pytest.param(nn.Parameter(randn(3)), True, id="parameter"),
        pytest.param(torch.tensor(1.0), True, id="scalar"),
        pytest.param(randn(3, 4)[:, :2], False, id="part_of_a_tensor"),
        pytest.param(randn(3, 1).expand(3, 4), False, id="expanded"),
        pytest.param(randn(0, 4), False, id="empty"),
        pytest.param(torch.eye(3).to_sparse(), False, id="sparse"),
        pytest.param(torch.empty(3, device="meta"), False, id="meta"),
        pytest.param(3, False, id="number"),
    ],
)
def test_what_can_be_constant(tensor: Any, expected: bool) -> None:
    assert can_be_constant(tensor) is expected


def test_weights_that_keep_changing_become_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_COMPILATIONS", 3)
    net, x = nn.Linear(4, 4).eval(), randn(3, 4)
    run = compiled(net)
    with torch.no_grad():
        for _ in range(3):
            net.weight.mul_(1.5)
            assert_same(run(x), net(x))
        net.weight.mul_(1.5)
        with pytest.warns(PerformanceWarning, match="weights of a graph change from call to call"):
            run(x)
        assert_same(run(x), net(x))
        for _ in range(3):
            net.weight.data.mul_(1.5)
            assert_same(run(x), net(x))


def test_layers_that_share_a_graph() -> None:
    layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)]).eval()
    reference = copy.deepcopy(layers)
    for layer in layers:
        layer.compile(backend="tvm_ext", options=STRICT)
    with torch.no_grad():
        for _ in range(2):
            ours = theirs = randn(2, 6)
            for layer, other in zip(layers, reference, strict=True):
                ours, theirs = layer(ours), other(theirs)
            assert_same(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_copy_has_weights_of_its_own() -> None:
    net, x = nn.Linear(4, 4).eval(), randn(2, 4)
    run = compiled(net)
    with torch.no_grad():
        run(x)
        other = copy.deepcopy(run)
        other.weight.mul_(3)
        assert_same(other(x), F.linear(x, other.weight, other.bias))
        assert_same(run(x), net(x))


def test_weights_as_arguments() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), randn(3, 4)
    run = compiled(net, {**STRICT, "weights": "argument"})
    with torch.no_grad():
        for _ in range(3):
            assert_same(run(x), net(x))
            net[0].weight.data[0, 0] += 1


def test_tables_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)

        def forward(self, ids: Any) -> Any:
            return self.head(self.table(ids))

    net, ids = Tied().eval(), torch.tensor([[1, 2, 10]])
    run = compiled(net)
    with torch.no_grad():
        assert_same(run(ids), net(ids))
        monkeypatch.setattr(graph, "compile_model", None)  # nothing is compiled from here on
        net.table.weight.data[2] = 5
        assert_same(run(ids), net(ids))


def test_buffers_that_a_module_changes() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("keys", torch.zeros(1, 8, 4))
            self.project = nn.Linear(4, 4)

        def forward(self, x: Any, position: Any) -> Any:
            self.calls += 1
            self.count += 1
            self.keys[:, position] = self.project(x)
            return self.keys.sum(1) * self.count + self.calls

    ours = Cache().eval()
    theirs = copy.deepcopy(ours)
    run = compiled(ours, LENIENT)
    with torch.no_grad():
        for position in range(4):
            x, at = randn(1, 1, 4), torch.tensor([position])
            assert_same(run(x, at), theirs(x, at), rtol=1e-4, atol=1e-5)
            assert_same(dict(ours.named_buffers()), dict(theirs.named_buffers()), rtol=1e-4, atol=1e-5)
            assert ours.calls == theirs.calls


def test_outputs_that_are_constants_belong_to_the_caller() -> None:
    run = compiled(lambda x: (torch.ones(3), x + 1, torch.zeros_like(x)))
    first = run(randn(3))
    first[0].fill_(5)
    first[2].fill_(7)
    ones, _, zeros = run(randn(3))
    np.testing.assert_array_equal(ones, np.ones(3))
    np.testing.assert_array_equal(zeros, np.zeros(3))
