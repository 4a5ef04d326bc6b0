"""The layouts of a model's operators, chosen for the whole graph.

A model is rewritten twice: first in one layout, which lists its operators, what each would cost in every layout and
whose results it reads; then in the layouts that the planner selects (:mod:`tvm_ext.layout.selection`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.hexagon.model.costs import relayout
from tvm_ext.graph.decisions import Decision
from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    Selection,
    SelectionProblem,
    edge_between,
    plan_locally,
    plan_selection,
    verify_selection,
)
from tvm_ext.schedules.hexagon.panels import FOUR, LAYOUTS, Panels

_PLANES = "planes"
_BY_NAME: dict[str, Panels | None] = {layout.instruction: layout for layout in LAYOUTS} | {_PLANES: None}


@dataclass(frozen=True)
class Operand:
    """A picture that an operator reads; ``maker`` is the operator that makes it, None where it comes as planes."""

    maker: int | None
    pixels: int
    channels: int


@dataclass(frozen=True)
class Node:
    """An operator with kernels of HVX.

    Attributes
    ----------
    operator : str
        Such as ``nn.conv2d``.
    nodes : tuple of str
        Words for the nodes of the model that it comes from.
    operands : tuple of Operand
    packets : mapping of str to int
        Estimated packets of its kernels, by the instructions of the layouts.
    """

    operator: str
    nodes: tuple[str, ...]
    operands: tuple[Operand, ...]
    packets: Mapping[str, int]


@dataclass
class Layouts:
    """The layouts of operators in the order in which they are emitted.

    Attributes
    ----------
    chosen : sequence of Panels, or Panels
        One for each operator, or one for all.
    nodes : list of Node
        The operators so far.
    """

    chosen: Sequence[Panels] | Panels = FOUR
    nodes: list[Node] = field(default_factory=list)

    def of(self, node: Node) -> Panels:
        """Note the next operator; gives its layout."""
        self.nodes.append(node)
        return self.chosen if isinstance(self.chosen, Panels) else self.chosen[len(self.nodes) - 1]


def problem_of(nodes: Sequence[Node]) -> tuple[SelectionProblem, list[int]]:
    """State what is to be selected; gives the problem, and the place of each node in it.

    Pictures that come as planes are operators with one plan.
    """
    operators: list[Operator] = []
    places: list[int] = []
    ends: list[tuple[int, int, Operand]] = []
    for number, node in enumerate(nodes):
        sources = []
        for operand in node.operands:
            if operand.maker is None:
                operators.append(Operator(f"planes {len(operators)}", (Plan(_PLANES, 0, _PLANES, _PLANES),)))
                sources.append(len(operators) - 1)
            else:
                sources.append(places[operand.maker])
        plans = tuple(Plan(name, cost, name, name) for name, cost in node.packets.items())
        places.append(len(operators))
        operators.append(Operator(f"{number} {node.operator}", plans))
        ends += [(source, places[-1], operand) for source, operand in zip(sources, node.operands, strict=True)]
    edges: list[Edge] = []
    for source, target, operand in ends:

        def cost(before: str, after: str, operand: Operand = operand) -> int:
            wanted = _BY_NAME[after]
            assert wanted is not None, "no operator takes planes"
            return relayout(_BY_NAME[before], wanted, operand.pixels, operand.channels)

        edges.append(edge_between(operators, source, target, cost))
    return SelectionProblem(tuple(operators), tuple(edges)), places


@dataclass(frozen=True)
class Chosen:
    """What was selected for a model.

    Attributes
    ----------
    layouts : list of Panels
        One for each operator.
    nodes : list of Node
    selection : Selection
    packets : int
        Estimated packets of operators and changes of layout.
    local : int
        The same with each operator's own best layout.
    alone : mapping of str to int
        The same with one layout for all.
    """

    layouts: list[Panels]
    nodes: list[Node]
    selection: Selection
    packets: int
    local: int
    alone: Mapping[str, int]

    @property
    def decisions(self) -> list[Decision]:
        """One for each operator, for metadata and reports; the last is about all of them."""
        found = [
            Decision(
                node.operator,
                node.nodes,
                layout.instruction,
                (("columns", layout.columns), ("packets", dict(node.packets))),
            )
            for node, layout in zip(self.nodes, self.layouts, strict=True)
        ]
        counts = {layout.instruction: self.layouts.count(layout) for layout in LAYOUTS}
        plan = {
            "operators": {name: count for name, count in counts.items() if count},
            "method": self.selection.method,
            "packets": self.packets,
            "each by itself": self.local,
            "all in one layout": dict(self.alone),
        }
        return [*found, Decision("whole graph", (), "layouts of HVX", tuple(plan.items()))]


def choose_layouts(nodes: Sequence[Node]) -> Chosen:
    """Select a layout for each operator of a model, and verify the selection.

    Raises
    ------
    CheckError
        If a better selection is found on the way.
    """
    problem, places = problem_of(nodes)
    selection = plan_selection(problem)
    verify_selection(selection, problem)

    def packets(name: str) -> int:
        return problem.aggregate_cost(
            [next((i for i, plan in enumerate(item.plans) if plan.name == name), 0) for item in problem.operators]
        )

    names = [problem.operators[place].plans[selection.choice[place]].name for place in places]
    layouts = [layout for name in names if (layout := _BY_NAME[name]) is not None]
    alone = {layout.instruction: packets(layout.instruction) for layout in LAYOUTS}
    return Chosen(layouts, list(nodes), selection, selection.cost, plan_locally(problem).cost, alone)
