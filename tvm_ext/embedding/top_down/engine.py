"""Embeds an instruction by transforming an operator until the instruction's pattern matches a part of it.

What the constraint program finds from the dataflow of scalars is found here by rewriting: reductions that the
instruction lacks are fissioned off (it adds to what is there, so they become loops around it), dimensions of inputs and
results are transposed, outer ones masked. One axis of the operator lies on one of the instruction, each index is one
iterator: windows, fused axes and images that are split are beyond it (section 3.5 of the source). Extents are divided
and padded afterwards (equations 3.5 and 3.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product

from tvm_ext.embedding.budget import Budget, SearchEnd
from tvm_ext.embedding.dataflow import Access, Dataflow
from tvm_ext.embedding.embedding import Digit, Embedding, Fused
from tvm_ext.embedding.solver import explain_types, fits_types
from tvm_ext.embedding.top_down.automaton import Automaton
from tvm_ext.embedding.top_down.graph import (
    Compute,
    Expression,
    Graph,
    Index,
    Input,
    Reduce,
    Statement,
    inputs,
    program,
)
from tvm_ext.embedding.top_down.masks import Mask
from tvm_ext.embedding.top_down.transformations import fission_reduction, transpose_input, transpose_output
from tvm_ext.embedding.top_down.tree import tree
from tvm_ext.errors import EmbeddingError

FACTORS = ("left", "right")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes
    ----------
    embeddings : tuple of Embedding
    candidates : int
        Rewritten programs, masked, that were matched.
    """

    embeddings: tuple[Embedding, ...]
    candidates: int


@dataclass(frozen=True)
class _Pattern:
    """An instruction as a program, with its axes in the order of loops, then of reductions."""

    graph: Graph
    axes: tuple[int, ...]
    loops: int


def search(operator: Dataflow, instruction: Dataflow, budget: Budget | None = None) -> Found:
    """Find how an instruction fits an operator.

    Parameters
    ----------
    operator, instruction : Dataflow
    budget : Budget, optional
        Candidates at most, a check each; what was found until then is kept.

    Raises
    ------
    EmbeddingError
        If there is none; the message says why.
    """
    orders = [swapped for swapped in (False, True) if fits_types(operator, instruction, swapped)]
    if not orders:
        raise EmbeddingError(explain_types(operator, instruction))
    budget = Budget() if budget is None else budget
    found: dict[tuple[tuple[Fused, ...], bool], Embedding] = {}
    candidates = 0
    # An axis of one point is no loop that the operator must have: without it more operators match.
    budget.begin()
    try:
        for whole in (True, False):
            for swapped in orders:
                patterns = list(_patterns(instruction, swapped, whole))
                automaton = Automaton({str(number): tree(it.graph) for number, it in enumerate(patterns)})
                for graph, mask, axes in _candidates(operator, patterns[0]):
                    budget.spend()
                    candidates += 1
                    root = tree(Graph(graph.statements[:1], ()), [mask])
                    for match in automaton.match(root):
                        digits = _digits(operator, instruction, patterns[int(match.pattern)], axes)
                        found.setdefault((digits, swapped), Embedding(operator, instruction, digits, swapped))
            if found:
                break
    except SearchEnd:
        pass
    if found:
        return Found(tuple(found.values()), candidates)
    raise EmbeddingError(
        f"none of {candidates} candidates of {operator.name} matches the instruction {instruction.name}: expected an "
        "axis of the operator for each of the instruction, alone in its index of each factor"
    )


def _patterns(instruction: Dataflow, swapped: bool, whole: bool) -> Iterator[_Pattern]:
    """Write an instruction as programs, one for each order of its reductions."""
    axes = [number for number, axis in enumerate(instruction.axes) if whole or axis.extent > 1]
    loops = [number for number in axes if not instruction.axes[number].reduces]
    for reductions in permutations(number for number in axes if instruction.axes[number].reduces):
        order = (*loops, *reductions)
        yield _Pattern(_product(instruction, order, swapped), order, len(loops))


