"""Converts ``If`` and ``Loop`` nodes: their graphs become branches and functions of the Relax module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.graph import outer_reads, reads
from tvm_ext.frontend.onnx.ops.extents import as_tensor, can_prove, is_extent
from tvm_ext.frontend.onnx.support import UnsupportedNode
from tvm_ext.frontend.relax.loop_functions import (
    COUNTER,
    Step,
    add_function,
    joined,
    repeat,
    repeat_extent,
)
from tvm_ext.frontend.relax.while_functions import repeat_while

BLOCK = 128
"""Nodes of the iterations that are written one after the other in one function, where their number is fixed: their
tensors share memory, and fewer functions are called."""


class SubgraphFailedError(Exception):
    """A node inside an ``If`` or ``Loop`` failed, and was recorded."""


class ControlFlowConverter(onnx_frontend.ONNXGraphImporter):
    """The part of the importer that converts nodes with graphs."""

    _nodes: dict[str, Any]
    _failures: list[UnsupportedNode]

    def _convert_nodes(self, graph: onnx.GraphProto) -> None:
        raise NotImplementedError

    def _variable_name(self, name: str) -> str:
        raise NotImplementedError

    def _branch_of(self, node: onnx.NodeProto) -> str | None:
        raise NotImplementedError

    def _largest(self, extent: Any) -> int | None:
        """Give the largest value of an expression of extents that their ranges allow; None if there is none."""
        raise NotImplementedError

    # ---- If

    def _convert_if(self, node: onnx.NodeProto) -> list[Any]:
        """Convert to a Relax ``If`` whose branches hold their own bindings, so that only one is computed."""
        condition = self._scalar(as_tensor(self.bb, self._nodes[node.input[0]]))
        graphs = {attribute.name: attribute.g for attribute in node.attribute}
        only = self._branch_of(node)
        if only is not None:
            return self._inline(graphs[only])
        failed = len(self._failures)
        branches = [self._convert_branch(graphs[name]) for name in ("then_branch", "else_branch")]
        if len(self._failures) > failed:
            raise SubgraphFailedError
        then, otherwise = ([_type_of(value) for value in _fields(branch.body)] for branch in branches if branch)
        for name, one, other in zip(node.output, then, otherwise, strict=True):
            if name and not (_is_alike(one, other) or tvm_ffi.structural_equal(one, other)):
                raise NotImplementedError(
                    f"its output {name!r} is {_text(one)} in one branch and {_text(other)} in the other, and in a "
                    "compiled module both have the same type and rank"
                )
        result = self.bb.emit(relax.If(condition, *branches))
        if len(node.output) == 1:
            return [self._either(result, then[0], otherwise[0])]
        return [
            self._either(relax.TupleGetItem(result, index), one, other)
            for index, (one, other) in enumerate(zip(then, otherwise, strict=True))
        ]

    def _either(self, result: Any, one: Any, other: Any) -> Any:
        """Name the extents of a result in which two branches differ: the run tells them."""
        if tvm_ffi.structural_equal(one, other) or not _is_alike(one, other):
            return result
        extents = [
            mine if can_prove(mine == yours) else tvm.tirx.Var("either", "int64")
            for mine, yours in zip(one.shape, other.shape, strict=True)
        ]
        return self.bb.match_cast(self.bb.emit(result), relax.TensorType(extents, str(one.dtype)))

    def _inline(self, graph: onnx.GraphProto) -> list[Any]:
        """Convert a branch that is always taken, or the only one that can run."""
        failed = len(self._failures)
        self._convert_nodes(graph)
        if len(self._failures) > failed:
            raise SubgraphFailedError
        return [self._nodes[value.name] for value in graph.output]

    def _convert_branch(self, graph: onnx.GraphProto) -> relax.SeqExpr | None:
        around = dict(self._nodes)
        self.bb._begin_binding_block()
        try:
            self._convert_nodes(graph)
            outputs = [as_tensor(self.bb, self._nodes.get(value.name)) for value in graph.output]
        finally:
            block = self.bb._end_block()
            self._nodes = around
        if any(output is None for output in outputs):
            return None  # the failure is recorded
        return relax.SeqExpr([block], outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))

    # ---- Loop

    def _convert_loop(self, node: onnx.NodeProto) -> list[Any]:
        """Convert to calls of functions that repeat the body."""
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        extent = self._nodes[node.input[0]] if node.input[0] else None
        limit, condition, *carried = [as_tensor(self.bb, self._nodes[name]) if name else None for name in node.input]
        trips = _number(limit)
        stacks = len(body.output) > len(node.input) - 1
        counted = stacks and trips is None and is_extent(extent)
        step, captured = self._loop_body(node, body, carried, relax.const(1, "int64") if counted else limit, 1)
        name = f"{self._variable_name(node.name or 'loop')}"
        if counted and not step.conditional and condition is None:
            return repeat_extent(self.bb, name, step, carried, captured, extent, self._largest(extent))
        if stacks and trips is None:
            raise NotImplementedError(
                "it stacks results, or joins a tensor with a piece in every iteration, and nothing bounds the number "
                "of its iterations beforehand"
            )
        if not step.conditional and condition is None and trips is not None:
            exponent = min(trips.bit_length(), (BLOCK // max(1, len(body.node))).bit_length()) - 1
            block = None
            if exponent > 0:
                block = exponent, self._loop_body(node, body, carried, limit, 1 << exponent)[0].function
            return repeat(self.bb, name, step, carried, captured, trips, block)
        goes = relax.const(True, "bool") if condition is None else self._scalar(condition)
        if limit is not None:
            goes = self.bb.emit(relax.op.logical_and(goes, self._remains(relax.const(0, "int64"), limit)))
        return repeat_while(self.bb, name, step, goes, carried, captured, trips)

    def _loop_body(
        self, node: onnx.NodeProto, body: onnx.GraphProto, carried: Sequence[Any], limit: Any, times: int
    ) -> tuple[Step, list[Any]]:
        """Convert ``times`` iterations to a function; gives it, and what it captures of the graphs around."""
        count = len(carried)
        counter_name, condition_name, *names = (value.name for value in body.input)
        # A limit that is computed is compared with the counter in every iteration.
        computed_limit = limit is not None and _number(limit) is None
        captured = {
            name: as_tensor(self.bb, self._nodes[name]) for name in sorted(outer_reads(body)) if name in self._nodes
        }
        captured = {name: value for name, value in captured.items() if not _is_constant(value)}
        for name, value in captured.items():
            if not isinstance(value, relax.Var) or not _names_its_extents(value.ty):
                raise NotImplementedError(f"its body reads {name!r}, whose shape is computed at run time")
        counter = relax.Var(self._variable_name("counter"), COUNTER)
        states = [
            relax.Var(self._variable_name(name), _type_of(value)) for name, value in zip(names, carried, strict=True)
        ]
        inner = {name: relax.Var(self._variable_name(name), value.ty) for name, value in captured.items()}
        ends = relax.Var(self._variable_name("limit"), _type_of(limit)) if computed_limit else limit
        around = dict(self._nodes)
        self._nodes |= {counter_name: counter, condition_name: relax.const(True, "bool"), **inner}
        self._nodes |= dict(zip(names, states, strict=True))
        conditional = False
        stacked = len(body.output) - 1 - count

        def build() -> list[Any]:
            first = iteration(counter)
            columns = [first[len(first) - stacked :]]
            for _ in range(1, times):
                self._nodes |= {counter_name: first[0], **dict(zip(names, first[1 : 1 + count], strict=True))}
                first = iteration(first[0])
                columns.append(first[len(first) - stacked :])
            stacks = [joined(self.bb, list(rows)) for rows in zip(*columns, strict=True)]
            return [*first[: len(first) - stacked], *stacks]

        def iteration(counter: Any) -> list[Any]:
            nonlocal conditional
            failed = len(self._failures)
            self._convert_nodes(body)
            outputs = [as_tensor(self.bb, self._nodes.get(value.name)) for value in body.output]
            if len(self._failures) > failed or any(output is None for output in outputs):
                raise SubgraphFailedError
            goes_on: Any = outputs[0]
            results = outputs[1:]
            for name, state, result in zip(names, states, results[:count], strict=True):
                if not tvm_ffi.structural_equal(state.ty, _type_of(result)):
                    raise NotImplementedError(
                        f"its carried tensor {name!r} is {_text(state.ty)} before an iteration and "
                        f"{_text(_type_of(result))} after it, and a loop in a compiled module keeps its types"
                    )
            rows = [self.bb.emit(relax.op.expand_dims(row, 0)) for row in results[count:]]
            after: Any = counter
            always = _is_constant(goes_on) and bool(np.all(goes_on.value.numpy()))
            conditional = not (always and node.input[1] == "" and _number(limit) is not None)
            if conditional or any(counter_name in reads(step) for step in body.node):
                after = self.bb.emit(relax.op.add(counter, relax.const(1, "int64")))
            if not conditional:
                return [after, *results[:count], *rows]
            goes_on = self._scalar(goes_on)
            if limit is not None:
                remains = self._remains(after, ends)
                goes_on = remains if always else self.bb.emit(relax.op.logical_and(goes_on, remains))
            return [after, goes_on, *results[:count], *rows]

        parameters = [counter, *states, *inner.values(), *([ends] if computed_limit else [])]
        try:
            function = add_function(self.bb, f"{self._variable_name(node.name or 'loop')}_once", parameters, build)
        finally:
            self._nodes = around
        captured_values = [*captured.values(), *([limit] if computed_limit else [])]
        # As a call here has them: the function has names of its own for open extents.
        first_call = relax.Call(function, [relax.const(0, "int64"), *carried, *captured_values])
        results = list(self.bb.normalize(first_call).ty.fields)
        first = (2 if conditional else 1) + count
        step = Step(
            function,
            tuple(state.ty for state in states),
            tuple(value.ty for value in captured_values),
            tuple(results[first:]),
            conditional,
        )
        return step, captured_values

    def _remains(self, counter: Any, limit: Any) -> Any:
        return self.bb.emit(relax.op.less(counter, self._scalar(limit)))

    def _scalar(self, value: Any) -> Any:
        """Take the shape off a tensor of one element."""
        if value.ty.ndim != 0:
            return self.bb.emit(relax.op.reshape(value, relax.ShapeExpr([])))
        return value


def _number(limit: Any) -> int | None:
    """Value of a constant limit."""
    return int(limit.value.numpy().reshape(())) if isinstance(limit, tvm.ir.GenericConst) else None


def _is_constant(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst)


def _names_its_extents(ty: Any) -> bool:
    """Whether all extents are numbers or names, which a function that takes such a tensor may give again."""
    return (
        isinstance(ty, relax.TensorType)
        and isinstance(ty.shape, relax.ShapeExpr)
        and all(isinstance(extent, tvm.tirx.IntImm | tvm.ir.Var) for extent in ty.shape)
    )


def _is_alike(one: Any, other: Any) -> bool:
    """Whether tensors differ at most in their extents."""
    tensors = all(isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) for ty in (one, other))
    return tensors and str(one.dtype) == str(other.dtype) and len(one.shape) == len(other.shape)


def _type_of(value: Any) -> Any:
    return value.ty


def _fields(value: Any) -> Sequence[Any]:
    return list(value.fields) if isinstance(value, relax.Tuple) else [value]


def _text(ty: Any) -> str:
    """Words for the type of a tensor."""
    if not isinstance(ty, relax.TensorType):
        return str(ty)
    if not isinstance(ty.shape, relax.ShapeExpr):
        return f"{ty.dtype} of a shape that is only known at run time"
    return f"{ty.dtype}[{', '.join(_extent_text(extent) for extent in ty.shape)}]"


def _extent_text(extent: Any) -> str:
    return str(int(extent)) if isinstance(extent, tvm.tirx.IntImm) else str(extent)
