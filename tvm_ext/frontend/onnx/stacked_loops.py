"""Loops that append to sequences and to tensors: what they append is stacked, and put together behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.control_flow import Folding
from tvm_ext.frontend.onnx.growing import joined_pieces, stacked_pieces
from tvm_ext.frontend.onnx.sequences import on_rows, stacking_loop
from tvm_ext.frontend.onnx.values import Scope, Value, element_type, partial_shape


@dataclass
class Loop:
    """A ``Loop`` node with what is known of its inputs.

    Attributes
    ----------
    node : onnx.NodeProto
    body : onnx.GraphProto
    limit, condition : Value or None
        Iterations at most; whether the first is computed.
    carried : list of Value
        What the first iteration begins with.
    label : str
        Words for the node.
    """

    node: onnx.NodeProto
    body: onnx.GraphProto
    limit: Value | None
    condition: Value | None
    carried: list[Value]
    label: str

    @property
    def starts(self) -> bool | None:
        """Whether the first condition is true; None if that is computed."""
        return truth_of(self.condition)

    @property
    def trips(self) -> int | None:
        """The limit as a number; None if there is none or it is computed."""
        if self.limit is None or self.limit.array is None:
            return None
        return max(0, int(self.limit.array.reshape(())))


class StackedLoops(Folding):
    """The part of folding loops that replaces what grows."""

    def _keep(self, loop: Loop, scope: Scope) -> str:
        """Put a loop into the graph, else give the reason why it cannot be compiled as one."""
        raise NotImplementedError

    def _keep_growing(self, loop: Loop, scope: Scope) -> str:
        """Keep a loop; what it joins to tensors it stacks instead. Else give the reason why it cannot be kept."""
        found = stacked_pieces(loop.body, len(loop.carried))
        if found is None:
            return self._keep_stacking(loop, scope)
        results = [*loop.node.output]
        stacks = {index: self._untaken(f"{results[index] or 'grown'}.pieces") for index in found.axes}
        if self._keep_stacking(_with_stacks(loop, found.body, found.kept, stacks.values()), scope):
            return self._keep_stacking(loop, scope)  # for a reason that speaks of what the model says
        for index, name in stacks.items():
            inner = Scope(scope.nodes, set(), scope, f"{loop.label}: ")
            inner.values |= {"rows": scope[name], "begin": loop.carried[index]}
            rank = len(partial_shape(scope[name].type) or (0,)) - 1
            axis = found.axes[index] % max(rank, 1)

            def define(word: str, array: np.ndarray, inner: Scope = inner) -> None:
                self._define_constant(word, array, inner)

            for step in joined_pieces(rank, axis, self._opsets.get("", 0), define):
                self._fold_node(step, inner, loop.label)
            if results[index]:
                self._alias(results[index], inner["joined"], scope, loop.label)
        return ""

    def _keep_stacking(self, loop: Loop, scope: Scope) -> str:
        """Keep a loop; what it appends to sequences it stacks instead. Else give the reason why it cannot be kept."""
        found = stacking_loop(loop.body, loop.carried)
        if found is None:
            return self._keep(loop, scope)
        results = [*loop.node.output]
        stacks = {index: self._untaken(f"{results[index] or 'sequence'}.rows") for index in found.sequences}
        reason = self._keep(_with_stacks(loop, found.body, found.kept, stacks.values()), scope)
        if reason:
            return reason
        for index, name in stacks.items():
            rows = scope[name]
            scope.values[results[index]] = Value("", _sequence_type(rows), rows=rows)
            if results[index] in scope.outputs:
                self._emit(_split(results[index]), [rows], [_sequence_type(rows)], scope, loop.label)
        return ""

    def _untaken(self, name: str) -> str:
        while name in self._taken:
            name = f"{name}_"
        return name

    def _fold_on_rows(self, node: onnx.NodeProto, rows: Value, scope: Scope, label: str) -> bool:
        """Compute what a node makes of a sequence from the rows of a tensor; False if it needs the sequence."""
        steps = on_rows(node, rows, label)
        if steps is None:
            return False
        inner = Scope(scope.nodes, set(), scope, f"{label}: ")
        inner.values[node.input[0]] = rows
        for step in steps:
            self._fold_node(step, inner, label)
        self._alias(node.output[0], inner[node.output[0]], scope, label)
        return True

    def _as_sequence(self, value: Value | None, scope: Scope, label: str) -> Value | None:
        """Give a value in its own form: a sequence that is held as the rows of a tensor is taken apart."""
        if value is None or value.rows is None:
            return value
        inner = Scope(scope.nodes, set(), scope)
        self._emit(_split("sequence"), [value.rows], [value.type], inner, label)
        return inner["sequence"]


def _with_stacks(loop: Loop, body: onnx.GraphProto, kept: Sequence[int], stacks: Iterable[str]) -> Loop:
    """Give the loop with another body, which carries some of the values and stacks others as results of these names."""
    results = [*loop.node.output]
    node = onnx.NodeProto(
        op_type="Loop",
        name=loop.node.name,
        output=[*(results[index] for index in kept), *results[len(loop.carried) :], *stacks],
    )
    carried = [loop.carried[index] for index in kept]
    return Loop(node, body, loop.limit, loop.condition, carried, loop.label)


def _split(name: str) -> onnx.NodeProto:
    """Take a tensor apart into a sequence of its rows."""
    return helper.make_node("SplitToSequence", [""], [name], axis=0, keepdims=0)


def _sequence_type(rows: Value) -> onnx.TypeProto:
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(element_type(rows.type), None))


def truth_of(value: Value | None) -> bool | None:
    """Value of a condition; true where there is none, None where it is computed."""
    if value is None:
        return True
    return None if value.array is None else bool(value.array.all())
