"""Tensor compute graphs: programs of loop nests, as plain data.

A program is a sequence of statements, each of which computes every element of one tensor. ``Graph.shared`` says how
many loops neighbours have in common, which is all that there is to the tree of loops. Iterators have no names: an
access refers to them by their level, loops from outside first and reductions after them, so that equal programs are
equal data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Operation = Literal["add", "mul", "sub", "div", "max", "exp"]
COMMUTATIVE = frozenset({"add", "mul", "max"})
INITIAL = {"add": 0.0, "mul": 1.0, "max": float("-inf")}
"""What a reduction begins with."""


@dataclass(frozen=True)
class Index:
    """Where an input is read in one of its dimensions: ``sum(step * iterator) + offset``.

    Attributes
    ----------
    terms : tuple of (int, int)
        Level of an iterator and its step, by levels; no step is 0.
    offset : int
    """

    terms: tuple[tuple[int, int], ...]
    offset: int = 0

    @property
    def iterator(self) -> int | None:
        """Level of the iterator that the whole index is, if it is one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset:
            return self.terms[0][0]
        return None

    @property
    def levels(self) -> frozenset[int]:
        """Levels of the iterators in it."""
        return frozenset(level for level, _ in self.terms)

    def substitute(self, value: Callable[[int], Index]) -> Index:
        """Replace each iterator by an index."""
        steps: dict[int, int] = {}
        offset = self.offset
        for level, step in self.terms:
            found = value(level)
            offset += step * found.offset
            for inner, factor in found.terms:
                steps[inner] = steps.get(inner, 0) + step * factor
        return Index(tuple(sorted((level, step) for level, step in steps.items() if step)), offset)


def at(level: int) -> Index:
    """Index by one iterator."""
    return Index(((level, 1),))


@dataclass(frozen=True)
class Input:
    """An element of a tensor: a name is one from outside, a number the result of that statement."""

    tensor: str | int
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: float


@dataclass(frozen=True)
class Compute:
    """An operation on one or two scalars, operands from left to right."""

    operation: Operation
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Reduce:
    """A scalar from all values of ``body`` as an iterator of its own takes ``extent`` values."""

    operation: Operation
    extent: int
    body: Expression


Expression = Input | Constant | Compute | Reduce


@dataclass(frozen=True)
class Statement:
    """``result[loops] = value``: every element of one tensor, whose dimensions are the loops, outermost first."""

    loops: tuple[int, ...]
    value: Expression


@dataclass(frozen=True)
class Graph:
    """A program.

    Attributes
    ----------
    statements : tuple of Statement
        In the order of computation; the last one is the result.
    shared : tuple of int
        For each pair of neighbours, how many of the outermost loops they are in together. A statement keeps its
        innermost loop for itself: a tensor node defines one tensor.
    """

    statements: tuple[Statement, ...]
    shared: tuple[int, ...]

    def own(self, number: int) -> int:
        """Level of the first loop that a statement has for itself."""
        return max([0, *self.shared[max(number - 1, 0) : number + 1]])


def program(*statements: Statement) -> Graph:
    """Make a program of separate loop nests."""
    return Graph(statements, (0,) * (len(statements) - 1))


def inputs(value: Expression) -> Iterator[Input]:
    """Go through the inputs of an expression from left to right."""
    if isinstance(value, Input):
        yield value
    elif isinstance(value, Compute):
        for operand in value.operands:
            yield from inputs(operand)
    elif isinstance(value, Reduce):
        yield from inputs(value.body)


def map_inputs(value: Expression, change: Callable[[Input], Expression]) -> Expression:
    """Replace the inputs of an expression."""
    if isinstance(value, Input):
        return change(value)
    if isinstance(value, Compute):
        return replace(value, operands=tuple(map_inputs(operand, change) for operand in value.operands))
    if isinstance(value, Reduce):
        return replace(value, body=map_inputs(value.body, change))
    return value


def map_statements(graph: Graph, change: Callable[[Input], Expression]) -> Graph:
    """Replace the inputs of all statements."""
    return replace(graph, statements=tuple(replace(it, value=map_inputs(it.value, change)) for it in graph.statements))


def has_reduction(value: Expression) -> bool:
    """Whether an expression reduces."""
    if isinstance(value, Compute):
        return any(has_reduction(operand) for operand in value.operands)
    return isinstance(value, Reduce)


def consumers(graph: Graph, number: int) -> list[int]:
    """Statements that read the result of one."""
    return [
        other
        for other in range(number + 1, len(graph.statements))
        if any(read.tensor == number for read in inputs(graph.statements[other].value))
    ]
