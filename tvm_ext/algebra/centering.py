"""Means that vanish when the weights behind them are centred once, when the function is compiled.

Layer normalisation begins with ``x - mean(x)``. A mean is linear: that of a sum is the sum of the means, that of
``matmul(a, w) + b`` is what ``w`` and ``b`` give when their own means along the last axis are taken. So where ``x`` is
a sum of such products and of rows of tables, and where nothing but such differences reads it, all its constants can be
centred, ``x`` has mean zero, and ``x - mean(x)`` is ``x``. (Of the rules of :mod:`tvm_ext.algebra.rules` these are
``mean(a) + mean(b)`` and ``matmul(a, b) - matmul(a, c)``, read from right to left; no step alone gains, so it is found
as a whole.) In GPT-2 and other networks that normalise before a block this removes every mean of the residual stream.

before: ``x = take(t, i) + p; d = x - mean(x); ...; y = x + (matmul(h, w) + b); e = y - mean(y)``
after:  ``x = take(t', i) + p'; d = x; ...; y = x + (matmul(h, w') + b'); e = y`` with ``w' = w - mean(w)``, ...
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.graph.dataflow import DataflowGraph, Node


@dataclass(frozen=True)
class CenteringPlan:
    """What to change.

    Attributes
    ----------
    differences : tuple of int
        Nodes ``x - mean(x)`` that become ``x``.
    constants : tuple of (int, int)
        Node and operand position of each constant to centre along its last axis.
    """

    differences: tuple[int, ...]
    constants: tuple[tuple[int, int], ...]


def plan_centering(graph: DataflowGraph) -> CenteringPlan:
    """Find the differences that vanish, and the constants to centre for it.

    Parameters
    ----------
    graph : DataflowGraph
        A function of high-level operators.
    """
    search = _Search(graph)
    centred = search.largest_set()
    useful = search.behind_means(centred)
    differences = tuple(node.index for node in graph.nodes if search.is_difference(node) and node.operands[0] in useful)
    constants = tuple(
        (graph.producer[name], position)
        for name in sorted(useful, key=lambda name: graph.producer[name])
        for position in search.constant_operands(graph.nodes[graph.producer[name]])
    )
    return CenteringPlan(differences, constants)


class _Search:
    def __init__(self, graph: DataflowGraph) -> None:
        self._graph = graph

    def largest_set(self) -> set[str]:
        """Find the largest set of tensors that can all have mean zero: take away what cannot until all can."""
        found = {name for node in self._graph.nodes for name in node.outputs if self._width(name)}
        while True:
            kept = {name for name in found if self._is_made_of(name, found) and self._is_read_by(name, found)}
            if kept == found:
                return found
            found = kept

    def behind_means(self, centred: set[str]) -> set[str]:
        """Keep the tensors that are connected with one whose mean is taken."""
        graph = self._graph
        pending = [name for name in centred if any(self.is_difference(graph.nodes[i]) for i in graph.consumers[name])]
        useful = set(pending)
        while pending:
            name = pending.pop()
            near = [*graph.nodes[graph.producer[name]].operands]
            near += [output for reader in graph.consumers[name] for output in graph.nodes[reader].outputs]
            for other in near:
                if other in centred and other not in useful:
                    useful.add(other)
                    pending.append(other)
        return useful

    def is_difference(self, node: Node) -> bool:
        """Whether a node is ``x - mean(x)`` along the last axis."""
        if node.op != "subtract" or len(node.operands) != 2 or node.operands[1] not in self._graph.producer:
            return False
        return self._is_mean_of(self._graph.nodes[self._graph.producer[node.operands[1]]], node.operands[0])

    def constant_operands(self, node: Node) -> list[int]:
        """List the operands of a node that must be centred."""
        if node.op == "take":
            return [0]
        if node.op == "matmul":
            return [1]
        constant = [self._is_constant(name) for name in node.operands]
        return [position for position, known in enumerate(constant) if known] if node.op == "add" else []

    def _is_mean_of(self, node: Node, name: str) -> bool:
        rank = len(self._graph.tensors[name].shape or ())
        if node.op != "mean" or node.operands != (name,) or not node.attributes.get("keepdims") or not rank:
            return False
        return [axis % rank for axis in node.attributes.get("axis") or ()] == [rank - 1]

    def _width(self, name: str) -> int:
        """Extent of the last axis; 0 where it is not known, or the tensor is no float tensor."""
        tensor = self._graph.tensors[name]
        width = tensor.shape[-1] if tensor.shape else 0
        return width if isinstance(width, int) and width > 1 and tensor.dtype.startswith("float") else 0

    def _is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant in place; one that a variable or a view stands for has no values to change."""
        return self._graph.tensors[name].kind == "constant" and name not in self._graph.producer

    def _is_made_of(self, name: str, centred: set[str]) -> bool:
        """Whether a tensor has mean zero once the tensors in the set have, and its constants are centred."""
        node = self._graph.nodes[self._graph.producer[name]]
        width = self._width(name)
        shapes = [self._graph.tensors[operand].shape or () for operand in node.operands]
        if node.op == "add":
            return all(operand in centred or self._is_constant(operand) for operand in node.operands) and all(
                shape[-1:] == (width,) for shape in shapes
            )
        if node.op == "reshape":
            return node.operands[0] in centred and shapes[0][-1:] == (width,)
        if node.op == "matmul":
            return self._is_constant(node.operands[1]) and len(shapes[1]) >= 2
        if node.op == "take":
            axis = node.attributes.get("axis")
            return self._is_constant(node.operands[0]) and len(shapes[0]) == 2 and axis in (0, -2)
        return False

    def _is_read_by(self, name: str, centred: set[str]) -> bool:
        """Whether all that reads a tensor is a difference from its mean, or a sum in the set."""
        graph = self._graph
        if name in graph.outputs:
            return False
        for index in graph.consumers[name]:
            reader = graph.nodes[index]
            if reader.op in ("add", "reshape") and reader.outputs[0] in centred:
                continue
            if self.is_difference(reader) and reader.operands[0] == name:
                continue
            if self._is_mean_of(reader, name) and all(
                self.is_difference(graph.nodes[other]) for other in graph.consumers[reader.outputs[0]]
            ):
                continue
            return False
        return bool(graph.consumers[name])
