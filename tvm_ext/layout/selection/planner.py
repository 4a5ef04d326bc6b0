"""Choose a plan for each operator of a graph so that plans and relayouts together cost the least (GCD2, Eq. 4.1).

Source: W. Niu et al., "GCD2: A Globally Optimizing Compiler for Mapping DNNs to Mobile DSPs", MICRO 2022, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_ext.errors import OptionError
from tvm_ext.layout.selection.elimination import eliminate
from tvm_ext.layout.selection.partition import partition
from tvm_ext.layout.selection.problem import SelectionProblem

TABLE_LIMIT = 1 << 20
"""Entries of the largest table of an elimination: some ten milliseconds and 8 MiB each."""

PART_SIZE = 13
"""Operators of a part where a graph is too wide to be solved at once."""


@dataclass(frozen=True)
class Selection:
    """What was selected.

    Attributes
    ----------
    choice : tuple of int
        Index of the plan of each operator.
    cost : int
        Of plans and relayouts, in the problem's unit.
    method : str
        ``whole``: the best choice there is; ``parts``: the best one of each part, given what is chosen around it;
        ``local``: each operator by itself.
    parts : tuple of tuple of int
        Operators that were chosen for together.
    """

    choice: tuple[int, ...]
    cost: int
    method: Literal["whole", "parts", "local"]
    parts: tuple[tuple[int, ...], ...]

    @property
    def optimal(self) -> bool:
        """Whether no choice costs less."""
        return self.method == "whole"


def plan_selection(problem: SelectionProblem, part_size: int | None = None) -> Selection:
    """Select for the whole graph.

    A graph that is narrow enough is solved exactly at once, whatever its length. Another one is parted
    (:func:`~tvm_ext.layout.selection.partition.partition`) and solved part by part: relayouts on cut edges, which
    Eq. 4.3 leaves out, are counted as soon as their other end is chosen, and parts are chosen for again, with all
    around them fixed, as long as that makes the whole cheaper.

    Parameters
    ----------
    problem : SelectionProblem
        Plans and relayouts.
    part_size : int, optional
        Part the graph into parts of at most so many operators, also where it could be solved at once.

    Raises
    ------
    OptionError
        If ``part_size`` is not positive.
    """
    if part_size is not None and part_size < 1:
        raise OptionError(f"part_size is {part_size}; a part has at least 1 operator")
    if part_size is None:
        whole = eliminate(problem, table_limit=TABLE_LIMIT)
        if whole is not None:
            return _selection(problem, whole, "whole", (tuple(range(len(problem))),))
    parts = _narrow_parts(problem, part_size or PART_SIZE)
    chosen: dict[int, int] = {}
    cost: int | None = None
    while True:
        for part in parts:
            around = {name: index for name, index in chosen.items() if name not in part}
            found = eliminate(problem, part, around, table_limit=TABLE_LIMIT)
            assert found is not None, "parts are cut until their tables fit"
            chosen.update(found)
        selection = _selection(problem, chosen, "whole" if len(parts) == 1 else "parts", parts)
        if len(parts) == 1 or (cost is not None and selection.cost >= cost):
            return selection
        cost = selection.cost


def plan_locally(problem: SelectionProblem) -> Selection:
    """Take each operator's cheapest plan, whatever relayouts that asks for: the local optimum of Fig. 4.10."""
    chosen = {}
    for name, operator in enumerate(problem.operators):
        own = [plan.cost for plan in operator.plans]
        chosen[name] = own.index(min(own))
    return _selection(problem, chosen, "local", tuple((name,) for name in chosen))


def _narrow_parts(problem: SelectionProblem, size: int) -> tuple[tuple[int, ...], ...]:
    """Part the graph, and parts again whose tables are too large."""
    waiting, parts = list(reversed(partition(problem, size).parts)), []
    while waiting:
        part = waiting.pop()
        if len(part) > 1 and eliminate(problem, part, table_limit=TABLE_LIMIT) is None:
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
        else:
            parts.append(part)
    return tuple(parts)


def _selection(
    problem: SelectionProblem,
    chosen: dict[int, int],
    method: Literal["whole", "parts", "local"],
    parts: tuple[tuple[int, ...], ...],
) -> Selection:
    choice = tuple(chosen[name] for name in range(len(problem)))
    return Selection(choice, problem.aggregate_cost(choice), method, parts)
