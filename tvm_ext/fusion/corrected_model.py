"""A cost model of blocks, corrected by what was measured of blocks of the same kind.

A model of a machine is off by another factor for kernels that multiply than for kernels that move data. Blocks that
were measured are on record with what the model had said of them (:mod:`tvm_ext.fusion.profile_database`); the median
of measured over estimated is the factor of a kind. Where few of a kind were measured the factor is that of all kinds,
so that measured and estimated seconds stay comparable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tvm_ext.fusion.block_mapping import is_anchor
from tvm_ext.fusion.limits import Latency
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.graph.mapping_types import MappingType

Kind = Literal["product", "reduction", "movement", "elementwise"]

LEAST_SAMPLES = 3
"""Measured blocks that a factor is made of at least."""


@dataclass(frozen=True)
class Sample:
    """A measured block.

    Attributes
    ----------
    kind : str
        See :func:`kind_of_block`.
    estimate, seconds : float
        What the model said without correction, and what was measured; seconds, positive.
    """

    kind: str
    estimate: float
    seconds: float


class CorrectedModel:
    """Seconds of blocks by a model, times a factor for their kind.

    Parameters
    ----------
    model : callable
        Estimates the seconds of a block.
    samples : iterable of Sample
        What was measured. Without any the model is as it was.
    """

    def __init__(self, model: Latency, samples: Iterable[Sample] = ()) -> None:
        self._model = model
        ratios: dict[str, list[float]] = {}
        for sample in samples:
            ratios.setdefault(sample.kind, []).append(math.log(sample.seconds / sample.estimate))
        every = [ratio for of_kind in ratios.values() for ratio in of_kind]
        self._overall = _factor(every) or 1.0
        self._factors = {kind: factor for kind, found in ratios.items() if (factor := _factor(found)) is not None}

    def factor(self, kind: str) -> float:
        """Give the factor by which the model is corrected for a kind of blocks."""
        return self._factors.get(kind, self._overall)

    def estimate(self, graph: OperatorGraph, members: Collection[int]) -> float:
        """Give the seconds of a block without correction."""
        return self._model(graph, members)

    def seconds(self, graph: OperatorGraph, members: Collection[int]) -> float:
        """Give the seconds of a block."""
        return self.factor(kind_of_block(graph, members)) * self._model(graph, members)


def kind_of_block(graph: OperatorGraph, members: Collection[int]) -> Kind:
    """Say what a block does.

    ``product``: it has an operator whose schedule is given; ``reduction``: another one that decides the loops;
    ``movement``: elements change their places or become more; ``elementwise``: none of these.
    """
    operators = [graph.operators[index] for index in members]
    if any(operator.tail is not None for operator in operators):
        return "product"
    if any(map(is_anchor, operators)):
        return "reduction"
    if all(operator.mapping is MappingType.ONE_TO_ONE for operator in operators):
        return "elementwise"
    return "movement"


def _factor(ratios: list[float]) -> float | None:
    return math.exp(median(ratios)) if len(ratios) >= LEAST_SAMPLES else None
