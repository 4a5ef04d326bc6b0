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
    """Raised for batches of sequences, of which only the inputs tell how many there are, or how long they are."""


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
        Of the node. A length that is not known is asked of the first scanned input, and others are compared with it.
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
        If there are batches, and their number or the length of what is scanned is not known.
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
        names = [f"{writer.prefix}input_{index}" for index in range(len(values))]
        length = _length(values[carried:], axes, label)
        scanned_names = names[carried:]
        if length is None:
            scanned_names = writer.as_long_as_the_first(scanned_names, axes, ranks)
            trips = f"{writer.prefix}length"
        else:
            trips = writer.constant("trips", length)
        results = writer.loop([*names[:carried], *scanned_names], trips, axes, turned, "")
        output_axes = _integers(attributes, "scan_output_axes", stacked)
        output_turned = _integers(attributes, "scan_output_directions", stacked)
        for index in range(stacked):
            results[carried + index] = writer.placed(
                results[carried + index], trips, output_axes[index], bool(output_turned[index]), body, carried + index
            )
        return LoopOfScan(names, results, writer.constants, writer.nodes)
    names = [f"{writer.prefix}input_{index}" for index in range(len(inputs))]
    turned = _integers(attributes, "directions", scanned)
    length, batch = _length(values[carried:], [1] * scanned, label), _length(values, [0] * len(values), label)
    if length is None or batch is None:
        raise OpenLengthError("the batches that it scans are only known at run time; compile the model for one size")
    trips = writer.constant("trips", length)
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
        self, names: Sequence[str], trips: str, axes: Sequence[int], turned: Sequence[int], suffix: str
    ) -> list[str]:
        """Add the loop over one sequence; gives the names of its results, stacked ones along the first axis.

        ``trips`` is the name of the number of steps.
        """
        body, prefix, carried = onnx.GraphProto(), self.prefix, self._carried
        body.CopyFrom(self._body)
        true = self.constant("true", np.asarray(True))
        index, condition, goes_on, backwards = (f"{prefix}{word}" for word in ("index", "go", "goes_on", "backwards"))
        taken = [helper.make_node("Identity", [condition], [goes_on])]
        if any(turned):
            taken.append(helper.make_node("Sub", [self._last(trips), index], [backwards]))
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
        self.nodes.append(helper.make_node("Loop", [trips, true, *names[:carried]], results, body=body))
        return results

    def _last(self, trips: str) -> str:
        """Name the number of the last step."""
        name = f"{self.prefix}last"
        if not any(name in node.output for node in self.nodes):
            self.nodes.append(helper.make_node("Sub", [trips, self.constant("one", 1)], [name]))
        return name

    def as_long_as_the_first(self, names: Sequence[str], axes: Sequence[int], ranks: Sequence[int]) -> list[str]:
        """Name the length of the first of several tensors, and give the others that length, which each run checks."""
        prefix, made = self.prefix, [names[0]]
        shape, places = f"{prefix}shape", self.constant("length_axis", axes[0])
        self.nodes.append(helper.make_node("Shape", [names[0]], [shape]))
        self.nodes.append(helper.make_node("Gather", [shape, places], [f"{prefix}length"], axis=0))
        one = self.constant("one_extent", np.ones(1, "int64"))
        if len(names) > 1:
            self.nodes.append(helper.make_node("Reshape", [f"{prefix}length", one], [f"{prefix}length_vector"]))
        for name, axis, rank in zip(names[1:], axes[1:], ranks[1:], strict=True):
            self.nodes.append(helper.make_node("Shape", [name], [f"{name}.shape"]))
            extents = []
            for place in range(rank):
                if place == axis:
                    extents.append(f"{prefix}length_vector")
                    continue
                at = self.constant(f"place_{place}", np.asarray([place], "int64"))
                extents.append(f"{name}.extent_{place}")
                self.nodes.append(helper.make_node("Gather", [f"{name}.shape", at], [extents[-1]], axis=0))
            self.nodes.append(helper.make_node("Concat", extents, [f"{name}.target"], axis=0))
            made.append(f"{name}.checked")
            self.nodes.append(helper.make_node("Reshape", [name, f"{name}.target"], [made[-1]], allowzero=1))
        return made

    def placed(self, name: str, trips: str, axis: int, turned: bool, body: onnx.GraphProto, output: int) -> str:
        """Turn a stacked result round, and move its first axis."""
        if turned:
            order, ends = f"{self.prefix}order", (self._last(trips), self.constant("end", -1))
            if not any(order in node.output for node in self.nodes):
                self.nodes.append(helper.make_node("Range", [*ends, self.constant("back", -1)], [order]))
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
        self.nodes.append(helper.make_node("Gather", [name, self.constant(f"number_{sequence}", sequence)], [made]))
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

    def constant(self, word: str, value: int | np.ndarray) -> str:
        """Add a constant of int64, or an array; gives its name."""
        name = f"{self.prefix}{word}"
        self.constants[name] = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, "int64")
        return name


def _integers(attributes: Mapping[str, onnx.AttributeProto], name: str, count: int) -> list[int]:
    found = [int(value) for value in attributes[name].ints] if name in attributes else []
    return found or [0] * count


def _length(values: Sequence[Value | None], axes: Sequence[int], label: str) -> int | None:
    """Extent that inputs have in common along their axes; None if it is not known of one of them."""
    found = set()
    for value, axis in zip(values, axes, strict=True):
        dims = partial_shape(value.type) if value is not None else None
        if dims is None or not 0 <= axis < len(dims):
            raise MalformedNodeError(f"{label}: an input that it scans has no axis {axis} of known length")
        found.add(dims[axis])
    lengths = found - {None}
    if len(lengths) > 1:
        said = ", ".join(sorted(str(length) for length in lengths))
        raise MalformedNodeError(f"{label}: the inputs that it scans have different lengths ({said})")
    return None if None in found else int(lengths.pop() or 0)


def _names(graph: onnx.GraphProto) -> set[str]:
    """All names in a graph and the graphs inside it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        names.update(node.input, node.output)
        for inner in subgraphs(node):
            names |= _names(inner)
    return names
