"""Reads the layers that VTA can run off a Relax function: patterns of operators, whatever they are called.

Nothing keeps two variables of a Relax function from having the same name, and passes do leave such functions. So a
variable gets an identifier here, and all that follows goes by identifiers (:func:`identifiers`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.relax_rules import (
    FLATTENING,
    OTHERS,
    PRODUCTS,
    LayerRule,
    NotALayer,
    is_float,
    number_of,
    operator_of,
)
from tvm_ext.errors import InputError
from tvm_ext.relax_utils import constant, static_shape


@dataclass(frozen=True)
class Node:
    """A part of the model that runs as a whole: one binding, or all bindings of a layer.

    Attributes
    ----------
    name : str
        Identifier of its last variable.
    inputs : tuple of str
        Variables of other nodes, and parameters, that it reads.
    layer : Layer, optional
        What it is if VTA can run it.
    products, operations : float
        Multiply-adds, and other operations, of what is no layer.
    """

    name: str
    inputs: tuple[str, ...]
    layer: Layer | None = None
    products: float = 0.0
    operations: float = 0.0


@dataclass(frozen=True)
class ModelGraph:
    """A function as nodes.

    Attributes
    ----------
    parameters : tuple of str
    nodes : tuple of Node
        In an order in which they can run.
    outputs : tuple of str
        Variables that leave the function.
    refused : mapping
        Variables of convolutions and matrix products that are no layers, and why.
    variables : mapping
        Identifier to variable, of all of the function's.
    """

    parameters: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    refused: Mapping[str, str]
    variables: Mapping[str, relax.Var]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers that VTA can run."""
        return tuple(node.layer for node in self.nodes if node.layer is not None)


def bindings_of(function: relax.Function) -> list[relax.VarBinding]:
    """Return the bindings of a function that is one dataflow block; of any other none."""
    body = function.body
    if not isinstance(body, relax.SeqExpr) or len(body.blocks) != 1:
        return []
    block = body.blocks[0]
    bindings = list(block.bindings)
    plain = isinstance(block, relax.DataflowBlock) and all(isinstance(b, relax.VarBinding) for b in bindings)
    return bindings if plain else []


def identifiers(function: relax.Function) -> dict[relax.Var, str]:
    """Return an identifier for each variable of a function: its name, made different from those before it.

    It has letters, digits and underscores only, so that names made of an identifier and other words differ from
    all identifiers. The same function always gives the same ones.
    """
    found: dict[relax.Var, str] = {}
    used: set[str] = set()
    counts: Counter[str] = Counter()
    for variable in [*function.params, *(binding.var for binding in bindings_of(function))]:
        base = re.sub(r"\W", "_", variable.name) or "_"
        name = base
        while name in used:
            counts[base] += 1
            name = f"{base}_{counts[base]}"
        used.add(name)
        found[variable] = name
    return found


def read_graph(function: relax.Function, batch: int) -> ModelGraph:
    """Find the layers of a function.

    Parameters
    ----------
    function : relax.Function
        In inference form: batch norm folded, operands of operators that are constants written as constants.
    batch : int
        Rows of VTA's batch.

    Raises
    ------
    InputError
        If a parameter has a dimension that is open; the message names both.
    """
    for parameter in function.params:
        if static_shape(parameter) is None:
            extents = getattr(getattr(parameter.ty, "shape", None), "values", None) or ()
            shape = ", ".join(str(getattr(extent, "value", extent)) for extent in extents)
            raise InputError(
                f"input {parameter.name!r} has the shape [{shape}] with a dimension that is open; programs of VTA are "
                f"made for fixed shapes: give sizes with --input-shape {parameter.name}:1,... (input_shapes=), "
                "and leave --dynamic (dynamic=) out"
            )
    return _Reader(function, batch).read()


