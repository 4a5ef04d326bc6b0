"""Which embedding is best: by what it wastes (section 4.3.6 of the source), or by the cost model of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod

from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.strategy import Strategy, strategy
from tvm_ext.errors import EmbeddingError


@dataclass(frozen=True)
class Ranked:
    """A strategy with what it wastes and costs.

    Attributes
    ----------
    strategy : Strategy
    wasted_macs : int
        Multiply-adds on padding: ``O_MAC``.
    wasted_elements : int
        Elements that are stored beyond those that the operator has, of all operands: ``O_Data``. Below zero where
        elements that nothing reads are left out.
    cost : float
        What was ranked by.
    """

    strategy: Strategy
    wasted_macs: int
    wasted_elements: int
    cost: float


def rank(
    embeddings: Iterable[Embedding],
    weights: tuple[float, float] = (1.0, 1.0),
    cost: Callable[[Strategy], float] | None = None,
) -> tuple[list[Ranked], list[tuple[Embedding, str]]]:
    """Order embeddings, best first.

    Parameters
    ----------
    embeddings : iterable of Embedding
    weights : (float, float)
        Of multiply-adds and elements that are wasted; the source's experiments take 1 and 1.
    cost : callable, optional
        A target's cost of a strategy, by which it is ranked instead; may raise :class:`EmbeddingError`.

    Returns
    -------
    ranked : list of Ranked
        Of equal cost in the order given.
    refused : list of (Embedding, str)
        Those for which there is no strategy, or no cost, and why.
    """
    ranked, refused = [], []
    for embedding in embeddings:
        try:
            found = strategy(embedding)
            macs, elements = wasted(found)
            value = macs * weights[0] + elements * weights[1] if cost is None else cost(found)
        except EmbeddingError as error:
            refused.append((embedding, str(error)))
            continue
        ranked.append(Ranked(found, macs, elements, value))
    return sorted(ranked, key=lambda item: item.cost), refused


def wasted(found: Strategy) -> tuple[int, int]:
    """Return ``O_MAC`` and ``O_Data``: multiply-adds and elements beyond the least."""
    operator = found.embedding.operator
    least = sum(prod(access.shape) for access in operator.operands)
    return stored_macs(found) - operator.macs, sum(stored.elements for stored in found.operands) - least


def stored_macs(found: Strategy) -> int:
    """Multiply-adds that run: turns of all loops times those of the instruction."""
    return prod(loop.extent for loop in found.loops) * found.embedding.instruction.macs


def naive_waste(operator: Dataflow, instruction: Dataflow, budget: Budget | None = None) -> float:
    """Bound of padding for a search: what the best mapping of single axes pads, which any better one pads less than."""
    from tvm_ext.embedding.program import Setting
    from tvm_ext.embedding.solver import solve

    apart = Setting(pad_to=(1,), swap=False)
    alone = solve(operator, instruction, [apart, replace(apart, memory=False, overlapping=True)], budget=budget)
    return min(embedding.macs for embedding in alone) / operator.macs
