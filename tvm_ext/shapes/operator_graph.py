"""A graph of operators on plain data, as rank and dimension propagation reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Application, Dim, Symbolic
from tvm_ext.shapes.lattice import Fact

Limits = tuple[int, "int | None"]
"""Smallest and largest value, None for no limit."""


@dataclass(frozen=True)
class Operator:
    """One use of an operator.

    Attributes
    ----------
    kind : str
        Its name, as ``Conv``.
    inputs, outputs : tuple of str
        Names of tensors; empty for what is left out.
    attributes : mapping
        As Python values; graphs inside are in ``bodies``.
    domain : str
    label : str
        What to call it in messages.
    bodies : mapping from str to Graph
        Graphs inside, by the names of their attributes.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    label: str = ""
    bodies: Mapping[str, Graph] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Operators in an order in which each finds its inputs made.

    Attributes
    ----------
    operators : tuple of Operator
    inputs : mapping from str to Fact
        What is known of the inputs beforehand.
    constants : mapping from str to numpy.ndarray or tuple of int
        Values of small constants, shapes of the others.
    outputs : tuple of str
    limits : mapping from str to (int, int or None)
        What values the symbols may have; from 0 on where nothing is said.
    """

    operators: tuple[Operator, ...]
    inputs: Mapping[str, Fact]
    constants: Mapping[str, np.ndarray | tuple[int, ...]]
    outputs: tuple[str, ...]
    limits: Mapping[str, Limits] = field(default_factory=dict)


def bounds(size: Dim, limits: Mapping[str, Limits]) -> tuple[float, float]:
    """Give an interval that a size is in, by interval arithmetic; ends may be infinite.

    Parameters
    ----------
    size : int or Symbolic
    limits : mapping from str to (int, int or None)
        Of the symbols, from 0 on where nothing is said.
    """
    if not isinstance(size, Symbolic):
        return float(size), float(size)
    low = high = 0.0
    for monomial, coefficient in size.terms:
        ends = (1.0, 1.0)
        for atom in monomial:
            ends = _times(ends, _atom_bounds(atom, limits))
        ends = _times(ends, (float(coefficient), float(coefficient)))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _atom_bounds(atom: str | Application, limits: Mapping[str, Limits]) -> tuple[float, float]:
    if isinstance(atom, str):
        low, high = limits.get(atom, (0, None))
        return float(low), inf if high is None else float(high)
    left, right = bounds(atom.left, limits), bounds(atom.right, limits)
    if atom.function in ("min", "max"):
        pick = min if atom.function == "min" else max
        return pick(left[0], right[0]), pick(left[1], right[1])
    if atom.function == "floormod":
        return (0.0, right[1] - 1) if right[0] > 0 else (-inf, inf)
    if right[0] <= 0:  # a quotient by what may be zero
        return -inf, inf
    corners = [_quotient(end, divisor) for end in left for divisor in right]
    return min(corners), max(corners)


def _quotient(end: float, divisor: float) -> float:
    if abs(end) == inf:
        return end
    return (-1.0 if end < 0 else 0.0) if divisor == inf else end // divisor


def _times(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    corners = [0.0 if 0.0 in (a, b) else a * b for a in first for b in second]
    return min(corners), max(corners)
