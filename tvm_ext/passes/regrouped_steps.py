"""A step between two reshapes that undo each other is done without them, with its other operand reshaped.

before: ``y = reshape(add(reshape(x, (2, 64, 3, 49, 49)), mask), (128, 3, 49, 49))`` with ``mask: [1, 64, 1, 49, 49]``
after:  ``y = add(x, reshape(broadcast_to(mask, (2, 64, 1, 49, 49)), (128, 1, 49, 49)))``

Attention in shifted windows (Swin) takes windows and images apart for its mask, and joins them again for the softmax. A
kernel of attention has no place for a reshape between its two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.view_mutator import ViewMutator, view_pass
from tvm_ext.relax_utils import open_shape, same_extents
from tvm_ext.schedules.compute.attention import ELEMENTWISE

Extents = Sequence[Any]


def regrouped_steps() -> tvm.transform.Pass:
    """Make the pass."""
    return view_pass("tvm_ext.RegroupedSteps", _RegroupedSteps)


@mutator
class _RegroupedSteps(ViewMutator):
    def other(self, call: relax.Call, _name: str) -> relax.Expr:
        """Leave what is no reshape as it is."""
        return call

    def reshape(self, call: relax.Call) -> relax.Expr:
        """Do the step before a reshape in the shape behind it, if an operand has been reshaped from that."""
        made = super().reshape(call)
        if not calls(made, "relax.reshape") or not isinstance(made.args[0], relax.DataflowVar):
            return made
        step, wanted = self.value(made.args[0]), open_shape(call)
        if not isinstance(step, relax.Call) or getattr(step.op, "name", "") not in ELEMENTWISE or wanted is None:
            return made
        groups = _groups(open_shape(step) or (), wanted)
        if groups is None:
            return made
        before = [self._before(argument, wanted) for argument in step.args]
        if all(found is None for found in before):
            return made
        arguments = [
            self._regrouped(argument, groups) if found is None else found
            for argument, found in zip(step.args, before, strict=True)
        ]
        return made if None in arguments else relax.Call(step.op, arguments, step.attrs)

    def _before(self, argument: relax.Expr, wanted: Extents) -> relax.Expr | None:
        """Give the tensor of the wanted shape that an operand is a reshape of."""
        source = self.source(argument, "relax.reshape")
        return source if source is not None and same_extents(open_shape(source) or (), wanted) else None

    def _regrouped(self, argument: relax.Expr, groups: Sequence[Extents]) -> relax.Expr | None:
        """Reshape an operand so that it is broadcast as it was; None if it would have to be of the whole shape."""
        given = open_shape(argument)
        if given is None:
            return None
        if not given:
            return argument
        rest = [1] * (sum(map(len, groups)) - len(given)) + list(given)
        spread: list[Any] = []
        shape: list[Any] = []
        for group in groups:
            part, rest = rest[: len(group)], rest[len(group) :]
            extents = part if all(_is_one(extent) for extent in part) else list(group)
            spread += extents
            shape.append(reduce(mul, extents, 1))
        whole = [extent for group in groups for extent in group]
        if not same_extents(spread, [1] * (len(spread) - len(given)) + list(given)):
            if same_extents(spread, whole):
                return None
            argument = self.builder_.emit(relax.op.broadcast_to(argument, relax.ShapeExpr(spread)))
        return self.builder_.emit(relax.op.reshape(argument, relax.ShapeExpr(shape)))


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def _groups(fine: Extents, coarse: Extents) -> list[list[Any]] | None:
    """Find the axes of a shape that are joined to each axis of another one; None if they are not simply joined."""
    rest, groups = list(fine), list[list[Any]]()
    for extent in coarse:
        if not rest:
            return None
        group = [rest.pop(0)]
        while rest and not same_extents([reduce(mul, group, 1)], [extent]):
            group.append(rest.pop(0))
        groups.append(group)
    if not groups or not same_extents([reduce(mul, group, 1) for group in groups], coarse):
        return None
    groups[-1] += rest
    return groups if all(map(_is_one, rest)) else None
