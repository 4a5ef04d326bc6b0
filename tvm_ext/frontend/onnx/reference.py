"""Runs one ONNX node on arrays with the reference implementation of ``onnx``, by the meaning of the model's opset.

The reference implementation knows few operators in more than their newest form and takes the defaults of attributes
from that form. So defaults that have changed since are filled in from the schema of the model's version first, and what
an older version means otherwise, or the reference implementation gets wrong, is computed here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

Arrays = Sequence[np.ndarray | None]
Attributes = Mapping[str, Any]

ALONG_ONE_AXIS = 13
"""Operator set version since which Softmax and its like go along one axis instead of all from there on."""


def run_node(node: onnx.NodeProto, inputs: Arrays, opsets: Mapping[str, int], ir_version: int) -> list[np.ndarray]:
    """Compute the outputs of a node.

    Parameters
    ----------
    node : onnx.NodeProto
        Of the operator domain ``ai.onnx``.
    inputs : sequence of numpy.ndarray or None
        One for each input of the node; None for one that is left out.
    opsets : mapping from str to int
        Version of each operator domain in the model that the node is from.
    ir_version : int
        Of that model.

    Returns
    -------
    list of numpy.ndarray

    Raises
    ------
    Exception
        Whatever NumPy or the reference implementation think of values that the operator is not defined for.
    """
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.name, alone.domain, alone.doc_string = "", "", ""
    names = [f"input_{index}" if array is not None else "" for index, array in enumerate(inputs)]
    del alone.input[:], alone.output[:]
    alone.input.extend(names)
    alone.output.extend(f"output_{index}" for index in range(len(node.output)))
    if node.op_type in ("Div", "Mod") and _divides_by_zero(inputs):
        raise ZeroDivisionError("it divides integers by zero")
    compute = _prepared(alone.SerializeToString(), opsets[""], ir_version)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(result) for result in compute(inputs)]


def _divides_by_zero(inputs: Arrays) -> bool:
    """Whether integers are divided by zero, of which NumPy makes 0 and a warning."""
    divisor = inputs[1]
    return divisor is not None and divisor.dtype.kind in "iu" and not divisor.all()


@lru_cache(maxsize=512)
def _prepared(serialized: bytes, version: int, ir_version: int) -> Callable[[Arrays], Sequence[Any]]:
    """Make ready to compute a node; those of an unrolled loop differ in nothing but the names of their tensors."""
    node = onnx.NodeProto.FromString(serialized)
    applies, compute = OTHERWISE.get(node.op_type, (None, None))
    defaults = _defaults(node.op_type, version)
    if applies is not None and compute is not None and applies(version):
        attributes = {item.name: helper.get_attribute_value(item) for item in (*defaults.values(), *node.attribute)}
        return lambda inputs: [compute(inputs, attributes)]
    given = {item.name for item in node.attribute}
    newest = _defaults(node.op_type, onnx.defs.onnx_opset_version())
    node.attribute.extend(item for name, item in defaults.items() if name not in given and newest.get(name) != item)
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_empty_tensor_value_info(name) for name in node.input if name],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=ir_version)
    evaluator = ReferenceEvaluator(model)
    names = list(node.input)

    def run(inputs: Arrays) -> Sequence[Any]:
        feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
        return list(evaluator.run(None, feeds))

    return run


def _defaults(operator: str, version: int) -> dict[str, onnx.AttributeProto]:
    """Attributes that an operator has when they are left out."""
    attributes = onnx.defs.get_schema(operator, version, "").attributes
    return {name: item.default_value for name, item in attributes.items() if item.default_value.name}


def _given(inputs: Arrays, position: int) -> np.ndarray:
    array = inputs[position]
    if array is None:
        raise ValueError(f"input {position} is left out")
    return array


def _softmax(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Softmax over all axes from the given one on."""
    data = _given(inputs, 0)
    if data.size == 0:
        return data
    axis = int(attributes["axis"])
    rows = data.reshape(int(np.prod(data.shape[: axis if axis >= 0 else data.ndim + axis], dtype=np.int64)), -1)
    exponentials = np.exp(rows - rows.max(axis=1, keepdims=True))
    return (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(data.dtype).reshape(data.shape)


def _unsqueeze(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Unsqueeze whose axes are an attribute: all of them count in the result, in whatever order they are listed."""
    return np.expand_dims(_given(inputs, 0), tuple(int(axis) for axis in attributes["axes"]))


def _mean(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Mean of tensors that are broadcast to each other."""
    arrays = [_given(inputs, position) for position in range(len(inputs))]
    dtype = arrays[0].dtype
    total = np.zeros(np.broadcast_shapes(*(array.shape for array in arrays)), np.result_type(dtype, "float32"))
    for array in arrays:
        total = total + array
    return (total / np.asarray(len(arrays), total.dtype)).astype(dtype)


def _pow(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Power; NumPy takes the square root where the exponent is one 0.5, and -inf has none."""
    base, exponent = _given(inputs, 0), _given(inputs, 1)
    if exponent.size == 1 and base.dtype.kind == "f":
        exponent = np.array(np.broadcast_to(exponent, np.broadcast_shapes(base.shape, exponent.shape)))
    return np.power(base, exponent, dtype=np.result_type(base, exponent)).astype(base.dtype)


def _reduce_log_sum_exp(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Logarithm of a sum of exponentials, less the largest where that is finite."""
    data = _given(inputs, 0)
    given = inputs[1] if len(inputs) > 1 else None
    axes = tuple(attributes.get("axes", ())) if given is None else tuple(int(axis) for axis in given.ravel())
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return data
    places = axes or None
    wide = data.astype(np.result_type(data, "float32"))
    largest = wide.max(places, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    total = np.log(np.exp(wide - shift).sum(places, keepdims=True)) + shift
    return (total if attributes.get("keepdims", 1) else np.squeeze(total, places)).astype(data.dtype)


def _gather_elements(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """GatherElements whose indices may be fewer than the data along every axis."""
    data, indices = _given(inputs, 0), _given(inputs, 1)
    axis = int(attributes["axis"]) % data.ndim
    if np.any((indices < -data.shape[axis]) | (indices >= data.shape[axis])):
        raise IndexError("an index is out of range")
    inside = tuple(slice(None if at == axis else extent) for at, extent in enumerate(indices.shape))
    return np.take_along_axis(data[inside], np.where(indices < 0, indices + data.shape[axis], indices), axis)


def _scatter(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Scatter, as ScatterElements was called."""
    data, indices, updates = (_given(inputs, position) for position in range(3))
    axis = int(attributes["axis"])
    result = data.copy()
    for place in np.ndindex(*indices.shape):
        target = list(place)
        target[axis] = int(indices[place])
        result[tuple(target)] = updates[place]
    return result


def _pad(inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """Pad, which removes elements where it pads by a negative number."""
    data = _given(inputs, 0)
    pads = list(attributes["pads"]) if "pads" in attributes else [int(pad) for pad in _given(inputs, 1)]
    value: Any = attributes.get("value", 0)
    if len(inputs) > 2 and inputs[2] is not None:
        value = inputs[2].reshape(())
    axes = range(data.ndim) if len(inputs) < 4 or inputs[3] is None else [int(axis) for axis in inputs[3]]
    width = [(0, 0)] * data.ndim
    for position, axis in enumerate(axes):
        width[axis] = (pads[position], pads[position + len(pads) // 2])
    mode = {b"constant": "constant", b"reflect": "reflect", b"edge": "edge", b"wrap": "wrap"}[
        attributes.get("mode", b"constant")
    ]
    kept = data[
        tuple(slice(max(-low, 0), extent + min(high, 0)) for (low, high), extent in zip(width, data.shape, strict=True))
    ]
    added = [(max(low, 0), max(high, 0)) for low, high in width]
    options: dict[str, Any] = {"constant_values": value} if mode == "constant" else {}
    return np.asarray(np.pad(kept, added, mode=mode, **options)).astype(data.dtype)  # type: ignore[call-overload]


# By operator: the versions for which the reference implementation is not used, and what is.
OTHERWISE: dict[str, tuple[Callable[[int], bool], Callable[[Arrays, Attributes], np.ndarray]]] = {
    "GatherElements": (lambda version: True, _gather_elements),
    "Mean": (lambda version: True, _mean),
    "Pad": (lambda version: True, _pad),
    "Pow": (lambda version: True, _pow),
    "ReduceLogSumExp": (lambda version: True, _reduce_log_sum_exp),
    "Scatter": (lambda version: True, _scatter),
    "Softmax": (lambda version: version < ALONG_ONE_AXIS, _softmax),
    "Unsqueeze": (lambda version: version < ALONG_ONE_AXIS, _unsqueeze),
}
