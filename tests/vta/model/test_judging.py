"""Which layers few samples let onto VTA: what is judged is what other inputs may lose, not what the samples lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.vta.model.test_offload import COSTS, Emitter, run
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.calibrate import ObservedModel, observe
from tvm_ext.backends.vta.model.cut import Penalties
from tvm_ext.backends.vta.model.fits import Calibrated, Fit
from tvm_ext.backends.vta.model.forms import in_forms
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.output_error import MARGIN, OutputError, OutputEstimate, assign_within, folds
from tvm_ext.backends.vta.model.partition import Partition
from tvm_ext.backends.vta.model.relax_layers import read_graph
from tvm_ext.backends.vta.model.rounding import SeenInputs

SHAPE = (1, 16, 6, 6)


def inputs(rng: np.random.Generator, count: int) -> list[dict[str, np.ndarray]]:
    """Pictures of differing contrast with the same strongest points: the weaker one is, the fewer bits it has of 8."""
    found = []
    for _ in range(count):
        x = np.clip(np.exp(0.25 * rng.standard_normal()) * rng.standard_normal(SHAPE), -4, 4).astype(np.float32)
        x[..., 0, 0] = 4
        found.append({"x": x})
    return found


def test_few_samples_do_not_vouch_for_others() -> None:
    """Of draws of three samples, many would pass a layer by their mean error by which other inputs lose too much."""
    floats = prepare(Emitter().module(SHAPE, lambda e, x: e.relu(e.conv(x, 16))))[0]
    graph = read_graph(floats["main"], 1)
    (layer,) = graph.layers
    names = (*layer.inputs, layer.name)
    model = ObservedModel(floats, {name: graph.variables[name] for name in names}, disturbed=True)
    others = OutputError(model, inputs(np.random.default_rng(99), 30))

    def network(samples: Sequence[Mapping[str, np.ndarray]]) -> Any:
        seen = SeenInputs([in_forms([layer], model.run(sample)[1]) for sample in samples])
        return Fit(observe(model, samples), seen).network([layer], {})

    rows = []
    for seed in range(24):
        samples = inputs(np.random.default_rng(seed), 3)
        parts = [network([samples[at] for at in range(3) if at not in held_out]) for held_out in folds(3)]
        estimate = OutputEstimate.of(OutputError(model, samples, [0, 1, 2]).together(parts))
        rows.append((estimate.error, estimate.bound, others.together([network(samples)]).mean() ** 0.5))
    error, bound, truth = np.array(rows).T
    limit = np.quantile(truth, 0.1)
    wrong = truth > limit  # the layer loses too much in nearly all draws
    assert (error[wrong] <= limit).sum() >= 6  # the mean lets many pass
    assert (bound[wrong] <= limit).sum() <= 1  # 5 % of the draws
    assert (bound >= error).all()
    assert np.median(bound) < 1.5 * np.median(error)


class _Judged:
    """Errors of an assignment as they are told: of the layer ``a``, which may have any; ``b`` has none."""

    def __init__(self, squares: Sequence[float]) -> None:
        self.squares = np.array(squares)

    def together(self, networks: Sequence[Any]) -> np.ndarray:
        on_vta = {integer.layer.name for integer in networks[0].layers}
        return self.squares * ("a" in on_vta)

    def each(self, networks: Sequence[Any]) -> tuple[dict[str, float], dict[str, float]]:
        return {"a": float(self.squares.mean()), "b": 0.0}, {}


class _Named:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _assigned(squares: Sequence[float], forced: bool = False) -> tuple[set[str], OutputEstimate]:
    """Assign the layers a and b, which save a second each."""

    def plan(penalties: Penalties | None = None) -> Any:
        on = {"a", "b"} if penalties is None else {n for n in "ab" if penalties.layer_seconds(n) < 1}
        on |= {"a"} if forced else set()
        return _Named(on_vta=frozenset(on), seconds=2.0 - len(on), cpu_only_seconds=2.0)

    def quantized(partition: Partition) -> list[Any]:
        layers = [_Named(layer=_Named(name=name, inputs=("x",))) for name in sorted(partition.on_vta)]
        return [_Named(layers=layers)]

    first = plan()
    partition, estimate = assign_within(
        _Judged(squares), plan, quantized, first, quantized(first), 0.05  # type: ignore[arg-type]
    )  # fmt: skip
    return set(partition.on_vta), estimate


@pytest.mark.parametrize(
    ("squares", "stays"),
    [
        ([0.04**2] * 16, True),
        ([0.04**2] * 8, True),
        ([0.04**2] * 2, False),  # as good as the eight, but two inputs may well be the two best
        ([0.04**2], False),
        ([0.02**2], True),
        ([0.01**2, 0.01**2, 0.06**2], False),  # 3.6 % off on average, of which one has nearly all
        ([0.01**2, 0.01**2, 0.06**2] * 6, True),
        ([0.05**2] * 100, False),
    ],
)
def test_what_samples_vouch_for(squares: Sequence[float], stays: bool) -> None:
    """The same mean error is enough of many samples that agree, and is not of few, or of those that differ."""
    on_vta, estimate = _assigned(squares)
    assert on_vta == ({"a", "b"} if stays else {"b"})
    assert estimate.bound <= MARGIN * 0.05
    assert estimate.samples == len(squares)
    assert estimate.error == pytest.approx(np.mean(squares) ** 0.5 if stays else 0)


def test_layers_that_were_asked_for_stay() -> None:
    """Also where that cannot be vouched for; what else has an error goes."""
    on_vta, estimate = _assigned([0.2**2] * 4, forced=True)
    assert "a" in on_vta
    assert estimate.error == pytest.approx(0.2)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_sample_is_judged_by_a_fit_without_it(count: int) -> None:
    """And the compiled model is fitted to all of them; of a single one, there is no other fit."""
    floats = prepare(Emitter().module(SHAPE, lambda e, x: e.relu(e.conv(x, 16))))[0]
    graph = read_graph(floats["main"], 1)
    data = np.random.default_rng(0).uniform(1, 2, (count, *SHAPE)).astype(np.float32)
    data *= 10.0 ** np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1, 1)  # the largest value tells the sample
    found = Calibrated.of(floats, graph, graph.layers, {"x": data})
    (name,) = {layer.data for layer in graph.layers}
    assert len(found.errors.samples) == count
    assert len(found.whole.observed[name][0]) > 0
    for at, fit in enumerate(found.errors.fits):
        seen = np.concatenate([sample[name].ravel() for sample in found.parts[fit].seen.samples])
        held_out = np.isin(found.errors.samples[at]["x"], seen)
        assert held_out.all() if count == 1 else not held_out.any()
    assert (found.parts == (found.whole,)) == (count == 1)


@pytest.mark.slow
def test_a_single_sample() -> None:
    """Everything is fitted to it and judged on it; the model that is let onto VTA is right on others all the same."""
    rng = np.random.default_rng(3)
    shape = (1, 32, 14, 14)
    mod = Emitter().module(shape, lambda e, x: e.conv(e.relu(e.conv(e.relu(e.conv(x, 64)), 64)), 64))
    model = offload(mod, load_config("sim"), COSTS, {"x": rng.standard_normal((1, *shape)).astype(np.float32)})
    assert model.output_error is not None
    assert model.output_error_bound is not None
    assert model.output_error_bound <= MARGIN * 0.05
    if model.partition.on_vta:
        assert "on 1 calibration input, and with 95 % confidence" in model.notes[1]
        assert model.output_error_bound > 1.5 * model.output_error
    for _ in range(3):
        x = rng.standard_normal(shape).astype(np.float32)
        expected, found = model.observed.run({"x": x})[0][0], run(model.mod, x)[0]
        assert np.square(found - expected).sum() <= 0.05**2 * np.square(expected).sum()