def _product(flow: Dataflow, order: tuple[int, ...], swapped: bool = False) -> Graph:
    """Write a multiply-add as a program of one statement; axes that are not in ``order`` are at 0.

    A single result is in a loop of one turn.
    """
    loops = [axis for axis in order if not flow.axes[axis].reduces]
    wrapped = int(not loops)
    level = {axis: place + wrapped * flow.axes[axis].reduces for place, axis in enumerate(order)}

    def factor(name: str, access: Access) -> Input:
        index = []
        for row, start in zip(access.index, access.offset, strict=True):
            moving = [
                (level[axis], step, flow.axes[axis].extent) for axis, step in enumerate(row) if step and axis in level
            ]
            # What moves beside others, but has one value, is at 0; where nothing moves there is no dimension.
            terms = [(one, step) for one, step, extent in moving if extent > 1 or len(moving) == 1]
            if terms:
                index.append(Index(tuple(sorted(terms)), start))
        return Input(name, tuple(index))

    factors = tuple(factor(name, access) for name, access in zip(FACTORS, flow.inputs, strict=True))
    value: Expression = Compute("mul", factors[::-1] if swapped else factors)
    for axis in reversed(order[len(loops) :]):
        value = Reduce("add", flow.axes[axis].extent, value)
    return program(Statement(tuple(flow.axes[axis].extent for axis in loops) or (1,), value))


def _candidates(operator: Dataflow, pattern: _Pattern) -> Iterator[tuple[Graph, Mask, tuple[int, ...]]]:
    """Rewrite an operator so that any axes may be innermost, in any order of the dimensions of inputs.

    Yields the program, of which the first statement is to be matched, its mask, and the axes of the operator that its
    innermost loops and its reductions are.
    """
    outputs = [number for number, axis in enumerate(operator.axes) if not axis.reduces]
    reductions = [number for number, axis in enumerate(operator.axes) if axis.reduces]
    start = _product(operator, (*outputs, *reductions))
    for kept in combinations(range(len(reductions)), len(pattern.axes) - pattern.loops):
        graph = start
        for depth in reversed([place for place in range(len(reductions)) if place not in kept]):
            # Fissioned reductions are loops of the first statement, which is the one that multiplies.
            graph = fission_reduction(graph, 0, depth)
        outer = len(graph.statements[0].loops)
        for inner in permutations(range(len(outputs)), pattern.loops):
            order = (*(loop for loop in range(outer) if loop not in inner), *inner)
            moved = transpose_output(graph, 0, order)
            axes = (*(outputs[loop] for loop in inner), *(reductions[place] for place in kept))
            yield from ((it, mask, axes) for it, mask in _input_orders(moved, outer - pattern.loops))


def _input_orders(graph: Graph, first: int) -> Iterator[tuple[Graph, Mask]]:
    """Transpose inputs so that the dimensions of iterators from a level on are innermost, and mask the others."""
    choices: list[list[tuple[int, ...]]] = []
    visible = []
    for read in inputs(graph.statements[0].value):
        inner = [at for at, index in enumerate(read.index) if any(level >= first for level in index.levels)]
        if any(read.index[at].iterator is None for at in inner):
            return  # a window, a step or an offset is in the way in every order
        outer = [at for at in range(len(read.index)) if at not in inner]
        choices.append([(*outer, *order) for order in permutations(inner)])
        visible.append(len(inner))
    for orders in product(*choices):
        moved = graph
        for name, order in zip(FACTORS, orders, strict=True):
            moved = transpose_input(moved, name, order)
        yield moved, tuple(visible)


def _digits(operator: Dataflow, instruction: Dataflow, pattern: _Pattern, axes: tuple[int, ...]) -> tuple[Fused, ...]:
    """Divide and pad the axes of the operator by those of the instruction."""
    placed = dict(zip(pattern.axes, axes, strict=True))
    found: list[Fused] = []
    for number, axis in enumerate(instruction.axes):
        if number not in placed:
            found.append(())
            continue
        extent = operator.axes[placed[number]].extent
        found.append((Digit(placed[number], axis.extent, 1, extent + padding(extent, axis.extent)),))
    return tuple(found)


def padding(extent: int, size: int) -> int:
    """Return what a loop lacks to a multiple of an instruction's extent (equation 3.6)."""
    return size * -(-extent // size) - extent
