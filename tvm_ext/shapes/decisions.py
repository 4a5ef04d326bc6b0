"""Whether a graph does different things for different sizes of its inputs: branches, minima, comparisons of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Application, Symbolic
from tvm_ext.shapes.lattice import UNKNOWN, Fact, is_extreme
from tvm_ext.shapes.propagate import Propagation

_COMPARE = frozenset(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
_PICK = frozenset(["Max", "Min", "Where", "Clip", "ReduceMax", "ReduceMin", "Abs", "Mod", "TopK", "Slice"])


def decides_by_size(found: Propagation) -> bool:
    """Say whether what a graph computes is chosen by a size, so that samples of sizes do not tell it for the others.

    Parameters
    ----------
    found : Propagation
        Comparisons that its ranges settle decide nothing.
    """
    if any(condition.endswith(" != 1") for condition in found.conditions):
        return True  # the rank of a result
    for operator in found.graph.operators:
        given = [found.facts.get(name, UNKNOWN) for name in operator.inputs if name]
        made = [found.facts.get(name, UNKNOWN) for name in operator.outputs if name]
        of_sizes = bool(given) and all(isinstance(fact.value, np.ndarray) for fact in given)
        if operator.kind in _COMPARE and of_sizes and any(map(_is_open, made)):
            return True
        if operator.kind in _PICK and any(map(_chooses, made)) and not any(map(_chooses, given)):
            return True
        if operator.kind in _PICK and of_sizes and any(map(_is_open, made)):
            return True
    return any(map(decides_by_size, found.bodies))


def _is_open(fact: Fact) -> bool:
    return isinstance(fact.value, np.ndarray) and any(map(is_extreme, fact.value.ravel()))


def _chooses(fact: Fact) -> bool:
    """Whether a minimum or maximum is in an expression of a tensor's shape or values."""
    values: list[Any] = list(fact.value.ravel()) if isinstance(fact.value, np.ndarray) else []
    return any(_has_choice(item) for item in (*fact.dims, *values))


def _has_choice(size: Any) -> bool:
    if not isinstance(size, Symbolic):
        return False
    atoms = [atom for monomial, _ in size.terms for atom in monomial if isinstance(atom, Application)]
    return any(atom.function in ("min", "max") or _has_choice(atom.left) or _has_choice(atom.right) for atom in atoms)
