"""Finds what lies between products with constant weights and can run group by group of its features.

That is the hidden features of a feed-forward block, and the heads of an attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.relax.feature_slices import sliced
from tvm_ext.memory.relax.sliced_convolutions import Range
from tvm_ext.relax_utils import static_shape

GROUPS = (2, 3, 4)
"""Numbers of groups that are tried; in 6, products of few features take MiniLM a fifth longer."""

SINGLE_PRECISION = ("float32", "float64")


@dataclass(frozen=True)
class Block:
    """A product with constant weights, and what is between it and the products that its features are made by.

    Attributes
    ----------
    sink : relax.Var
        The result of the product.
    result : relax.Var
        The sum that it ends in: of the product, a residual and constants, in which nothing else takes part.
    addends : tuple of relax.Expr
        What is added to the product: a residual first, then constants.
    inside : tuple of relax.Var
        All that is computed from there to the sum, in order.
    groups : tuple of int
        Numbers of groups that its features can be divided into.
    kind : tuple
        Equal for blocks of equal operators and shapes.
    """

    sink: Any
    result: Any
    addends: tuple[Any, ...]
    inside: tuple[Any, ...]
    groups: tuple[int, ...]
    kind: tuple[Any, ...]


class FunctionBlocks:
    """What the bindings of a function of one dataflow block say."""

    def __init__(self, func: relax.Function) -> None:
        (block,) = func.body.blocks
        self.bindings = list(block.bindings)
        self.values = {binding.var: binding.value for binding in self.bindings}
        self.places = {binding.var: place for place, binding in enumerate(self.bindings)}
        self.places |= dict.fromkeys(func.params, -1)
        self.users: dict[Any, list[Any]] = {}
        for binding in self.bindings:
            for variable in variables(binding.value):
                self.users.setdefault(variable, []).append(binding.var)

    def blocks(self, counts: Sequence[int] | None = None) -> list[Block]:
        """List what can run group by group, in one of these numbers of groups; :data:`GROUPS` unless given."""
        found = (self._block(binding.var, GROUPS if counts is None else counts) for binding in self.bindings)
        return [block for block in found if block is not None]

    def _block(self, sink: Any, counts: Sequence[int]) -> Block | None:
        value = self.values[sink]
        if not is_product(value) or str(value.ty.dtype) not in SINGLE_PRECISION:
            return None
        depth = (static_shape(value.args[1]) or (0,))[0]
        regions = {count: self._region(sink, depth, count) for count in counts if depth % count == 0}
        groups = tuple(count for count, region in regions.items() if region is not None)
        if not groups:
            return None
        chain, addends = self._sum(sink)
        inside = tuple(sorted({*(regions[groups[0]] or ()), *chain}, key=lambda variable: self.places[variable]))
        operators = tuple(getattr(getattr(self.values[variable], "op", None), "name", "") for variable in inside)
        kind = (static_shape(value), depth, groups, operators, len(addends))
        return Block(sink, chain[-1], addends, inside, groups, kind)

    def _region(self, sink: Any, depth: int, count: int) -> set[Any] | None:
        """Give the variables between; None where something else needs them, or they cannot be divided."""
        value = self.values[sink]
        axis = len(static_shape(value.args[0]) or ()) - 1
        taken: set[Any] = set()
        whole: set[Any] = set()
        for number in range(count):
            pending = [(value.args[0], Range(axis, number * depth // count, (number + 1) * depth // count))]
            known = set(pending)
            while pending:
                variable, wanted = pending.pop()
                if variable not in self.values or not isinstance(variable, relax.DataflowVar):
                    return None
                described = sliced(self.values[variable], wanted, self.values)
                if described is None:
                    return None
                taken.add(variable)
                if isinstance(self.values[variable], relax.TupleGetItem):
                    taken.add(self.values[variable].tuple_value)
                for operand, part in described.operands:
                    if not isinstance(operand, tvm.ir.Var):
                        continue
                    if part is None:
                        whole.add(operand)
                    elif (operand, part) not in known:
                        known.add((operand, part))
                        pending.append((operand, part))
        elsewhere = any(user not in taken and user != sink for variable in taken for user in self.users[variable])
        made_here = any(is_product(self.values[variable]) for variable in taken)
        return None if elsewhere or whole & taken or not made_here else taken

    def _sum(self, sink: Any) -> tuple[list[Any], tuple[Any, ...]]:
        """Follow a product through the sums it ends in, the last of them last; gives them, and what is added."""
        residual: list[Any] = []
        result, chain, constants = sink, [sink], []
        while isinstance(result, relax.DataflowVar) and len(self.users.get(result, ())) == 1:
            (user,) = self.users[result]
            value = self.values[user]
            if getattr(getattr(value, "op", None), "name", "") != "relax.add" or not isinstance(
                user, relax.DataflowVar
            ):
                break
            others = [item for item in value.args if item is not result and item != result]
            if len(others) != 1 or static_shape(user) != static_shape(sink):
                break
            (other,) = others
            if isinstance(other, tvm.ir.GenericConst):
                constants.append(other)
            elif (
                not residual
                and static_shape(other) == static_shape(sink)
                and self.places.get(other, len(self.places)) < self.places[sink]
            ):
                residual.append(other)
            else:
                break
            result = user
            chain.append(user)
        return chain, (*residual, *constants)


def variables(value: Any) -> list[Any]:
    """List the variables in an expression."""
    found: list[Any] = []
    relax.analysis.post_order_visit(
        value, lambda node: found.append(node) if isinstance(node, tvm.ir.Var) and node not in found else None
    )
    return found


def is_product(value: Any) -> bool:
    """Whether a value is a product with a constant matrix."""
    if getattr(getattr(value, "op", None), "name", "") != "relax.matmul":
        return False
    weight = value.args[1]
    return isinstance(weight, tvm.ir.GenericConst) and len(static_shape(weight) or ()) == 2
