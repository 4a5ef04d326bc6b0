"""What limits a block beside the combination table: how much it may hold, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from tvm_ext.errors import OptionError
from tvm_ext.fusion.block_mapping import is_anchor
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import removable_operators

Latency: TypeAlias = Callable[[OperatorGraph, Collection[int]], float]
"""Seconds of a block of operators, as one kernel."""


@dataclass(frozen=True)
class FusionOptions:
    """Limits of a block.

    Attributes
    ----------
    max_operators : int
        Operators in a block.
    max_operands : int
        Tensors a block reads: they compete for registers and address arithmetic.
    max_results : int
        Tensors a block writes.
    max_anchored_results : int
        Tensors a block writes that has an operator which decides its loops, such as a product or a reduction.
    refine : bool
        Whether operators move between blocks after these have grown.

    Raises
    ------
    OptionError
        When a limit is not a positive number.
    """

    max_operators: int = 48
    max_operands: int = 24
    max_results: int = 6
    max_anchored_results: int = 6
    refine: bool = True

    def __post_init__(self) -> None:
        for name in ("max_operators", "max_operands", "max_results", "max_anchored_results"):
            if getattr(self, name) < 1:
                raise OptionError(f"option {name} of the fusion planner: {getattr(self, name)!r} is not at least 1")


class BlockLimits:
    """Says whether blocks of a function keep within the limits, and remembers how long they take.

    Parameters
    ----------
    graph : OperatorGraph
        The function.
    options : FusionOptions, optional
        The limits.
    latency : callable, optional
        Seconds of a block; a linear model when not given.
    """

    def __init__(
        self, graph: OperatorGraph, options: FusionOptions | None = None, latency: Latency | None = None
    ) -> None:
        self._graph = graph
        self._options = options or FusionOptions()
        self._latency = latency or LinearModel().seconds
        self._known: dict[frozenset[int], float] = {}

    def seconds(self, members: Collection[int]) -> float:
        """Give the seconds of a block."""
        key = frozenset(members)
        if key not in self._known:
            self._known[key] = self._latency(self._graph, key)
        return self._known[key]

    def fits(self, members: Collection[int]) -> bool:
        """Whether a block keeps within the limits; a single operator always does."""
        limits, operators = self._options, self._graph.operators
        if len(members) == 1:
            return True
        if len(members) > limits.max_operators:
            return False
        sources = {edge.source for index in members for edge in operators[index].edges} - set(members)
        given = {name for index in members for name in operators[index].given}
        results = len(members) - len(removable_operators(self._graph, members))
        anchored = any(is_anchor(operators[index]) for index in members)
        most = min(limits.max_results, limits.max_anchored_results) if anchored else limits.max_results
        return len(sources) + len(given) <= limits.max_operands and results <= most
