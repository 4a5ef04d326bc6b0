"""The search of section 3.4: programs from fission, fusion and inlining, matched with instructions under all masks.

A candidate is a program with a mask for each statement; it is a solution if every operation and reduction is in an
instruction. As the instructions have one statement each, what a statement matches does not depend on the others, so
candidates and solutions of a program are counted statement by statement; ``solutions`` lists them one by one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from tvm_ext.embedding.top_down.automaton import Automaton, Match
from tvm_ext.embedding.top_down.graph import Graph, Input, Statement, inputs, map_inputs
from tvm_ext.embedding.top_down.masks import Mask, hidden_inputs, masks
from tvm_ext.embedding.top_down.selection import algebraic_coverage, select
from tvm_ext.embedding.top_down.transformations import (
    canonical,
    compute_fissions,
    fusions,
    inlinings,
    reduction_fissions,
    transpose_input,
    transpose_output,
)
from tvm_ext.embedding.top_down.tree import tree

LIMIT = 1_000_000
"""Programs of one search at most; those found until then are kept."""


def full_fission(graph: Graph) -> list[Graph]:
    """Split as far as it goes (Algorithm 2); gives the program, and each on the way to the finest, which is last."""
    found = [graph]
    while True:
        following = next(compute_fissions(found[-1]), None) or next(reduction_fissions(found[-1]), None)
        if following is None:
            return found
        found.append(following)


def all_fusions(graph: Graph, limit: int = LIMIT) -> dict[Graph, int]:
    """Fuse and inline in all ways (Algorithm 3); gives each program once, and by how many steps.

    One option at a time: sets of options that do not conflict are steps one after the other.
    """
    found, queue = {graph: 0}, deque([graph])
    while queue:
        current = queue.popleft()
        for following in (*fusions(current), *inlinings(current)):
            if following not in found:
                if len(found) == limit:
                    return found
                found[following] = found[current] + 1
                queue.append(following)
    return found


def programs(operator: Graph, fission: bool = True, fusion: bool = True, limit: int = LIMIT) -> dict[Graph, int]:
    """Rewrite an operator in the order of section 3.4.1: swap, fission, fusion.

    Parameters
    ----------
    operator : Graph
    fission, fusion : bool
        The configurations of Table 3.4.
    limit : int
        Programs at most.

    Returns
    -------
    dict of Graph to int
        By how many transformations each is reached.
    """
    start, swaps = canonical(operator)
    split = full_fission(start) if fission else [start]
    steps = swaps + len(split) - 1
    if not fusion:
        return {split[-1]: steps}
    return {graph: steps + more for graph, more in all_fusions(split[-1], limit).items()}


def layouts(operator: Graph) -> Iterator[Graph]:
    """Store all inputs and results of the most dimensions in the same other order: each order once (section 3.4.4)."""
    names = {read.tensor: len(read.index) for it in operator.statements for read in inputs(it.value)}
    rank = max(len(it.loops) for it in operator.statements)
    for order in permutations(range(rank)):
        found = operator
        for number, statement in enumerate(operator.statements):
            if len(statement.loops) == rank:
                found = transpose_output(found, number, order)
        for name, dimensions in names.items():
            if isinstance(name, str) and dimensions == rank:
                found = transpose_input(found, name, order)
        yield found


@dataclass(frozen=True)
class Counts:
    """What a search found.

    Attributes
    ----------
    programs : int
    candidates : int
        Programs with masks.
    solutions : int
        Those of which every operation and reduction is in an instruction.
    transformations : int
        Median over the solutions of how many transformations they took; 0 if there are none.
    """

    programs: int
    candidates: int
    solutions: int
    transformations: int


def count(found: Mapping[Graph, int], automaton: Automaton) -> Counts:
    """Count candidates and solutions of programs.

    Parameters
    ----------
    found : mapping of Graph to int
        Programs, and by how many transformations each was reached.
    automaton : Automaton
    """
    known: dict[Statement, tuple[int, Counter[int]]] = {}
    candidates = 0
    taken: Counter[int] = Counter()
    for graph, steps in found.items():
        every = 1
        solved: Counter[int] = Counter({steps: 1})
        for statement in graph.statements:
            key = Statement(statement.loops, map_inputs(statement.value, lambda read: Input("", read.index)))
            if key not in known:
                known[key] = _count_statement(key, automaton)
            number, masked = known[key]
            every *= number
            solved = _sums(solved, masked) if solved else solved
        candidates += every
        taken += solved
    return Counts(len(found), candidates, taken.total(), _median(taken))


def _count_statement(statement: Statement, automaton: Automaton) -> tuple[int, Counter[int]]:
    """Count the masks of a statement, and those that it is an instruction with, by how many inputs they hide of."""
    every, solved = 0, Counter[int]()
    for mask in masks(statement):
        every += 1
        if automaton.match(tree(Graph((statement,), ()), [mask])):
            solved[hidden_inputs(statement, mask)] += 1
    return every, solved


def _sums(left: Counter[int], right: Counter[int]) -> Counter[int]:
    found = Counter[int]()
    for (one, times), (other, more) in product(left.items(), right.items()):
        found[one + other] += times * more
    return found


def _median(values: Counter[int]) -> int:
    half, seen = values.total() / 2, 0
    for value in sorted(values):
        seen += values[value]
        if seen >= half:
            return value
    return 0


def solutions(graph: Graph, automaton: Automaton) -> Iterator[tuple[tuple[Mask, ...], Sequence[Match]]]:
    """Go through the masks of a program with which instructions cover all of it, with the instructions."""
    for chosen in product(*(list(masks(statement)) for statement in graph.statements)):
        root = tree(graph, chosen)
        selected = select(automaton.match(root))
        if algebraic_coverage(root, selected) == 1:
            yield chosen, selected
