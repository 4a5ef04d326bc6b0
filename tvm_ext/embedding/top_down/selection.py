"""Selects among matches that overlap (Algorithm 1 of the source)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tvm_ext.embedding.top_down.automaton import Match
from tvm_ext.embedding.top_down.tree import Node


def select(matches: Sequence[Match]) -> tuple[Match, ...]:
    """Select matches that share no node and cover as many nodes as possible (equation 3.4).

    At each node the best instruction for each continuation is kept, a continuation being the next match that does not
    overlap; nothing may be selected there as well. Results are kept by place, so that each is computed once.

    Parameters
    ----------
    matches : sequence of Match
        In the order of the walk, as :meth:`Automaton.match` gives them.
    """
    groups = [list(found) for _, found in groupby(matches, key=lambda match: match.place)]
    best: list[tuple[int, tuple[Match, ...]]] = [(0, ())]  # of what is left after all, after all but one, and so on
    for number in reversed(range(len(groups))):
        continuation: dict[int, Match] = {}
        for match in groups[number]:
            end = match.place + _size(match.node)
            following = next(
                (later for later in range(number + 1, len(groups)) if groups[later][0].place >= end), len(groups)
            )
            continuation.setdefault(following, match)
        candidates = [best[0]]  # the null pattern: nothing here
        for following, match in continuation.items():
            covered, rest = best[following - number - 1]
            candidates.append((covered + _size(match.node), (match, *rest)))
        best.insert(0, max(candidates, key=lambda candidate: candidate[0]))
    return best[0][1]


def _size(node: Node) -> int:
    return sum(1 for _ in node.walk())


def coverage(root: Node, selected: Sequence[Match]) -> float:
    """Share of the nodes of a tree that are covered (equation 3.4)."""
    return sum(_size(match.node) for match in selected) / sum(1 for _ in root.walk_all())


def algebraic_coverage(root: Node, selected: Sequence[Match]) -> float:
    """Share of the operations and reductions that are covered: 1 for a solution."""

    def algebra(nodes: Sequence[Node]) -> int:
        return sum(node.label[0] in ("compute", "reduction") for node in nodes)

    return sum(algebra(list(match.node.walk())) for match in selected) / max(algebra(list(root.walk_all())), 1)
