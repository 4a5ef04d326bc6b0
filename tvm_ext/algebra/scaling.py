"""Factors that vanish when the constants before or after them take them up, once, when the function is compiled.

A number that scales the scores of attention, or a row of weights behind a normalisation, costs an operator each time
the function runs. Products, convolutions, sums and movements of data are linear, and constants can take it up:

- *after* it, where all that reads the scaled tensor is products and convolutions with constants, or views of it that
  these read: ``h = n * v; g = matmul(h, w); u = matmul(h, x)`` becomes ``g = matmul(n, w'); u = matmul(n, x')``;
- *before* it, where all that it scales was made by linear operators and each way back ends at a constant:
  ``q = matmul(x, w) * cos + turned(matmul(x, w)) * sin; s = matmul(q, k) / 8`` becomes the same with ``w' = w / 8``.

No step alone gains, as a factor that moves past one reader is still there for the other, so this is found as a whole.
Factors go back only where they lie between 2**-10 and 1: values before them then get no larger, and none that is as
large as 2**-116 leaves the normal numbers (see :mod:`tvm_ext.algebra.rule` for what ``strict`` holds).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tvm_ext.algebra.rule import Mode
from tvm_ext.graph.dataflow import DataflowGraph, Node

_FLOATS = ("float32", "float64")
_LEAST = 2.0**-10
_MOST_TENSORS, _MOST_WAYS = 48, 16
_SMALL = 16384  # elements of a constant that may be kept twice
_PRODUCTS = ("matmul", "nn.conv2d")
_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten", "permute_dims", "strided_slice")
_LINEAR = (*_VIEWS, "negative", "mean", "sum", "nn.avg_pool2d")
_MONOTONE = ("nn.relu", "nn.leakyrelu", "nn.max_pool2d", "max", "min")  # for factors that are positive
_SUMS, _EXTREMES = ("add", "subtract", "concat"), ("maximum", "minimum")


@dataclass(frozen=True)
class Edit:
    """A constant that takes up a factor.

    Attributes
    ----------
    node, position : int
        Where it is read.
    axis : int or None
        Its axis along which the factors lie, counted from the last one; None for a number.
    """

    node: int
    position: int
    axis: int | None = None


@dataclass(frozen=True)
class Scaling:
    """One factor that vanishes.

    Attributes
    ----------
    node : int
        A product or quotient of a tensor and a constant; it becomes the tensor.
    factor : int
        The position of the constant among its operands.
    edits : tuple of Edit
        The constants that take it up.
    """

    node: int
    factor: int
    edits: tuple[Edit, ...]


def plan_scaling(
    graph: DataflowGraph, numbers: Mapping[str, float], mode: Mode = "strict", left_out: Collection[int] = ()
) -> tuple[Scaling, ...]:
    """Find the factors that vanish, in the order of the function.

    Parameters
    ----------
    graph : DataflowGraph
        A function of high-level operators.
    numbers : mapping of str to float
        Value of each constant of one element.
    mode : str
        "fast": also numbers that reach a constant through a product of two tensors, which may overflow without them.
    left_out : collection of int
        Nodes whose factors stay.
    """
    search = _Search(graph, numbers, mode)
    found = []
    for node in graph.nodes:
        edits = () if node.index in left_out else search.edits_for(node)
        if edits:
            found.append(Scaling(node.index, search.factor_of(node), edits))
            search.removed.add(node.index)
    return tuple(found)


@dataclass(frozen=True)
class _Way:
    """Tensors that are scaled, and constants that are for it."""

    scaled: frozenset[str] = frozenset()
    edits: tuple[Edit, ...] = ()


class _Search:
    def __init__(self, graph: DataflowGraph, numbers: Mapping[str, float], mode: Mode) -> None:
        self._graph = graph
        self._numbers = numbers
        self._mode = mode
        self.removed: set[int] = set()

    def factor_of(self, node: Node) -> int:
        """Position of the constant that a node multiplies by or divides by; -1 where it does not."""
        if node.op not in ("multiply", "divide") or len(node.operands) != 2:
            return -1
        positions = (1,) if node.op == "divide" else (1, 0)
        for position in positions:
            data = node.operands[1 - position]
            if self._is_constant(node.operands[position]) and not self._is_constant(data):
                return position if self._shape(data) == self._shape(node.outputs[0]) is not None else -1
        return -1

    def edits_for(self, node: Node) -> tuple[Edit, ...]:
        """Find constants that can take up the factor of a node; none where it has no factor, or not all can."""
        position = self.factor_of(node)
        if position < 0 or node.has_effect:
            return ()
        if self._graph.tensors[node.outputs[0]].dtype not in _FLOATS:
            return ()
        value = self._numbers.get(node.operands[position])
        if value is not None:
            if value == 0 or value != value:
                return ()
            return self._after(node.outputs[0], None) or self._before(node, 1 / value if node.op == "divide" else value)
        axis = self._axis(node.operands[position], node.outputs[0])
        return self._after(node.outputs[0], axis) if axis else ()

    def _axis(self, constant: str, scaled: str) -> int | None:
        """Find the axis, counted from the last one, along which a constant varies; None where it is not one alone."""
        shape, whole = self._shape(constant) or (), self._shape(scaled) or ()
        axes = [place - len(shape) for place, extent in enumerate(shape) if extent != 1]
        return axes[0] if len(axes) == 1 and shape[axes[0]] == whole[axes[0]] else None

    def _after(self, name: str, axis: int | None) -> tuple[Edit, ...]:
        """Find the constants behind a tensor, all of whose readers are linear."""
        edits: list[Edit] = []
        scaled, pending = {name}, [name]
        while pending:
            data = pending.pop()
            if data in self._graph.outputs or not self._graph.consumers[data]:
                return ()
            for index in self._graph.consumers[data]:
                reader = self._graph.nodes[index]
                edit = self._taken_up(reader, data, axis)
                if edit is not None:
                    edits.append(edit)
                elif (index in self.removed or self._keeps(reader, data, axis)) and reader.outputs[0] not in scaled:
                    pending.append(reader.outputs[0])
                    scaled.add(reader.outputs[0])
                else:
                    return ()  # or it is scaled twice
        return tuple(edits)

    def _taken_up(self, reader: Node, scaled: str, axis: int | None) -> Edit | None:
        """Tell which constant of a reader takes up a factor along an axis of what it reads, or a number."""
        if reader.op not in _PRODUCTS or reader.operands[0] != scaled or not self._may_change(reader, 1):
            return None
        weight = self._shape(reader.operands[1]) or ()
        if axis is None:
            return Edit(reader.index, 1)
        if reader.op == "matmul":
            return Edit(reader.index, 1, -2) if axis == -1 and len(weight) >= 2 else None
        window = reader.attributes
        plain = window.get("data_layout") == "NCHW" and window.get("kernel_layout") == "OIHW"
        return Edit(reader.index, 1, -3) if plain and axis == -3 and window.get("groups") == 1 else None

    def _keeps(self, reader: Node, scaled: str, axis: int | None) -> bool:
        """Whether the factor of what is read is one of the result, along the same axis."""
        before, after = self._shape(scaled), self._shape(reader.outputs[0])
        if axis is not None:
            is_kept = reader.op == "reshape" and axis == -1
            return is_kept and before is not None and after is not None and before[-1:] == after[-1:]
        if reader.op == "multiply" and self._mode == "fast":
            return len(set(reader.operands)) == 2  # no square
        return reader.op in _VIEWS or (reader.op == "mean" and self._mode == "fast")

    def _before(self, node: Node, factor: float) -> tuple[Edit, ...]:
        """Find the constants that a tensor is made of, all by linear operators, with all that is read in between."""
        if not _LEAST <= abs(factor) <= 1:
            return ()
        data = node.operands[1 - self.factor_of(node)]
        for count, way in enumerate(self._ways(data, _Way(), factor > 0)):
            if all(self._stays_within(name, way, node) and self._is_scaled_once(name, way) for name in way.scaled):
                return way.edits
            if count >= _MOST_WAYS:
                break
        return ()

    def _stays_within(self, name: str, way: _Way, last: Node) -> bool:
        """Whether all that reads a scaled tensor is scaled too."""
        readers = (self._graph.nodes[index] for index in self._graph.consumers[name])
        return all(reader is last or reader.outputs[0] in way.scaled for reader in readers)

    def _is_scaled_once(self, name: str, way: _Way) -> bool:
        """Whether a tensor is scaled by what scales its operands: each of a sum, the first or one of two factors."""
        node = self._graph.nodes[self._graph.producer[name]]
        scaled = [
            operand in way.scaled or Edit(node.index, position) in way.edits
            for position, operand in enumerate(node.operands)
        ]
        if node.index in self.removed:
            return scaled[1 - self.factor_of(node)]
        if node.op in _SUMS or node.op in _EXTREMES:
            return all(scaled)
        return scaled.count(True) == 1 and (scaled[0] or node.op == "multiply" or node.op in _PRODUCTS)

    def _ways(self, name: str, way: _Way, is_positive: bool) -> Iterator[_Way]:
        """Yield the ways to have a tensor scaled."""
        graph = self._graph
        if name in way.scaled:
            yield way
            return
        index = graph.producer.get(name)
        if index is None or name in graph.outputs or len(way.scaled) >= _MOST_TENSORS:
            return
        node = graph.nodes[index]
        if len(node.outputs) != 1 or node.has_effect or graph.tensors[name].dtype not in _FLOATS:
            return
        way = _Way(way.scaled | {name}, way.edits)
        if index in self.removed:
            yield from self._ways(node.operands[1 - self.factor_of(node)], way, is_positive)
        elif node.op in _LINEAR or node.op == "divide" or (node.op in _MONOTONE and is_positive):
            yield from self._operand(node, 0, way, is_positive)
        elif node.op in _SUMS or (node.op in _EXTREMES and is_positive):
            yield from self._all(node, 0, way, is_positive)
        elif node.op == "multiply" or node.op in _PRODUCTS:
            first, second = node.operands[:2]
            if first == second:
                return  # its square would be
            for position in sorted((0, 1), key=lambda place: not self._is_constant(node.operands[place])):
                yield from self._operand(node, position, way, is_positive)

    def _operand(self, node: Node, position: int, way: _Way, is_positive: bool) -> Iterator[_Way]:
        name = node.operands[position]
        if not self._is_constant(name):
            yield from self._ways(name, way, is_positive)
        elif self._may_change(node, position):
            yield _Way(way.scaled, (*way.edits, Edit(node.index, position)))

    def _all(self, node: Node, position: int, way: _Way, is_positive: bool) -> Iterator[_Way]:
        if position == len(node.operands):
            yield way
            return
        for found in self._operand(node, position, way, is_positive):
            yield from self._all(node, position + 1, found, is_positive)

    def _may_change(self, node: Node, position: int) -> bool:
        """Whether a constant may take up a factor here: it has no other reader, or is small enough to be kept twice."""
        name = node.operands[position]
        if not self._is_constant(name) or node.op == "concat" or self._graph.tensors[name].dtype not in _FLOATS:
            return False
        shape = self._shape(name)
        alone = self._graph.consumers[name] == (node.index,) and node.operands.count(name) == 1
        return shape is not None and (alone or prod(shape) <= _SMALL)

    def _is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant in place; one that a variable or a view stands for has no values to change."""
        return self._graph.tensors[name].kind == "constant" and name not in self._graph.producer

    def _shape(self, name: str) -> tuple[int, ...] | None:
        shape = self._graph.tensors[name].shape
        return shape if shape is not None and all(isinstance(extent, int) for extent in shape) else None  # type: ignore[return-value]
