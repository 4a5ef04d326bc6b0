"""Writes what rank and dimension propagation found about an ONNX graph into the Relax module that is made of it.

An operator whose converter leaves a shape open, or invents a variable for an extent that is an expression of those of
the inputs, gets ``match_cast`` to the shape that was found, which compares the two at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import helper
from tvm import relax, tirx

from tvm_ext.conditions import names_of
from tvm_ext.dynamic import OpenDimension
from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.operator_graph import operator_graph
from tvm_ext.frontend.onnx.ops.extents import can_prove, normal, taken_as
from tvm_ext.graph.symbolic import Dim, Symbolic
from tvm_ext.shapes.lattice import Fact, is_dim
from tvm_ext.shapes.operand_extents import Relation, relations
from tvm_ext.shapes.operator_graph import bounds
from tvm_ext.shapes.propagate import Propagation, propagate
from tvm_ext.shapes.subgraphs import shares
from tvm_ext.shapes.transfer_shapes import BROADCAST

_WANT_EQUAL = frozenset([*BROADCAST, "Concat", "PRelu"])
"""Operators whose operands have equal extents, 1 apart."""

_PRODUCTS = frozenset(["MatMul", "MatMulInteger"])
"""Operators whose operands have equal extents in front of the last two axes, 1 apart."""

_FUNCTIONS = {"floordiv": tirx.floordiv, "floormod": tirx.floormod, "min": tirx.min, "max": tirx.max}


class KnownExtents:
    """What is known of the tensors of one model with open dimensions.

    Parameters
    ----------
    skeleton : onnx.ModelProto
        The prepared model; its open dimensions have names that are identifiers.
    constants : mapping from str to numpy.ndarray or tuple of int
        Values of small constants and shapes of the others, which the skeleton lacks.
    limits : mapping from str to (int, int or None)
        Ranges of the open dimensions.
    variables : mapping from str to tvm.tirx.Var
        Of the open dimensions; those of extents that only a run tells are added.

    Attributes
    ----------
    found : Propagation
    """

    def __init__(
        self,
        skeleton: onnx.ModelProto,
        constants: Mapping[str, np.ndarray | tuple[int, ...]],
        limits: Mapping[str, tuple[int, int | None]],
        variables: dict[str, Any],
    ) -> None:
        asked = {name: OpenDimension(name, low, high) for name, (low, high) in limits.items()}
        self.found: Propagation = propagate(operator_graph(skeleton, asked, constants))
        self._variables = variables
        self._named = sorted(variables)
        self._needed: list[str] = []

    @property
    def conditions(self) -> tuple[str, ...]:
        """What has to hold of the open dimensions for the model to run, as far as it is said in them alone."""
        known = set(self._variables)
        kept = []
        for condition in dict.fromkeys((*self.found.conditions, *self._needed)):
            try:
                names = names_of(condition)
            except ValueError:  # with a minimum in it
                continue
            if names and names <= known:
                kept.append(condition)
        return tuple(kept)

    def branch_of(self, node: onnx.NodeProto) -> str | None:
        """Say which branch of an ``If`` is left, where the sizes decide, or the other one cannot run; None: both."""
        return _taken(self.found, node.output[0])

    def note(self) -> str:
        """Say in a sentence how much is known."""
        found = shares(self.found)
        known = sum(part.knowledge != "not constant" for part in found.parts)
        classes = ", ".join(f"{count} {name}" for name, count in sorted(found.dynamism.items()))
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(found.kinds.items()))
        return (
            f"shapes: {known} of {len(found.parts)} parts of the graph are known up to {', '.join(self._named)}, with "
            f"{100 * found.known_operators:.0f} % of the operators ({classes}; dimensions: {kinds})"
        )

    def refused_ones(self) -> tuple[str, ...]:
        """Say in a sentence each which sizes a ``Squeeze`` without axes cannot take."""
        return tuple(
            f"{label} names no axes, so that a dimension of 1 would be left out: sizes with {condition[:-5]} == 1 are "
            "refused"
            for condition, label in self.found.conditions.items()
            if condition.endswith(" != 1") and condition in self.conditions
        )

    def needs_at_least(self, name: str, axis: int, least: int) -> None:
        """Note that an extent of a tensor must not be less than a number, where that is not plain."""
        dims = self.found.facts.get(name, Fact()).dims
        if axis < len(dims) and isinstance(dims[axis], Symbolic) and not can_prove(self._extent(dims[axis]) >= least):
            self._needed.append(f"{dims[axis]} >= {least}")

    def aligned(
        self, bb: relax.BlockBuilder, node: onnx.NodeProto, inputs: list[Any], always_runs: bool = True
    ) -> list[Any]:
        """Give the operands of an operator that wants equal extents the same expressions for them.

        Where two expressions are not proved to be equal, an extent that is not the number 1 is taken to be that of the
        result, or of the other operand (:mod:`tvm_ext.shapes.operand_extents`): each run compares the two, beforehand
        where that can be said of the inputs, and the node runs whatever the values.
        """
        if domain_of(node) == "" and node.op_type in _WANT_EQUAL | _PRODUCTS:
            inputs = self._broadcast(bb, node, inputs, always_runs)
        return self._related(bb, node, inputs)

    def _broadcast(
        self, bb: relax.BlockBuilder, node: onnx.NodeProto, inputs: list[Any], always_runs: bool
    ) -> list[Any]:
        behind = -2 if node.op_type in _PRODUCTS else 0
        result = self.found.facts.get(node.output[0], Fact()).dims
        joined = attribute_of(node, "axis", 0) % len(result) if node.op_type == "Concat" and result else None
        changed = list(inputs)
        for position, value in enumerate(inputs):
            dims = list(getattr(getattr(value, "ty", None), "shape", None) or ())
            if not isinstance(getattr(value, "ty", None), relax.TensorType) or not dims or len(dims) > len(result):
                continue
            target = list(dims)
            for axis in range(-len(dims), behind):
                wanted = self._extent(result[axis])
                if axis + len(result) == joined or wanted is None or is_one(dims[axis]):
                    continue
                if not can_prove(dims[axis] == wanted):
                    target[axis] = wanted
                    own = self.found.facts.get(node.input[position], Fact()).dims
                    if always_runs and len(own) == len(dims) and is_dim(own[axis]):
                        self._needed.append(f"{own[axis]} == {result[axis]}")
            if any(not new.same_as(old) for new, old in zip(target, dims, strict=True)):
                changed[position] = taken_as(bb, value, target)
        return changed

    def _related(self, bb: relax.BlockBuilder, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        known = [_extents(value) for value in inputs]
        shapes = [shape or [] for shape in known]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        ranks = [None if shape is None else len(shape) for shape in known]
        changed: set[int] = set()
        for item in relations(node.op_type, domain_of(node), attributes, ranks):
            own, other = _place(item, shapes)
            if (item.or_one and is_one(own)) or (isinstance(own, tirx.IntImm) and isinstance(other, tirx.IntImm)):
                continue
            if can_prove(own <= other if item.at_most else own == other) or (item.at_most and self._fits(node, item)):
                continue
            if item.at_most:
                shapes[item.position][item.axis] = normal(tirx.min(own, other))
            elif isinstance(own, tirx.IntImm):
                shapes[item.other][item.other_axis] = own
            else:
                shapes[item.position][item.axis] = other
            changed.add(item.other if isinstance(own, tirx.IntImm) and not item.at_most else item.position)
        return [
            taken_as(bb, value, shapes[position]) if position in changed else value
            for position, value in enumerate(inputs)
        ]

    def _fits(self, node: onnx.NodeProto, item: Relation) -> bool:
        """Whether an extent is known not to exceed another one, or each run looks at that beforehand."""
        own, other = _place(item, [self.found.facts.get(name, Fact()).dims for name in node.input])
        if not is_dim(own) or not is_dim(other):
            return False
        return bounds(other - own, self.found.graph.limits)[0] >= 0 or f"{own} <= {other}" in self.conditions

    def settled(self, bb: relax.BlockBuilder, result: Any, name: str) -> Any:
        """Give a result the shape that is known of it, where its type says less."""
        fact = self.found.facts.get(name, Fact())
        found = getattr(result, "ty", None)
        if not isinstance(found, relax.TensorType) or not isinstance(fact.shape, tuple) or not found.dtype:
            return result
        if found.ndim not in (-1, len(fact.shape)):
            return result  # a fault of the converter, which the caller looks for
        extents = [self._extent(dim) for dim in fact.shape]
        if any(extent is None for extent in extents):
            return result
        if found.shape is not None and not self._says_more(extents, list(found.shape)):
            return result
        if found.shape is not None:
            return taken_as(bb, result, extents)
        if any(isinstance(extent, tirx.Var) for extent in extents):  # see taken_as
            made = [tirx.Var(f"extent_{axis}", "int64") for axis in range(len(extents))]
            return taken_as(bb, bb.match_cast(bb.emit(result), relax.TensorType(made, str(found.dtype))), extents)
        return bb.match_cast(bb.emit(result), relax.TensorType(extents, str(found.dtype)))

    def _says_more(self, extents: list[Any], found: list[Any]) -> bool:
        """Whether extents are said by the inputs' that the type has variables of its own for."""
        own = set(self._variables.values())
        for extent, known in zip(extents, found, strict=True):
            if not _variables(known) <= own and not can_prove(extent == known):
                return True
            if isinstance(extent, tirx.IntImm) and not isinstance(known, tirx.IntImm):
                return True
        return False

    def _extent(self, dim: Any) -> Any:
        """Make an expression of a size; None if a symbol in it is no open dimension of the inputs."""
        if not is_dim(dim):
            return None
        try:
            return normal(self._expression(dim))
        except KeyError:
            return None

    def _expression(self, size: Dim) -> Any:
        if not isinstance(size, Symbolic):
            return tirx.IntImm("int64", int(size))
        total: Any = None
        for monomial, coefficient in size.terms:
            term: Any = tirx.IntImm("int64", coefficient)
            for atom in monomial:
                if isinstance(atom, str):
                    factor = self._variables[atom]
                else:
                    factor = _FUNCTIONS[atom.function](self._expression(atom.left), self._expression(atom.right))
                term = term * factor
            total = term if total is None else total + term
        return total


def _extents(value: Any) -> list[Any] | None:
    """Extents of a tensor; None of what is none, or where not even the rank is known."""
    found = getattr(value, "ty", None)
    return list(found.shape) if isinstance(found, relax.TensorType) and found.shape is not None else None


def _place(item: Relation, shapes: Sequence[Any]) -> tuple[Any, Any]:
    """Give the two extents that a relation is about."""
    return shapes[item.position][item.axis], shapes[item.other][item.other_axis]


def is_one(extent: Any) -> bool:
    """Whether an extent is the number 1."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def attribute_of(node: onnx.NodeProto, name: str, default: int) -> int:
    """Integer attribute of a node."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _variables(extent: Any) -> set[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(extent, (tvm.ir.Var, found.append))
    return set(found)


def _taken(found: Propagation, name: str) -> str | None:
    inside = (_taken(body, name) for body in found.bodies)
    return found.taken.get(name) or next((branch for branch in inside if branch), None)
