"""Tensors that grow by one piece in every iteration of a loop, as pieces that are stacked and joined behind it.

Exporters write ``out = cat([out, x])`` in a loop so. A loop in a compiled module keeps the shapes of what it carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.graph import reads

ALLOWS_ZERO = 14
"""Operator set version since which a zero in a shape can be one."""


@dataclass(frozen=True)
class StackedPieces:
    """A loop that stacks the pieces that another one joins to tensors.

    Attributes
    ----------
    body : onnx.GraphProto
        Its last outputs are the pieces, one for each of ``axes``.
    axes : dict from int to int
        Along which axis each carried tensor of the other loop grew.
    kept : tuple of int
        Which carried values do not grow, in order.
    """

    body: onnx.GraphProto
    axes: dict[int, int]
    kept: tuple[int, ...]


def stacked_pieces(body: onnx.GraphProto, carried: int) -> StackedPieces | None:
    """Replace tensors that are only joined with a piece by outputs that are stacked.

    Before: ``body(i, go, s, out) -> (go, t, Concat(out, x))``; after: ``body(i, go, s) -> (go, t, x)``.

    Parameters
    ----------
    carried : int
        Number of values that the loop carries.

    Returns
    -------
    StackedPieces or None
        None where there is no such tensor.
    """
    growing = {index: node for index in range(carried) if (node := _joined(body, index)) is not None}
    if not growing:
        return None
    kept = tuple(index for index in range(carried) if index not in growing)
    changed = onnx.GraphProto()
    changed.CopyFrom(body)
    inputs, outputs = list(changed.input), list(changed.output)
    nodes = [node for node in changed.node if node not in growing.values()]
    pieces = []
    for node in growing.values():
        name = f"{node.output[0]}.piece"  # another output may be the same tensor
        nodes.append(helper.make_node("Identity", [node.input[1]], [name]))
        pieces.append(onnx.ValueInfoProto(name=name))
    del changed.input[:], changed.output[:], changed.node[:]
    changed.node.extend(nodes)
    changed.input.extend([*inputs[:2], *(inputs[2 + index] for index in kept)])
    changed.output.extend([outputs[0], *(outputs[1 + index] for index in kept), *outputs[1 + carried :], *pieces])
    axes = {index: next(item.i for item in node.attribute if item.name == "axis") for index, node in growing.items()}
    return StackedPieces(changed, axes, kept)


def _joined(body: onnx.GraphProto, index: int) -> onnx.NodeProto | None:
    """Find the node that joins a carried tensor with a piece, if nothing else reads either."""
    before, after = body.input[2 + index].name, body.output[1 + index].name
    readers = [node for node in body.node if before in reads(node)]
    if len(readers) != 1 or any(value.name == before for value in body.output):
        return None
    (node,) = readers
    joins = node.op_type == "Concat" and len(node.input) == 2 and node.input[0] == before != node.input[1]
    joins = joins and any(item.name == "axis" for item in node.attribute)
    uses_of_result = sum(after in reads(other) for other in body.node) + sum(v.name == after for v in body.output)
    return node if joins and node.output[0] == after and uses_of_result == 1 else None


def joined_pieces(
    rank: int, axis: int, opset: int, constant: Callable[[str, np.ndarray], None]
) -> list[onnx.NodeProto]:
    """Nodes that make ``joined`` of the tensor ``begin`` and the stacked pieces ``rows``.

    Parameters
    ----------
    rank : int
        Of a piece.
    axis : int
        Along which they are joined, from 0 on.
    opset : int
    constant : callable
        Defines a constant by its name.
    """
    order = list(range(1, rank + 1))
    order.insert(axis, 0)  # the pieces side by side in front of the axis
    extents = [*range(axis), None, *range(axis + 2, rank + 1)]
    nodes = [
        helper.make_node("Transpose", ["rows"], ["moved"], perm=order),
        helper.make_node("Shape", ["moved"], ["extents"]),
    ]
    for place in range(rank + 1):
        constant(f"place_{place}", np.array([place]))
        nodes.append(helper.make_node("Gather", ["extents", f"place_{place}"], [f"extent_{place}"], axis=0))
    nodes.append(helper.make_node("Mul", [f"extent_{axis}", f"extent_{axis + 1}"], ["length"]))
    parts = ["length" if place is None else f"extent_{place}" for place in extents]
    zero = {"allowzero": 1} if opset >= ALLOWS_ZERO else {}
    return [
        *nodes,
        helper.make_node("Concat", parts, ["shape"], axis=0),
        helper.make_node("Reshape", ["moved", "shape"], ["pieces"], **zero),
        helper.make_node("Concat", ["begin", "pieces"], ["joined"], axis=axis),
    ]
