"""Converters of PyTorch's loops: ``while_loop``, ``scan`` and ``map``, whose bodies become functions of the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.relax.loop_functions import (
    COUNTER,
    Step,
    add_function,
    repeat,
    repeat_extent,
)
from tvm_ext.frontend.relax.while_functions import repeat_while

Build = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def while_loop(importer: Any, node: Node) -> Any:
    """``while_loop(condition, body, carried, captured)``: the body, as long as the condition holds."""
    builder = importer.block_builder
    condition_graph, body_graph = (importer.env[graph] for graph in node.args[:2])
    carried, captured = (_operands(importer, operands) for operands in node.args[2:4])
    condition = importer._import_branch_subgraph(condition_graph, [*carried, *captured], f"{node.name}_condition")
    body = importer._import_branch_subgraph(body_graph, [*carried, *captured], f"{node.name}_body")

    def build(counter: Any, state: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        after = _called(importer, body, [*state, *given], len(state))
        return [builder.emit(relax.Call(condition, [*after, *given])), *after]

    step = _step(importer, node, build, carried, captured, (), conditional=True)
    first = builder.emit(relax.Call(condition, [*carried, *captured]))
    return relax.Tuple(repeat_while(builder, node.name, step, first, carried, captured, None))


def scan(importer: Any, node: Node) -> Any:
    """``scan(body, carried, sequences, captured)``: the body for each element of the sequences, results stacked."""
    return _along(importer, node, node.args[0], node.args[1], node.args[2], node.args[3])


def map_elements(importer: Any, node: Node) -> Any:
    """``map(body, sequences, captured)``: the body for each element of the sequences, results stacked."""
    return _along(importer, node, node.args[0], (), node.args[1], node.args[2])


def _along(importer: Any, node: Node, graph: Node, start: Any, sequences: Any, others: Any) -> Any:
    builder = importer.block_builder
    carried, elements, captured = (_operands(importer, operands) for operands in (start, sequences, others))
    trips = elements[0].ty.shape[0]
    if isinstance(trips, tirx.IntImm) and not int(trips):
        raise NotImplementedError("it is along a dimension of no elements")

    def element(sequence: Any, counter: Any) -> Any:
        return builder.emit(relax.op.take(sequence, counter, 0, mode="clip"))

    firsts = [builder.emit(relax.op.take(each, relax.const(0, "int64"), 0, mode="clip")) for each in elements]
    body = importer._import_branch_subgraph(importer.env[graph], [*carried, *firsts, *captured], f"{node.name}_body")
    result = builder.normalize(relax.Call(body, [*carried, *firsts, *captured])).ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]

    def build(counter: Any, state: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        taken = [element(sequence, counter) for sequence in given[: len(elements)]]
        after = _called(importer, body, [*state, *taken, *given[len(elements) :]], len(types))
        return [*after[: len(state)], *(builder.emit(relax.op.expand_dims(row, 0)) for row in after[len(state) :])]

    given = [*elements, *captured]
    rows = tuple(relax.TensorType([1, *list(ty.shape)], ty.dtype) for ty in types[len(carried) :])
    step = _step(importer, node, build, carried, given, rows, conditional=False)
    if isinstance(trips, tirx.IntImm):
        return relax.Tuple(repeat(builder, node.name, step, carried, given, int(trips)))
    most = importer.most.get(trips.name) if isinstance(trips, tirx.Var) else None
    return relax.Tuple(repeat_extent(builder, node.name, step, carried, given, trips, most))


def _operands(importer: Any, operands: Any) -> list[Any]:
    if not all(isinstance(operand, Node) for operand in operands):
        raise NotImplementedError("it is given a number; make it a tensor")
    return [importer.env[operand] for operand in operands]


def _called(importer: Any, function: Any, arguments: Sequence[Any], count: int) -> list[Any]:
    """Call a body, which gives a lone result as it is."""
    result = importer.block_builder.emit(relax.Call(function, list(arguments)))
    if count == 1:
        return [result]
    return [importer.block_builder.emit(relax.TupleGetItem(result, index)) for index in range(count)]


def _step(
    importer: Any,
    node: Node,
    build: Build,
    carried: Sequence[Any],
    captured: Sequence[Any],
    rows: tuple[Any, ...],
    conditional: bool,
) -> Step:
    """Add the function of one iteration; see :class:`tvm_ext.frontend.relax.loop_functions.Step`."""
    builder = importer.block_builder
    types = [tuple(value.ty for value in values) for values in (carried, captured)]
    counter = relax.Var("counter", COUNTER)
    state, given = ([relax.Var(f"{name}_{k}", kind) for k, kind in enumerate(kinds)]
                    for name, kinds in zip(("carried", "captured"), types, strict=True))  # fmt: skip

    def results() -> list[Any]:
        return [builder.emit(relax.op.add(counter, relax.const(1, "int64"))), *build(counter, state, given)]

    function = add_function(builder, f"{node.name}_step", [counter, *state, *given], results)
    return Step(function, types[0], types[1], rows, conditional)


LOOPS: Mapping[str, Callable[[Any, Node], Any]] = {"while_loop": while_loop, "scan": scan, "map_impl": map_elements}
"""By name of operator."""
