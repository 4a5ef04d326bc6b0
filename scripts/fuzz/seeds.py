"""From a seed to a trial: a graph or a network, values, and options, all drawn from it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from scripts.fuzz import networks
from scripts.fuzz.options import Options, draw_accelerated, draw_options
from scripts.fuzz.trial import Outcome, Stage, try_model
from scripts.fuzz.values import draw_inputs

SEEDS = 2**32 - 10**6
"""Seeds are smaller than this: NNSmith takes 32 bits, and a campaign goes on behind its first."""

MOST_EMBEDDED = 100
"""Nodes of a network for all of whose kernels instructions are searched for; that takes a second a kernel."""

MOST_SIMULATED = 50
"""Nodes of a network on a simulated accelerator."""

STOCK_SHARE = 0.04
"""Of the models that stock TVM is asked about whatever the answer."""


@dataclass(frozen=True)
class Drawn:
    """A model, its inputs, how it is compiled, and whether stock TVM is asked about it in any case."""

    model: bytes
    feeds: dict[str, np.ndarray]
    options: Options
    stock: bool = True


def threads_of(seed: int) -> int:
    """Say how many threads a seed's model is compiled for and run on; one process has one number."""
    return 2 if seed % 5 == 0 else 1


def draw_graph(seed: int) -> Drawn:
    """Draw a trial of a graph of any operators.

    Raises
    ------
    Exception
        Whatever NNSmith raises, or KeyError, where the seed has no model.
    """
    from scripts.fuzz import draw  # it needs NNSmith
    from scripts.fuzz.emit import to_onnx

    graph = draw.draw_graph(seed)
    rng = np.random.default_rng(seed)
    model = to_onnx(graph, rng)
    feeds = draw_inputs(model, rng, special=bool(rng.random() < 0.25))
    options = draw_options(rng, threads_of(seed))
    return Drawn(model.SerializeToString(), feeds, options, bool(rng.random() < STOCK_SHARE))


def draw_network(seed: int) -> Drawn:
    """Draw a trial of a network of the usual blocks.

    Raises
    ------
    Exception
        Whatever onnxruntime's quantiser raises for a network that it cannot quantise.
    """
    rng = np.random.default_rng((seed, 1))
    model, feeds = networks.draw_network(rng)
    options = draw_options(rng, threads_of(seed))
    if options.embed == "all" and len(model.graph.node) > MOST_EMBEDDED:
        options = dataclasses.replace(options, embed="uncovered")
    return Drawn(model.SerializeToString(), feeds, options, bool(rng.random() < STOCK_SHARE))


def draw_accelerated_network(seed: int, accelerator: str) -> Drawn:
    """Draw a trial of a small network on a simulated accelerator, ``vta`` or ``hexagon``.

    Raises
    ------
    Exception
        Whatever onnxruntime's quantiser raises for a network that it cannot quantise.
    """
    if accelerator == "vta":
        from scripts.fuzz.on_vta import TARGETS
    else:
        from scripts.fuzz.on_hexagon import TARGETS
    rng = np.random.default_rng((seed, 5))
    model, feeds = networks.draw_network(rng, networks.SMALL)
    while len(model.graph.node) > MOST_SIMULATED:
        model, feeds = networks.draw_network(rng, networks.SMALL)
    return Drawn(model.SerializeToString(), feeds, draw_accelerated(rng, TARGETS, threads_of(seed)), stock=False)


DRAWS: dict[str, Callable[[int], Drawn]] = {
    "graphs": draw_graph,
    "networks": draw_network,
    "vta": functools.partial(draw_accelerated_network, accelerator="vta"),
    "hexagon": functools.partial(draw_accelerated_network, accelerator="hexagon"),
}
"""What a campaign may draw."""


def try_drawn(trial: Drawn, stage: Stage = lambda name: None) -> Outcome:
    """Compile, run and compare."""
    model = onnx.ModelProto.FromString(trial.model)
    return try_model(model, trial.feeds, trial.options, stage=stage, stock=trial.stock)


def try_seed(
    seed: int,
    kind: str = "graphs",
    stage: Stage = lambda name: None,
    show: Callable[[Drawn], None] = lambda trial: None,
) -> Outcome:
    """Draw a seed's model of a kind and try it; ``show`` is given what was drawn before it is tried."""
    stage("draw")
    try:
        trial = DRAWS[kind](seed)
    except Exception as error:  # NNSmith asserts where its search leads nowhere, and a quantiser refuses networks
        return Outcome("skipped", f"draw: {type(error).__name__}: {' '.join(str(error).split())[:100]}")
    show(trial)
    return try_drawn(trial, stage)
