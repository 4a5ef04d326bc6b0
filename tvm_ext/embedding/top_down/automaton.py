"""Tree patterns in one Aho-Corasick automaton: the paths of all instructions from root to leaf are its strings.

Method: Hoffmann and O'Donnell's top-down tree matching, as section 3.2 of the source has it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tvm_ext.embedding.top_down.tree import PREVIOUS, Node


class Match(NamedTuple):
    """An instruction that computes all that is below a node.

    Attributes
    ----------
    node : Node
        Of the program: the root of the match.
    place : int
        Of that node in the walk through the tree.
    pattern : str
    """

    node: Node
    place: int
    pattern: str


@dataclass
class _State:
    """A state: what follows, where to go on when nothing does, and the paths that end here (pattern, length)."""

    following: dict[Hashable, int]
    failure: int
    ends: list[tuple[str, int]]


def _paths(node: Node) -> Iterator[tuple[Hashable, ...]]:
    """Go through the paths to the leaves: labels, with the edges between them."""
    if not node.body:
        yield (node.label,)
    for edge, child in node.body:
        for rest in _paths(child):
            yield (node.label, ("edge", edge), *rest)


class Automaton:
    """Patterns of instructions, matched all at once.

    Parameters
    ----------
    patterns : mapping of str to Node
        Trees of instructions. Each has one statement.
    """

    def __init__(self, patterns: Mapping[str, Node]) -> None:
        self.leaves = {name: pattern.leaves for name, pattern in patterns.items()}
        self._states = [_State({}, 0, [])]
        for name, pattern in patterns.items():
            for path in _paths(pattern):
                state = 0
                for symbol in path:
                    following = self._states[state].following
                    if symbol not in following:
                        following[symbol] = len(self._states)
                        self._states.append(_State({}, 0, []))
                    state = following[symbol]
                self._states[state].ends.append((name, len(path)))
        self._link()

    def _link(self) -> None:
        """Set where each state goes on, from short to long, and take over the paths that end there as well."""
        queue = deque(self._states[0].following.values())
        while queue:
            current = self._states[queue.popleft()]
            for symbol, target in current.following.items():
                queue.append(target)
                following = self._states[target]
                following.failure = self._step(current.failure, symbol)
                following.ends += self._states[following.failure].ends

    def _step(self, state: int, symbol: Hashable) -> int:
        while state and symbol not in self._states[state].following:
            state = self._states[state].failure
        return self._states[state].following.get(symbol, 0)

    def match(self, root: Node) -> list[Match]:
        """Find where instructions fit a tree, in the order of the walk from right to left.

        A match is full: as many of its paths are found below a node as it has leaves, and the node has no others.
        """
        nodes: list[Node] = []
        counts: Counter[tuple[int, str]] = Counter()

        def visit(node: Node, state: int, above: list[int]) -> None:
            state = self._step(state, node.label)
            above = [*above, len(nodes)]
            nodes.append(node)
            if not node.body:
                # Labels and edges take turns, so a path of so many symbols has half as many nodes, rounded up.
                for pattern, length in self._states[state].ends:
                    counts[above[-(length + 1) // 2], pattern] += 1
            for edge, child in node.children:
                # What is computed before is no part of an instruction: there a path begins anew.
                after = 0 if edge == PREVIOUS else self._step(state, ("edge", edge))
                visit(child, after, [] if edge == PREVIOUS else above)

        visit(root, 0, [])
        return [
            Match(nodes[place], place, pattern)
            for (place, pattern), count in sorted(counts.items())
            if count == self.leaves[pattern] == nodes[place].leaves
        ]
