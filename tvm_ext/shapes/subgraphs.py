"""Parts of a graph between the operators that have to run before their extents are known, and how known they are.

Source: SOD2, sections 5.4.3 (cut points) and 5.5 (figure 5.8: shares of sub-graphs).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from tvm_ext.shapes.lattice import kind_of
from tvm_ext.shapes.propagate import Propagation

Knowledge = Literal["known", "mixed", "not constant"]


@dataclass(frozen=True)
class Part:
    """Operators that can be planned together.

    Attributes
    ----------
    operators : tuple of int
    knowledge : str
        ``known``: all dimensions are numbers; ``mixed``: numbers and expressions of symbols; ``not constant``: a cut,
        or shapes that nothing is known of.
    """

    operators: tuple[int, ...]
    knowledge: Knowledge


@dataclass(frozen=True)
class Shares:
    """How much of a graph is known.

    Attributes
    ----------
    parts : tuple of Part
    dynamism : mapping from str to int
        Operators by class.
    kinds : mapping from str to int
        Dimensions of tensors by kind of fact.
    """

    parts: tuple[Part, ...]
    dynamism: dict[str, int]
    kinds: dict[str, int]

    @property
    def known_parts(self) -> float:
        """Share of the parts that are known or mixed; 1 of a graph without operators."""
        return _share(sum(part.knowledge != "not constant" for part in self.parts), len(self.parts))

    @property
    def known_operators(self) -> float:
        """Share of the operators that are in such parts."""
        known = sum(len(part.operators) for part in self.parts if part.knowledge != "not constant")
        return _share(known, sum(len(part.operators) for part in self.parts))


def shares(found: Propagation) -> Shares:
    """Divide a graph at its cuts, and the graphs inside it; an ``If`` or ``Loop`` counts as its bodies do."""
    own = _own_shares(found)
    inside = [shares(body) for body in found.bodies]
    parts = [part for part in own.parts if not all(found.graph.operators[index].bodies for index in part.operators)]
    parts += [part for item in inside for part in item.parts]
    totals = [Counter(own.dynamism), Counter(own.kinds)]
    for item in inside:
        totals[0].update(item.dynamism)
        totals[1].update(item.kinds)
    return Shares(tuple(parts), dict(totals[0]), dict(totals[1]))


def _own_shares(found: Propagation) -> Shares:
    graph = nx.Graph()
    operators = found.graph.operators
    graph.add_nodes_from(index for index in range(len(operators)) if index not in found.cuts)
    made = {name: index for index, operator in enumerate(operators) for name in operator.outputs if name}
    for index, operator in enumerate(operators):
        for name in operator.inputs:
            before = made.get(name)
            if before is not None and before in graph and index in graph:
                graph.add_edge(before, index)
    parts = [Part((index,), "not constant") for index in sorted(found.cuts)]
    parts += [Part(tuple(sorted(nodes)), _knowledge(found, nodes)) for nodes in nx.connected_components(graph)]
    tensors = [name for operator in operators for name in operator.outputs if name]
    kinds = Counter(str(kind_of(dim)) for name in tensors for dim in found.facts[name].dims)
    return Shares(tuple(parts), dict(Counter(found.dynamism)), dict(kinds))


def _knowledge(found: Propagation, nodes: set[int]) -> Knowledge:
    names = [name for index in nodes for name in found.graph.operators[index].outputs if name]
    if any(found.facts[name].rank is None for name in names):
        return "not constant"
    kinds = {kind_of(dim) for name in names for dim in found.facts[name].dims}
    return "known" if kinds <= {"known"} else "mixed"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
