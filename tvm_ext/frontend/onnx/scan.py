"""Writes ``Scan`` as the ``Loop`` that it is short for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.graph import subgraphs
from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.values import Value, partial_shape

BATCH_WAS_DROPPED = 9
"""Operator set version since which Scan has no batch axis, and since which its axes can be chosen."""


class OpenLengthError(Exception):
    """Raised for a scan of as many steps as only the inputs tell."""


@dataclass(frozen=True)
class LoopOfScan:
    """Nodes that compute a ``Scan``; none of their names is one that its body uses.

    Attributes
    ----------
    inputs, outputs : list of str
        Names for the node's inputs and outputs.
    constants : mapping of str to numpy.ndarray
        Constants that the nodes read.
    nodes : list of onnx.NodeProto
        In order.
    """

    inputs: list[str]
    outputs: list[str]
    constants: Mapping[str, np.ndarray]
    nodes: list[onnx.NodeProto]


def scan_as_loop(node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int, label: str) -> LoopOfScan:
    """Write a ``Scan`` as a ``Loop`` whose body takes its slices of the scanned inputs.

    Before: ``h, ys = Scan<body>(h0, xs)``; after:
    ``h, ys = Loop<x = Gather(xs, i); h, y = body(h, x)>(T, true, h0)``, and its results turned and transposed where
    the node's directions and axes ask for it.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of Value or None
        Of the node; the lengths of the scanned ones have to be known.
    opset : int
        Version of the operator set. Before 9 every input has a batch axis in front: each sequence of the batch gets a
        loop.
    label : str
        Words for the node, for error messages.

    Raises
    ------
    MalformedNodeError
        If the body or the attributes do not fit the inputs and outputs.
    OpenLengthError
        If the length of what is scanned is not known.
    """
    attributes = {item.name: item for item in node.attribute}
    body = attributes["body"].g if "body" in attributes else onnx.GraphProto()
    scanned = int(attributes["num_scan_inputs"].i) if "num_scan_inputs" in attributes else 0
    has_batch = opset < BATCH_WAS_DROPPED
    values = list(inputs[1:] if has_batch else inputs)
    carried = len(values) - scanned
    if (
        scanned < 1
        or carried < 0
        or len(body.input) != len(values)
        or len(body.output) != len(node.output)
        or len(body.output) < carried
        or any(value is None for value in values)
    ):
        raise MalformedNodeError(f"{label} has no body that fits its inputs and outputs")
    if has_batch and inputs[0] is not None:
        raise MalformedNodeError(f"{label} gives the lengths of its sequences, which is not supported")
    writer = _Writer(body, carried, opset, label)
    stacked = len(body.output) - carried
    if not has_batch:
        axes = _integers(attributes, "scan_input_axes", scanned)
        turned = _integers(attributes, "scan_input_directions", scanned)
        ranks = [len(partial_shape(value.type) or ()) if value else 0 for value in values[carried:]]
        axes = [axis + rank if axis < 0 else axis for axis, rank in zip(axes, ranks, strict=True)]
        trips = _length(values[carried:], axes, label)
        names = [f"{writer.prefix}input_{index}" for index in range(len(values))]
        results = writer.loop(names, trips, axes, turned, "")
        output_axes = _integers(attributes, "scan_output_axes", stacked)
        output_turned = _integers(attributes, "scan_output_directions", stacked)
        for index in range(stacked):
            results[carried + index] = writer.placed(
                results[carried + index], trips, output_axes[index], bool(output_turned[index]), body, carried + index
            )
        return LoopOfScan(names, results, writer.constants, writer.nodes)
    names = [f"{writer.prefix}input_{index}" for index in range(len(inputs))]
    turned = _integers(attributes, "directions", scanned)
    trips = _length(values[carried:], [1] * scanned, label)
    batch = _length(values, [0] * len(values), label)
    sequences = []
    for sequence in range(batch):
        picked = [writer.picked(name, sequence) for name in names[1:]]
        sequences.append(writer.loop(picked, trips, [0] * scanned, turned, f"_{sequence}"))
    results = [writer.joined(list(parts)) for parts in zip(*sequences, strict=True)]
    return LoopOfScan(names, results, writer.constants, writer.nodes)


class _Writer:
    """Collects nodes.

    Parameters
    ----------
    body : onnx.GraphProto
        Of the scan.
    carried : int
        Number of its states.
    opset : int
    label : str
        Words for the scan, for error messages.
    """

    def __init__(self, body: onnx.GraphProto, carried: int, opset: int, label: str) -> None:
        taken = _names(body)
        self.prefix = "scan."
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix = f"_{self.prefix}"
        self._body, self._carried, self._opset, self._label = body, carried, opset, label
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []

    def loop(
        self, names: Sequence[str], trips: int, axes: Sequence[int], turned: Sequence[int], suffix: str
    ) -> list[str]:
        """Add the loop over one sequence; gives the names of its results, stacked ones along the first axis."""
        body, prefix, carried = onnx.GraphProto(), self.prefix, self._carried
        body.CopyFrom(self._body)
        limit, last = self._constant("trips", trips), self._constant("last", trips - 1)
        true = self._constant("true", np.asarray(True))
        index, condition, goes_on, backwards = (f"{prefix}{word}" for word in ("index", "go", "goes_on", "backwards"))
        taken = [helper.make_node("Identity", [condition], [goes_on])]
        if any(turned):
            taken.append(helper.make_node("Sub", [last, index], [backwards]))
        for position, axis, is_turned in zip(range(carried, len(names)), axes, turned, strict=True):
            at = backwards if is_turned else index
            taken.append(helper.make_node("Gather", [names[position], at], [body.input[position].name], axis=axis))
        inner = [*taken, *body.node]
        del body.node[:]
        body.node.extend(inner)
        states = list(body.input[:carried])
        outputs = list(body.output)
        del body.input[:], body.output[:]
        body.input.append(helper.make_tensor_value_info(index, onnx.TensorProto.INT64, ()))
        body.input.append(helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, ()))
        body.input.extend(states)
        body.output.append(helper.make_tensor_value_info(goes_on, onnx.TensorProto.BOOL, ()))
        body.output.extend(outputs)
        results = [f"{prefix}result_{number}{suffix}" for number in range(len(outputs))]
        self.nodes.append(helper.make_node("Loop", [limit, true, *names[:carried]], results, body=body))
        return results

    def placed(self, name: str, trips: int, axis: int, turned: bool, body: onnx.GraphProto, output: int) -> str:
        """Turn a stacked result round, and move its first axis."""
        if turned:
            order = self._constant("order", np.arange(trips - 1, -1, -1, dtype="int64"))
            self.nodes.append(helper.make_node("Gather", [name, order], [f"{name}.turned"], axis=0))
            name = f"{name}.turned"
        if axis:
            dims = partial_shape(body.output[output].type)
            if dims is None:
                raise MalformedNodeError(f"{self._label}: its body does not say of what rank its outputs are")
            rank = len(dims) + 1
            if not -rank <= axis < rank:
                raise MalformedNodeError(f"{self._label}: output axis {axis} is out of range for {rank} dimensions")
            order_of_axes = list(range(1, rank))
            order_of_axes.insert(axis % rank, 0)
            self.nodes.append(helper.make_node("Transpose", [name], [f"{name}.moved"], perm=order_of_axes))
            name = f"{name}.moved"
        return name

    def picked(self, name: str, sequence: int) -> str:
        """Take one sequence of a batch."""
        made = f"{name}_{sequence}"
        self.nodes.append(helper.make_node("Gather", [name, self._constant(f"number_{sequence}", sequence)], [made]))
        return made

    def joined(self, parts: Sequence[str]) -> str:
        """Stack the results of the sequences of a batch along a new first axis."""
        rows = []
        for part in parts:
            # Unsqueeze has its axes as an attribute in these operator sets.
            self.nodes.append(helper.make_node("Unsqueeze", [part], [f"{part}.row"], axes=[0]))
            rows.append(f"{part}.row")
        self.nodes.append(helper.make_node("Concat", rows, [f"{parts[0]}.joined"], axis=0))
        return f"{parts[0]}.joined"

    def _constant(self, word: str, value: int | np.ndarray) -> str:
        name = f"{self.prefix}{word}"
        self.constants[name] = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, "int64")
        return name


def _integers(attributes: Mapping[str, onnx.AttributeProto], name: str, count: int) -> list[int]:
    found = [int(value) for value in attributes[name].ints] if name in attributes else []
    return found or [0] * count


def _length(values: Sequence[Value | None], axes: Sequence[int], label: str) -> int:
    """Extent that inputs have in common along their axes."""
    found = set()
    for value, axis in zip(values, axes, strict=True):
        dims = partial_shape(value.type) if value is not None else None
        if dims is None or not 0 <= axis < len(dims):
            raise MalformedNodeError(f"{label}: an input that it scans has no axis {axis} of known length")
        found.add(dims[axis])
    if found == {None} or (len(found) == 2 and None in found):
        raise OpenLengthError("the length that it scans is only known at run time; compile the model for one length")
    if len(found) != 1:
        lengths = ", ".join(sorted(str(length) for length in found))
        raise MalformedNodeError(f"{label}: the inputs that it scans have different or unknown lengths ({lengths})")
    (length,) = found
    return int(length or 0)


def _names(graph: onnx.GraphProto) -> set[str]:
    """All names in a graph and the graphs inside it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        names.update(node.input, node.output)
        for inner in subgraphs(node):
            names |= _names(inner)
    return names
