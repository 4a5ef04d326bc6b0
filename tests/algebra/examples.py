"""Random terms that a pattern matches: shapes are drawn from the outermost operator inwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.algebra.operators import OPERATORS, REDUCTIONS, Shape
from tvm_ext.algebra.rule import Pattern, Rule
from tvm_ext.algebra.term import Term, Terms

CONVOLUTIONS = [
    ((1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 1), (0, 1, 1, 0), (1, 1), 1),
    ((1, 1), (2, 2, 2, 2), (2, 2), 1),
    ((1, 1), (1, 1, 1, 1), (1, 1), 2),
]


def conditions_of(rule: Rule) -> tuple[str, ...]:
    """What a rule needs or assumes."""
    return (*rule.needs, *rule.assumes)


@dataclass
class Example:
    """One term for the left side of a rule, and values for its inputs and constants."""

    rule: Rule
    rng: np.random.Generator
    integers: bool = False
    numbers: float = 0.0
    """Decimal orders of magnitude that numbers may lie from 1."""

    extents: tuple[int, ...] = (2, 3, 4)

    terms: Terms = field(default_factory=Terms)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng
        operators = set(self.rule.pattern.operators())
        rank = (
            4 if "conv" in operators else int(rng.integers(2, 4)) if "matmul" in operators else int(rng.integers(1, 4))
        )
        self._base: Shape = tuple(int(extent) for extent in rng.choice(self.extents, rank))
        self._window = CONVOLUTIONS[int(rng.integers(len(CONVOLUTIONS)))]
        if "conv" in operators:
            self._base = (*self._base[:1], 4, *self._base[2:])
        self._inner = int(rng.choice([1, *self.extents]))
        self._shapes: dict[str, Shape] = {}
        self._attributes: dict[str, Any] = {}
        self._assign(self.rule.pattern, self._base, False)

    def term(self) -> Term:
        """The term; a ShapeError where the shapes that were drawn do not fit."""
        return self._build(self.rule.pattern)

    def _assign(self, pattern: Pattern, shape: Shape, may_broadcast: bool) -> None:
        rng = self.rng
        if pattern.variable:
            if pattern.variable not in self._shapes:
                self._shapes[pattern.variable] = self._shape_of(pattern.variable, shape, may_broadcast)
            return
        op = pattern.op
        if not op:
            return
        if op in REDUCTIONS or op == "softmax":
            self._set(pattern.attribute, self._axes())
            self._assign(pattern.operands[0], self._base, False)
        elif op == "matmul":
            first, second = pattern.operands
            self._assign(first, (*shape[:-1], self._inner), False)
            batch = shape[:-2] if rng.integers(2) else ()
            self._assign(second, (*batch, self._inner, shape[-1]), False)
        elif op == "conv":
            self._set(pattern.attribute, self._window)
            groups = self._window[3]
            self._assign(pattern.operands[0], (shape[0], 4, 6, 7), False)
            self._assign(pattern.operands[1], (shape[1], 4 // groups, 3, 2), False)
        elif op == "transpose":
            perm = self._set(pattern.attribute, tuple(int(axis) for axis in rng.permutation(len(shape))))
            self._assign(pattern.operands[0], tuple(shape[perm.index(axis)] for axis in range(len(shape))), False)
        elif op == "reshape":
            self._set(pattern.attribute, shape)
            self._assign(pattern.operands[0], shape[::-1] if rng.integers(2) else (int(np.prod(shape)),), False)
        elif op == "slice":
            axis = int(rng.integers(len(shape)))
            axis, _, end = self._set(pattern.attribute, (axis, 1, 1 + shape[axis]))
            self._assign(pattern.operands[0], (*shape[:axis], end + 2, *shape[axis + 1 :]), False)
        elif op == "concat":
            axis = self._set(pattern.attribute, int(rng.integers(len(shape))))
            for operand in pattern.operands:
                self._assign(operand, shape, False)
        else:
            for operand in pattern.operands:
                self._assign(operand, shape, len(pattern.operands) > 1)

    def _axes(self) -> tuple[int, ...]:
        count = int(self.rng.integers(1, len(self._base) + 1))
        return tuple(sorted(int(axis) for axis in self.rng.permutation(len(self._base))[:count]))

    def _set(self, name: str, value: Any) -> Any:
        return self._attributes.setdefault(name, value)

    def _shape_of(self, name: str, shape: Shape, may_broadcast: bool) -> Shape:
        if name in "km":
            return ()
        conditions = (*self.rule.needs, *self.rule.assumes)
        if f"{name} is a row" in conditions:
            return shape[-1:]
        if f"{name} is a channel" in conditions:
            return (1, shape[1], 1, 1)
        if name in "rs":
            axes = self._attributes.get("axes") or self._set("axes", self._axes())
            shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(self._base))
        if may_broadcast and self.rng.integers(3) == 0:
            shape = tuple(1 if self.rng.integers(2) else extent for extent in shape)
            shape = shape[int(self.rng.integers(len(shape) + 1)) :]
        return shape

    def _build(self, pattern: Pattern) -> Term:
        if pattern.variable:
            return self._variable(pattern.variable)
        if pattern.value is not None:
            return self.terms.scalar(pattern.value)
        operands = [self._build(operand) for operand in pattern.operands]
        names = OPERATORS[pattern.op].attributes
        return self.terms.make(pattern.op, *operands, **{name: self._attributes[pattern.attribute] for name in names})

    def _variable(self, name: str) -> Term:
        shape = self._shapes[name]
        conditions = [c[1:] for c in (*self.rule.needs, *self.rule.assumes) if c[0] == name]
        lower, upper = -2.0, 2.0
        if any(condition in (">0", ">=0", "!=0") for condition in conditions):
            lower = 0.5
        if "<0" in conditions:
            upper = -0.5
        if name in "km":
            if name not in self.values:
                number = self.rng.uniform(lower, upper) or 1.0
                if f"{name} is moderate" in conditions_of(self.rule):
                    number = 1 + abs(number)
                elif self.numbers:
                    number *= 10.0 ** self.rng.uniform(-self.numbers, self.numbers)
                self.values[name] = np.asarray(float(abs(round(number)) + 1 if self.integers else number))
            return self.terms.scalar(float(self.values[name]))
        if name not in self.values:
            low, high = (-8, 9) if self.integers else (lower, upper)
            drawn = self.rng.integers(low, high, shape) if self.integers else self.rng.uniform(low, high, shape)
            self.values[name] = np.asarray(drawn)
        known = lower if lower > 0 else -np.inf
        make = self.terms.constant if name in "uvw" else self.terms.input
        return make(name, shape, known)
