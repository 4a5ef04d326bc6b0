"""Recurrent layers of PyTorch become loops, and their length may stay open."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tvm_ext
from tvm_ext.frontend import import_model
from tvm_ext.frontend.torch.recurrent import as_loops


class Layer(torch.nn.Module):
    """A recurrent layer; all it gives is an output."""

    def __init__(self, kind: str, given: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(torch.nn, kind)(6, 5, **options)
        self.given, self.pair = given, kind == "LSTM"

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> Any:
        """Run it."""
        if not self.given:
            return (x + 0 * state.sum(), *_flat(self.layer(x)))[1:]
        return _flat(self.layer(x, (state, state * 0.5) if self.pair else state))


def _flat(results: Any) -> tuple[torch.Tensor, ...]:
    output, state = results
    return (output, *state) if isinstance(state, tuple) else (output, state)


OPTIONS = [
    {},
    {"bidirectional": True},
    {"num_layers": 2, "bias": False},
    {"num_layers": 3, "bidirectional": True, "given": True},
    {"batch_first": True, "bidirectional": True, "given": True},
    {"batch_first": True, "num_layers": 2},
]
SIZES = [(1, 1), (2, 3), (3, 7), (17, 2), (31, 1), (33, 5), (127, 2)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "relu"])
def test_any_length(kind: str, options: dict[str, Any]) -> None:
    if kind == "relu":
        kind, options = "RNN", options | {"nonlinearity": "relu"}
    module = Layer(kind, **options).eval()
    first = options.get("batch_first", False)
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))

    def arguments(steps: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(steps)
        shape = (batch, steps, 6) if first else (steps, batch, 6)
        return torch.randn(shape), torch.randn(rows, batch, 5)

    compiled = tvm_ext.compile(module, example_inputs=arguments(4, 3), dynamic="x:0,x:1,state:1")
    for steps, batch in SIZES:
        given = arguments(steps, batch)
        with torch.no_grad():
            expected = module(*given)
        found = compiled.run([value.numpy() for value in given]).values()
        for want, got in zip(expected, found, strict=True):
            assert want.shape == got.shape
            np.testing.assert_allclose(got, want.numpy(), atol=2e-6)


def test_a_program_of_fixed_length_has_a_loop() -> None:
    module = Layer("LSTM").eval()
    given = (torch.randn(50, 2, 6), torch.zeros(1, 2, 5))
    imported = import_model(module, example_inputs=given)
    names = [variable.name_hint for variable in imported.mod.get_global_vars()]
    assert sum("recurrence" in name for name in names) == 1
    (found, *_) = tvm_ext.compile(module, example_inputs=given).run([value.numpy() for value in given]).values()
    with torch.no_grad():
        np.testing.assert_allclose(found, module(*given)[0].numpy(), atol=2e-6)


def test_exported_by_hand(tmp_path: Path) -> None:
    module = Layer("GRU", batch_first=True).eval()
    given = (torch.randn(2, 9, 6), torch.zeros(1, 2, 5))
    auto = torch.export.Dim.AUTO
    with as_loops():
        program = torch.export.export(module, given, dynamic_shapes={"x": {1: auto}, "state": None})
    with torch.no_grad():
        np.testing.assert_array_equal(program.module()(*given)[0].numpy(), module(*given)[0].numpy())
    torch.export.save(program, tmp_path / "model.pt2")
    for model, steps in itertools.product((program, tmp_path / "model.pt2"), (1, 40)):
        compiled = tvm_ext.compile(model)
        x = torch.randn(2, steps, 6)
        (found, _) = compiled.run([x.numpy(), given[1].numpy()]).values()
        with torch.no_grad():
            np.testing.assert_allclose(found, module(x, given[1])[0].numpy(), atol=2e-6)


def test_exported_without_loops() -> None:
    module, auto = torch.nn.LSTM(6, 5, batch_first=True, bidirectional=True).eval(), torch.export.Dim.AUTO
    given = torch.randn(2, 9, 6)
    program = torch.export.export(module, (given,), dynamic_shapes=({0: auto, 1: auto},))
    imported = import_model(program)
    (note,) = imported.notes
    assert "fixed the length that LSTM 'lstm' reads to 9" in note
    assert "give the module itself" in note
    assert sum("recurrence" in variable.name_hint for variable in imported.mod.get_global_vars()) == 1
    found = tvm_ext.compile(program).run([given.numpy()]).values()
    with torch.no_grad():
        results, (hidden, cells) = module(given)
    for want, got in zip((results, hidden, cells), found, strict=True):
        np.testing.assert_allclose(got, want.numpy(), atol=2e-6)
    fixed = torch.export.export(module, (given,), dynamic_shapes=({0: auto},))
    assert not import_model(fixed).notes


@pytest.mark.parametrize("kind", ["projected", "training"])
def test_others_are_left_to_torch(kind: str) -> None:
    module = torch.nn.LSTM(6, 5, proj_size=3) if kind == "projected" else torch.nn.LSTM(6, 5, 2, dropout=0.5)
    with as_loops(), torch.no_grad():
        program = torch.export.export(module.train(kind == "training"), (torch.randn(3, 2, 6),))
    assert not any("recurrence" in str(node.target) for node in program.graph.nodes)


def test_ranges_are_kept() -> None:
    module = Layer("RNN").eval()
    given = (torch.randn(4, 2, 6), torch.zeros(1, 2, 5))
    imported = import_model(module, example_inputs=given, dynamic={"x:0": (3, 20)})
    assert imported.inputs[0].ranges[0] == (3, 20)