class _Reader:
    """Walks over the bindings once and makes a layer of each anchor and what follows it."""

    def __init__(self, function: relax.Function, batch: int) -> None:
        self.function, self.batch = function, batch
        self.bindings = bindings_of(function)
        self.identifiers = identifiers(function)
        self.calls = {binding.var: binding.value for binding in self.bindings}
        self.position = {binding.var: at for at, binding in enumerate(self.bindings)}
        self.uses: dict[Any, list[Any]] = {}
        self.leaving = Counter(_variables(function.body.body) if self.bindings else [])
        for binding in self.bindings:
            for operand in _variables(binding.value):
                self.uses.setdefault(operand, []).append(binding.var)
        self.claimed: set[Any] = set()

    def read(self) -> ModelGraph:
        found: list[tuple[int, Layer]] = []
        refused: dict[str, str] = {}
        for kinds in (PRODUCTS, OTHERS):  # a sum belongs to the product before it, if there is one
            for binding in self.bindings:
                rule = kinds.get(operator_of(binding.value))
                if rule is None or binding.var in self.claimed:
                    continue
                try:
                    layer, last = self._layer(binding.var, rule)
                except NotALayer as reason:
                    if kinds is PRODUCTS:
                        refused[self.name(binding.var)] = f"{operator_of(binding.value)}: {reason}"
                    continue
                found.append((self.position[last], layer))
        found.sort(key=lambda pair: pair[0])
        return ModelGraph(
            tuple(map(self.name, self.function.params)),
            self._nodes(found),
            tuple(map(self.name, self.leaving)),
            refused,
            {name: variable for variable, name in self.identifiers.items()},
        )

    def name(self, variable: relax.Var) -> str:
        """Return the identifier of a variable."""
        return self.identifiers[variable]

    def _nodes(self, found: list[tuple[int, Layer]]) -> tuple[Node, ...]:
        covered = {name for _, layer in found for name in layer.covers}
        layers = {layer.name: layer for _, layer in found}
        nodes = []
        for binding in self.bindings:
            name = self.name(binding.var)
            if name in layers:
                nodes.append(Node(name, layers[name].inputs, layers[name]))
            elif name not in covered:
                inputs = tuple(map(self.name, _variables(binding.value)))
                nodes.append(Node(name, inputs, None, *_work(binding.value)))
        return tuple(nodes)

    def _layer(self, anchor: Any, rule: LayerRule) -> tuple[Layer, Any]:
        """Read the operator of ``anchor`` and what can be done with its sums before they are stored."""
        layer, covers = rule(self, anchor)
        current = anchor
        while (following := self._only_use(current)) is not None:
            extended = self._extended(layer, current, following)
            if extended is None:
                break
            layer, current = extended, following
            covers.append(following)
        self.claimed.update(covers)
        return replace(layer, name=self.name(current), covers=tuple(map(self.name, covers))), current

    def _only_use(self, variable: Any) -> Any | None:
        uses = self.uses.get(variable, [])
        if len(uses) != 1 or self.leaving[variable] or uses[0] in self.claimed:
            return None
        return uses[0]

    def _extended(self, layer: Layer, current: Any, following: Any) -> Layer | None:
        call = self.calls[following]
        operator = operator_of(call)
        bounds = _bounds_of(call)
        if bounds is not None:  # of bounds one after the other the later ones bound the earlier
            low, high = (float(np.clip(bound, *bounds)) for bound in (layer.low, layer.high))
            return replace(layer, low=low, high=high)
        if np.isfinite(layer.low) or np.isfinite(layer.high):
            return None
        if operator not in ("relax.add", "relax.multiply") or layer.weights is None or layer.bias is None:
            return None
        other = call.args[1] if call.args[0].same_as(current) else call.args[0]
        values = constant(other)
        if values is not None:
            each = self.per_channel(values, following, len(layer.bias))
            if each is None:
                return None
            if operator == "relax.add":
                return replace(layer, bias=layer.bias + each)
            if layer.residual is not None or layer.operator in ("average", "add"):
                return None  # of these all weights are equal
            return replace(layer, weights=layer.weights * each[:, None, None, None], bias=layer.bias * each)
        if operator == "relax.multiply":
            return None
        same = isinstance(other, relax.Var) and static_shape(other) == static_shape(current)
        if not same or layer.residual is not None or not is_float(other) or other.same_as(current):
            return None
        return replace(layer, residual=self.name(other))

    def per_channel(self, values: NDArray, variable: Any, channels: int) -> NDArray[np.float32] | None:
        """Return a constant operand as one finite value a channel, None if it is something else."""
        shape = static_shape(variable)
        if shape is None or values.ndim > len(shape) or not np.isfinite(values).all():
            return None
        axis = 1 if len(shape) == 4 else len(shape) - 1
        extents = (1,) * (len(shape) - values.ndim) + values.shape
        if any(extent != 1 for at, extent in enumerate(extents) if at != axis):
            return None
        return np.broadcast_to(values.reshape(-1), (channels,)).astype(np.float32)

    def shape(self, expr: Any) -> tuple[int, ...]:
        """Return a tensor's shape, which must be known, of float32 and not empty."""
        if not isinstance(expr, relax.Var):
            raise NotALayer("an operand is not a tensor that is computed")
        shape = static_shape(expr)
        if shape is None:
            raise NotALayer(f"the shape of {getattr(expr, 'name', 'an operand')} is not known")
        if not is_float(expr):
            raise NotALayer(f"dtype {expr.ty.dtype}; VTA takes layers of float32, quantised by this compiler")
        if 0 in shape:
            raise NotALayer(f"{getattr(expr, 'name', 'an operand')} is empty")
        return shape

    def through_reshape(self, expr: Any) -> Any:
        """Return what a flattened tensor was before."""
        call = self.calls.get(expr) if isinstance(expr, relax.Var) else None
        while operator_of(call) in FLATTENING:
            expr = cast(Any, call).args[0]
            call = self.calls.get(expr) if isinstance(expr, relax.Var) else None
        return expr


def _bounds_of(call: Any) -> tuple[float, float] | None:
    """Return what a ReLU or a clip bounds values to, None for anything else."""
    if operator_of(call) == "relax.nn.relu":
        return 0.0, np.inf
    if operator_of(call) != "relax.clip":
        return None
    low, high = (number_of(argument) for argument in call.args[1:3])
    return None if low is None or high is None or low > high else (low, high)


# Operators that only say anew what a tensor's shape is.
_FREE = frozenset(["relax.reshape", "relax.flatten", "relax.nn.batch_flatten", "relax.squeeze", "relax.expand_dims"])


def _work(value: Any) -> tuple[float, float]:
    """Count the multiply-adds of a product, and the values that another operator reads or gives, whichever is more."""
    operator, shape = operator_of(value), static_shape(value) or ()
    if not operator or operator in _FREE:
        return 0.0, 0.0
    results = float(np.prod(shape))
    operands = [static_shape(argument) or () for argument in value.args if hasattr(argument, "ty")]
    if "conv" in operator and len(operands) > 1:
        weights, data = float(np.prod(operands[1])), float(np.prod(operands[0]))
        if "transpose" in operator:
            return data * weights / max(operands[1][0], 1), 0.0
        return results * weights / max(operands[1][0], 1), 0.0
    if operator == "relax.matmul" and operands[0]:
        return results * operands[0][-1], 0.0
    return 0.0, max(results, *(float(np.prod(shape)) for shape in operands), 0.0)


def _variables(expr: Any) -> list[Any]:
    """Return the variables that an expression reads, each once."""
    found: dict[Any, None] = {}
    relax.analysis.post_order_visit(expr, lambda node: found.setdefault(node) if isinstance(node, relax.Var) else None)
    return list(found)
