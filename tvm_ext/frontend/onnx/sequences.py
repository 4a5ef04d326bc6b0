"""Sequences that a loop appends to, as one tensor with a row for each element.

Exporters write ``rows.append(x)`` in a loop as ``SequenceInsert``, and ``stack(rows)`` as ``ConcatFromSequence``. A
loop in a compiled module cannot carry a sequence that grows, but it can stack what is appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from tvm_ext.frontend.onnx.graph import reads
from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.values import Value, partial_shape


@dataclass(frozen=True)
class StackingLoop:
    """A loop that stacks what another one appends to sequences.

    Attributes
    ----------
    body : onnx.GraphProto
        Its last outputs are the elements, one for each of ``sequences``.
    sequences : tuple of int
        Which carried values of the other loop are the sequences.
    kept : tuple of int
        Which are not, in order.
    """

    body: onnx.GraphProto
    sequences: tuple[int, ...]
    kept: tuple[int, ...]


def stacking_loop(body: onnx.GraphProto, carried: Sequence[Value]) -> StackingLoop | None:
    """Replace sequences that are empty at first and only appended to by outputs that are stacked.

    Before: ``body(i, go, s, rows) -> (go, t, SequenceInsert(rows, x))``; after: ``body(i, go, s) -> (go, t, x)``.

    Returns
    -------
    StackingLoop or None
        None where there is no such sequence.
    """
    appended = {
        index: node
        for index, value in enumerate(carried)
        if value.is_empty_sequence and (node := _append(body, index)) is not None
    }
    if not appended:
        return None
    kept = tuple(index for index in range(len(carried)) if index not in appended)
    changed = onnx.GraphProto()
    changed.CopyFrom(body)
    inputs, outputs = list(changed.input), list(changed.output)
    nodes = [node for node in changed.node if node not in appended.values()]
    rows = []
    for node in appended.values():
        # Another output may be the same tensor.
        name = f"{node.output[0]}.row"
        nodes.append(helper.make_node("Identity", [node.input[1]], [name]))
        rows.append(onnx.ValueInfoProto(name=name))
    del changed.input[:], changed.output[:], changed.node[:]
    changed.node.extend(nodes)
    changed.input.extend([*inputs[:2], *(inputs[2 + index] for index in kept)])
    changed.output.extend([outputs[0], *(outputs[1 + index] for index in kept), *outputs[1 + len(carried) :], *rows])
    return StackingLoop(changed, tuple(appended), kept)


def _append(body: onnx.GraphProto, index: int) -> onnx.NodeProto | None:
    """Find the node that appends to a carried sequence, if nothing else reads it."""
    before, after = body.input[2 + index].name, body.output[1 + index].name
    readers = [node for node in body.node if before in reads(node)]
    if len(readers) != 1 or any(value.name == before for value in body.output):
        return None
    (node,) = readers
    is_append = node.op_type == "SequenceInsert" and len(node.input) == 2 and node.input[0] == before
    uses_of_result = sum(after in reads(other) for other in body.node) + sum(v.name == after for v in body.output)
    return node if is_append and node.output[0] == after and uses_of_result == 1 else None


def on_rows(node: onnx.NodeProto, rows: Value, label: str) -> list[onnx.NodeProto] | None:
    """Nodes that compute what a node makes of a sequence from the tensor whose rows are its elements.

    Parameters
    ----------
    node : onnx.NodeProto
    rows : Value
        Read under the name of the node's first input.
    label : str
        Words for the node, for error messages.

    Returns
    -------
    list of onnx.NodeProto or None
        None for an operator that needs the sequence itself.

    Raises
    ------
    MalformedNodeError
        If an axis is out of range.
    """
    source, result = node.input[0], node.output[0]
    if node.op_type == "SequenceAt":
        return [helper.make_node("Gather", [source, node.input[1]], [result], axis=0)]
    if node.op_type == "SequenceLength":
        return [
            helper.make_node("Shape", [source], [f"{result}.shape"]),
            helper.make_node("Constant", [], [f"{result}.first"], value_int=0),
            helper.make_node("Gather", [f"{result}.shape", f"{result}.first"], [result], axis=0),
        ]
    dims = partial_shape(rows.type)
    if node.op_type != "ConcatFromSequence" or dims is None:
        return None
    attributes = {item.name: item.i for item in node.attribute}
    is_new = bool(attributes.get("new_axis", 0))
    rank = len(dims) if is_new else len(dims) - 1
    axis = attributes.get("axis", 0)
    if not -rank <= axis < rank:
        raise MalformedNodeError(f"{label}: axis {axis} is out of range for {rank} dimensions")
    order = list(range(1, len(dims)))
    order.insert(axis % rank, 0)
    moved = result if is_new else f"{result}.moved"
    nodes = [helper.make_node("Transpose", [source], [moved], perm=order)]
    if not is_new:
        inner = list(dims[1:])
        if any(extent is None for place, extent in enumerate(inner) if place != axis % rank):
            return None
        shape = [-1 if place == axis % rank else int(extent or 0) for place, extent in enumerate(inner)]
        nodes.append(helper.make_node("Constant", [], [f"{result}.shape"], value_ints=shape))
        nodes.append(helper.make_node("Reshape", [moved, f"{result}.shape"], [result], allowzero=int(0 in shape)))
    return nodes
