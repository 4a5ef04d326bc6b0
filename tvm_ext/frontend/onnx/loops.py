"""Folds ``Loop`` and ``Scan``: short loops into their iterations, others into a body with known types.

A loop that stays becomes a function in the compiled module (:mod:`tvm_ext.frontend.relax.loop_functions`), whose
tensors keep their shapes from one iteration to the next. One that is short is faster and folds better as a plain
sequence of nodes; so does one that changes shapes, as long as it is not too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.scan import OpenLengthError, scan_as_loop
from tvm_ext.frontend.onnx.stacked_loops import Loop, StackedLoops, truth_of
from tvm_ext.frontend.onnx.values import (
    Scope,
    Value,
    byte_count,
    constant_value,
    element_type,
    partial_shape,
    tensor_type,
)

ITERATION_LIMIT = 256
"""A loop with more iterations is not unrolled."""

SHORT_LOOP = 512
"""Nodes, all iterations together, up to which a loop is unrolled although it could stay one: compiling takes 4 ms a
node. Of four recurrent layers over 80 steps, the loop takes 1.2 times as long to run and a quarter of the time to
compile."""

UNROLLED_NODE_LIMIT = 20_000
"""Nodes, all iterations together, up to which a loop that cannot stay one is unrolled."""

AXES_BECAME_INPUT = 13
"""Operator set version since which Unsqueeze has its axes as an input."""

LARGEST_SCAN = 2**33
"""Bytes that the stacked results of a loop may take."""

ENDLESS = 2**62
"""Iterations from which on a limit is none; exporters write the largest integer for "while"."""


class LoopFolding(StackedLoops):
    """Folds ``Loop`` and ``Scan``."""

    def _fold_scan(self, node: onnx.NodeProto, inputs: Sequence[Value | None], scope: Scope, label: str) -> None:
        """Replace a ``Scan`` by the loop that it is short for."""
        inner = Scope(scope.nodes, set(), scope, f"{label}: ")
        try:
            formal = scan_as_loop(node, inputs, self._opsets.get("", 0), label)
        except OpenLengthError as error:
            left = self._emit(self._with_folded_subgraphs(node, scope, label), inputs, [], scope, label)
            self.unsupported[left.name] = str(error)
            return
        for name, value in zip(formal.inputs, inputs, strict=True):
            if value is not None:
                inner.values[name] = value
        for name, constant in formal.constants.items():
            self._define_constant(name, constant, inner)
        for step in formal.nodes:
            self._fold_node(step, inner, label)
        for name, made in zip(node.output, formal.outputs, strict=True):
            if name:
                self._alias(name, inner[made], scope, label)

    def _fold_loop(self, node: onnx.NodeProto, inputs: Sequence[Value | None], scope: Scope, label: str) -> None:
        """Unroll a loop, or keep it with a body whose types are known, or note why neither can be done."""
        limit, condition, *carried = [*inputs, None, None][: max(2, len(inputs))]
        body = next((item.g for item in node.attribute if item.name == "body"), None)
        if (
            body is None
            or len(body.input) != len(carried) + 2
            or len(body.output) != len(node.output) + 1
            or any(value is None for value in carried)
        ):
            raise MalformedNodeError(f"{label} has no body that fits its inputs and outputs")
        loop = Loop(node, body, limit, condition, [value for value in carried if value is not None], label)
        if self._unroll(loop, scope, SHORT_LOOP):
            return
        reason = self._keep_growing(loop, scope)
        if not reason or self._unroll(loop, scope, UNROLLED_NODE_LIMIT):
            return
        left = self._emit(self._with_folded_subgraphs(node, scope, label), inputs, [], scope, label)
        self.unsupported[left.name] = reason

    # ---- unrolling

    def _unroll(self, loop: Loop, scope: Scope, largest: int) -> bool:
        """Replace a loop by its iterations; False if their number is not known or they are too many nodes."""
        if loop.starts is None or (loop.limit is not None and loop.limit.array is None):
            return False
        counts = (self.folded, self.simplified, self.branches, self.unrolled, self.expanded.copy(), [*self.dropped])
        nodes: list[onnx.NodeProto] = []
        finished = self._iterations(loop, Scope(nodes, set(), scope, f"{loop.label}: "), largest)
        if finished is None:
            self.folded, self.simplified, self.branches, self.unrolled, self.expanded, self.dropped = counts
            return False
        carried, stacks = finished
        scope.nodes.extend(nodes)
        self.unrolled += 1
        names = [*loop.node.output]
        for name, value in zip(names, carried, strict=False):
            if name:
                self._alias(name, value, scope, loop.label)
        for name, stack in zip(names[len(carried) :], stacks, strict=True):
            if name:
                self._stack(name, stack, scope, loop.label)
        return True

    def _iterations(self, loop: Loop, around: Scope, largest: int) -> tuple[list[Value], list[list[Value]]] | None:
        """Fold one iteration after the other: what is carried out of the last, and the rows of the scanned results."""
        body, carried = loop.body, list(loop.carried)
        scanned: list[list[Value]] = []
        trips = ITERATION_LIMIT + 1 if loop.trips is None else loop.trips
        running = bool(loop.starts)
        while running and len(scanned) < trips:
            if len(scanned) == ITERATION_LIMIT or len(around.nodes) > largest:
                return None
            path = f"{around.path}iteration {len(scanned)}: "
            inner = self._enter(body, Scope(around.nodes, set(), around.outer, path))
            counters = (np.asarray(len(scanned), "int64"), _true_like(loop.condition))
            for declared, counter in zip(body.input, counters, strict=False):
                self._define_constant(declared.name, counter, inner)
            inner.values.update({declared.name: value for declared, value in zip(body.input[2:], carried, strict=True)})
            self._fold_nodes(body, inner)
            goes_on, *results = [inner[output.name] for output in body.output]
            truth = truth_of(goes_on)
            if truth is None:
                return None
            running = truth
            scanned.append(results[len(carried) :])
            carried = results[: len(carried)]
        stacks = [list(rows) for rows in zip(*scanned, strict=True)]
        if len(stacks) != len(body.output) - 1 - len(carried):  # no iterations, and so no rows
            return None
        return carried, stacks

    def _stack(self, name: str, parts: Sequence[Value], scope: Scope, label: str) -> None:
        """Join tensors along a new first axis."""
        inner = Scope(scope.nodes, set(), scope)
        inner.values["axes"] = constant_value(self._tensor_name("axes", inner), np.asarray([0], "int64"))
        for index, part in enumerate(parts):
            inner.values[f"part_{index}"] = part
            if self._opsets.get("", 0) < AXES_BECAME_INPUT:
                unsqueeze = helper.make_node("Unsqueeze", [f"part_{index}"], [f"row_{index}"], axes=[0])
            else:
                unsqueeze = helper.make_node("Unsqueeze", [f"part_{index}", "axes"], [f"row_{index}"])
            self._fold_node(unsqueeze, inner, label)
        rows = [f"row_{index}" for index in range(len(parts))]
        self._fold_node(helper.make_node("Concat", rows, ["stacked"], axis=0), inner, label)
        self._alias(name, inner["stacked"], scope, label)

    # ---- keeping

    def _keep(self, loop: Loop, scope: Scope) -> str:
        """Put a loop into the graph, its body folded; else give the reason why it cannot be compiled as one."""
        unknown = next((value.name for value in loop.carried if partial_shape(value.type) is None), None)
        if unknown is not None:
            return f"the rank of {unknown!r}, which its iterations carry on, is only known at run time"
        body, count = onnx.GraphProto(), len(loop.carried)
        body.CopyFrom(loop.body)
        # A constant condition is not hidden behind a node.
        made_inside = {value.name for value in body.output[1:]}
        inner = self._enter(body, Scope([], made_inside, scope, f"{loop.label}: ", scope.typed))
        counter, condition, *carried = body.input
        inner.values[counter.name] = Value(
            self._tensor_name(counter.name, inner), tensor_type(onnx.TensorProto.INT64, ())
        )
        # An iteration is only computed when the condition holds.
        self._define_constant(condition.name, _true_like(loop.condition), inner)
        kept = []
        for index, (declared, value) in enumerate(zip(carried, loop.carried, strict=True)):
            if _source(loop.body, loop.body.output[1 + index].name) == declared.name:
                inner.values[declared.name] = value  # every iteration hands it on
            else:
                kept.append(index)
                inner.values[declared.name] = Value(self._tensor_name(declared.name, inner), value.type)
        self._fold_nodes(body, inner)
        goes_on, *made = [inner[output.name] for output in body.output]
        reason = _changed_type(loop, made, kept)
        if reason:
            return reason
        rows = made[count:]
        trips = loop.trips if loop.starts and truth_of(goes_on) else None
        if loop.starts is False:
            trips = 0
        if trips is None and loop.limit is None and truth_of(goes_on) and any(loop.node.output):
            return "nothing ends it"
        is_counted = bool(loop.starts and truth_of(goes_on)) and loop.limit is not None
        reason = "" if is_counted and loop.trips is None else _unbounded_rows(loop, rows, trips)
        if reason:
            return reason
        if trips == 0:
            if any(row.shape is None for row in rows):
                return "it has no iterations, and the shape of what these would stack is only known at run time"
            self._skip(loop, made, scope)
            return ""
        names = {index: inner[carried[index].name].name for index in kept}
        del body.input[:]
        body.input.append(helper.make_tensor_value_info(inner[counter.name].name, onnx.TensorProto.INT64, ()))
        body.input.append(helper.make_tensor_value_info(inner[condition.name].name, onnx.TensorProto.BOOL, ()))
        body.input.extend(helper.make_value_info(names[index], loop.carried[index].type) for index in kept)
        outputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in body.output]
        del body.output[:]
        body.output.extend([outputs[0], *(outputs[1 + index] for index in kept), *outputs[1 + count :]])
        self._finish_subgraph(body, inner, loop.label)
        results = [*loop.node.output]
        for index, value in enumerate(loop.carried):
            if index not in kept and results[index]:
                self._alias(results[index], value, scope, loop.label)
        node = onnx.NodeProto(
            op_type="Loop",
            name=loop.node.name,
            input=["" for _ in range(2 + len(kept))],
            output=[*(results[index] for index in kept), *results[count:]],
            attribute=[helper.make_attribute("body", body)],
        )
        limit = None if loop.trips is not None and loop.trips >= ENDLESS else loop.limit
        inputs = [limit, None if loop.starts else loop.condition, *(loop.carried[index] for index in kept)]
        types = [*(loop.carried[index].type for index in kept), *(_stacked_type(row, trips) for row in rows)]
        self._emit(node, inputs, types, scope, loop.label)
        return ""

    def _skip(self, loop: Loop, made: Sequence[Value], scope: Scope) -> None:
        """Replace a loop of no iterations by what it would begin with."""
        self.unrolled += 1
        for name, value in zip(loop.node.output, loop.carried, strict=False):
            if name:
                self._alias(name, value, scope, loop.label)
        count = len(loop.carried)
        for name, row in zip(loop.node.output[count:], made[count:], strict=True):
            dtype: Any = helper.tensor_dtype_to_np_dtype(element_type(row.type))
            self._define_constant(name, np.zeros((0, *(row.shape or ())), dtype), scope)


def _true_like(condition: Value | None) -> np.ndarray:
    return np.ones((condition.shape if condition is not None else None) or (), bool)


def _source(body: onnx.GraphProto, name: str) -> str:
    """Trace a tensor of a body back through nodes that hand it on."""
    makers = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and len(node.input)}
    while name in makers:
        name = makers.pop(name)
    return name


def _stacked_type(row: Value, trips: int | None) -> onnx.TypeProto | None:
    dims = partial_shape(row.type)
    return None if dims is None else helper.make_tensor_type_proto(element_type(row.type), [trips, *dims])


def _changed_type(loop: Loop, made: Sequence[Value], kept: Sequence[int]) -> str:
    """Tell which carried tensor does not keep its type, or which row has no known one; empty if all is well."""
    for index in kept:
        before, after = loop.carried[index], made[index]
        name = loop.body.input[2 + index].name
        if element_type(after.type) == 0:  # a node that inference does not know; the importer looks again
            continue
        if element_type(before.type) != element_type(after.type):
            kinds = [onnx.TensorProto.DataType.Name(element_type(value.type)).lower() for value in (before, after)]
            return f"its carried tensor {name!r} is {kinds[0]} before an iteration and {kinds[1]} after it"
        if _differ(before.type, after.type):
            found = _shape_text(after.type)
            return (
                f"its carried tensor {name!r} has shape {_shape_text(before.type)} before an iteration and {found} "
                "after it, and a loop in a compiled module keeps its shapes"
            )
    for declared, row in zip(loop.body.output[1 + len(loop.carried) :], made[len(loop.carried) :], strict=True):
        if partial_shape(row.type) is None and element_type(row.type):
            return f"the rank of {declared.name!r}, which it stacks, is only known at run time"
    return ""


def _differ(before: onnx.TypeProto, after: onnx.TypeProto) -> bool:
    """Whether two shapes cannot be the same; extents that are open are compared when the loop is imported."""
    one, other = partial_shape(before), partial_shape(after)
    if one is None or other is None:
        return False
    return len(one) != len(other) or any(
        first is not None and second is not None and first != second for first, second in zip(one, other, strict=True)
    )


def _shape_text(type_proto: onnx.TypeProto | None) -> str:
    dims = partial_shape(type_proto)
    if dims is None:
        return "of unknown rank"
    return str(["?" if dim is None else dim for dim in dims]).replace("'?'", "?")


def _unbounded_rows(loop: Loop, rows: Sequence[Value], trips: int | None) -> str:
    """Tell whether there is no memory for what a loop stacks; empty if there is."""
    if not rows or trips == 0:
        return ""
    most = loop.trips if trips is None else trips
    if most is None or most >= ENDLESS:
        return "it stacks results and nothing bounds the number of its iterations beforehand"
    size = sum(most * (byte_count(row.type) or 0) for row in rows)
    if size > LARGEST_SCAN:
        return f"the results that it stacks over {most} iterations would take {size / 1e9:.1f} GB of memory"
    return ""
