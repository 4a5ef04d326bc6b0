"""Counts of arithmetic: multiplications and additions counted separately, so one multiply-accumulate is two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_ext.graph.symbolic import Dim, maximum, substitute


@dataclass(frozen=True)
class Flops:
    """How many scalar operations a computation does on the data of tensors.

    Address arithmetic, comparisons that only choose between values (padding tests, ``where``), conversions and copies
    are not counted. A transcendental function (``exp``, ``tanh``, ``sqrt``, ...) is one operation.

    Attributes
    ----------
    multiply : int or Symbolic
        Multiplications.
    add : int or Symbolic
        Additions and subtractions.
    other : int or Symbolic
        Everything else: divisions, minima and maxima, comparisons whose result is stored, transcendental functions.
    """

    multiply: Dim = 0
    add: Dim = 0
    other: Dim = 0

    @property
    def total(self) -> Dim:
        """All operations together: what papers print as FLOPs."""
        return self.multiply + self.add + self.other

    def __add__(self, rest: Flops) -> Flops:
        return Flops(self.multiply + rest.multiply, self.add + rest.add, self.other + rest.other)

    def times(self, count: Dim) -> Flops:
        """Count the same computation done ``count`` times."""
        return Flops(self.multiply * count, self.add * count, self.other * count)

    def substitute(self, values: Mapping[str, Dim]) -> Flops:
        """Replace symbols by other sizes."""
        return Flops(substitute(self.multiply, values), substitute(self.add, values), substitute(self.other, values))


def dearest(choices: list[Flops]) -> Flops:
    """Find the cost of the branch that costs most; an upper bound where sizes are symbolic."""
    choices = [choice for choice in choices if choice != Flops()]
    if not choices:
        return Flops()
    totals = [choice.total for choice in choices]
    if all(isinstance(total, int) for total in totals):
        return max(choices, key=lambda choice: int(str(choice.total)))
    bound = choices[0]
    for choice in choices[1:]:
        bound = Flops(
            maximum(bound.multiply, choice.multiply), maximum(bound.add, choice.add), maximum(bound.other, choice.other)
        )
    return bound
