"""Types of the outputs of ONNX nodes, one node at a time, by the shape inference of ``onnx``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import checker, helper, shape_inference

from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.values import Value, partial_shape

INFERENCE_DATA_LIMIT = 4096
"""Elements; larger constants are never shapes, axes or pads, so shape inference is not shown them."""

_POOLS = ("AveragePool", "LpPool", "MaxPool")

_SCALED = ("Resize", "Upsample")

_RIGHT_CEILING = 22
"""Opset from which inference leaves out windows that begin behind the input, as all runtimes do at any opset."""

OtherTypes = Callable[[onnx.NodeProto, Sequence[Value | None], int], list[onnx.TypeProto | None]]


class MalformedNodeError(Exception):
    """A node breaks the rules of its operator. The file that it is in is known further up."""


def _check_before_inference(node: onnx.NodeProto, inputs: Sequence[Value | None], label: str) -> None:
    """Refuse what the inference functions of ``onnx`` do not look at before they index memory by it.

    LayerNormalization takes any axis, Split any number of parts; both then crash, or worse, do not.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    axis = given["axis"].i if "axis" in given else 0
    dims = partial_shape(inputs[0].type) if inputs and inputs[0] is not None else None
    if dims is not None and not -len(dims) - 1 <= axis <= len(dims):
        raise MalformedNodeError(f"{label}: axis {axis} is out of range for an input of {len(dims)} dimensions")
    if node.op_type != "Split":
        return
    parts = inputs[1].size if len(inputs) > 1 and inputs[1] is not None else None
    if "split" in given:
        parts = len(given["split"].ints)
    if "num_outputs" in given:
        parts = given["num_outputs"].i
    if parts is not None and parts != len(node.output):
        raise MalformedNodeError(f"{label}: it splits into {parts} parts and has {len(node.output)} outputs")


class TypeInference:
    """Infers types for the operator sets of one model.

    Parameters
    ----------
    opsets : mapping from str to int
        Version of each operator domain.
    ir_version : int
        Of the model.
    others : callable, optional
        Asked for the types of nodes that ``onnx`` has no schema of, with their inputs and the version of their domain.
    """

    def __init__(self, opsets: Mapping[str, int], ir_version: int, others: OtherTypes | None = None) -> None:
        self._opsets = opsets
        self._others = others
        self._imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._ir_version = ir_version

    def __call__(
        self, node: onnx.NodeProto, inputs: Sequence[Value | None], label: str, strict: bool
    ) -> list[onnx.TypeProto | None]:
        """Infer the outputs of a node without subgraphs.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence of Value or None
            None for an optional input that is left out.
        label : str
            Words for the node, for the error message.
        strict : bool
            Whether to raise when the node cannot work on these inputs; their types must all be known for that.

        Returns
        -------
        list of onnx.TypeProto or None
            None where nothing can be said.

        Raises
        ------
        MalformedNodeError
            If the node cannot work on these inputs.
        """
        unknown: list[onnx.TypeProto | None] = [None] * len(node.output)
        domain = domain_of(node)
        version = self._opsets.get(domain)
        if version is None or not onnx.defs.has(node.op_type, version, domain):
            return unknown if domain == "" or self._others is None else self._others(node, inputs, version or 1)
        if (domain, node.op_type) == ("", "STFT") and not any(item.name == "onesided" for item in node.attribute):
            # ONNX infers the shape as if this attribute, when left out, were 0; its default is 1.
            node = onnx.NodeProto.FromString(node.SerializeToString())
            node.attribute.append(helper.make_attribute("onesided", 1))
        if (
            domain == ""
            and node.op_type in _POOLS
            and any(item.name == "ceil_mode" and item.i for item in node.attribute)
        ):
            version = max(version, _RIGHT_CEILING)
        _check_before_inference(node, inputs, label)
        types, data = {}, {}
        for name, value in zip(node.input, inputs, strict=True):
            if value is None:
                continue
            types[name] = value.type or onnx.TypeProto()
            if value.constant is not None and (value.size or 0) <= INFERENCE_DATA_LIMIT:
                data[name] = value.tensor()
        try:
            found = shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, version, domain),
                node,
                types,
                data,
                opset_imports=self._imports,
                ir_version=self._ir_version,
            )
        except checker.ValidationError as error:
            raise MalformedNodeError(f"{label}: {' '.join(str(error).split())}") from None
        except shape_inference.InferenceError as error:
            if strict and all(value is None or value.shape is not None for value in inputs):
                raise MalformedNodeError(f"{label}: {' '.join(str(error).split())}") from None
            return unknown
        except (RuntimeError, ValueError):  # what inference functions throw when an input has no type
            return unknown
        if domain == "" and node.op_type in _SCALED and node.output[0] in found:
            _scale_as_runtimes(node, inputs, found[node.output[0]])
        if strict and all(value is None or value.shape is not None for value in inputs):
            _check_extents(found, label)
            if (domain, node.op_type) == ("", "Conv"):
                _check_channels(node, inputs, label)
        return [found.get(name) for name in node.output]


def _scale_as_runtimes(node: onnx.NodeProto, inputs: Sequence[Value | None], found: onnx.TypeProto) -> None:
    """Round a scaled extent down from the product in float32, as onnxruntime does: 40 scaled by 2.3 is 92.

    Inference takes the product of the numbers that float32 has for these scales, and has 91.
    """
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    operands = dict(enumerate(inputs))
    dims = partial_shape(inputs[0].type) if inputs and inputs[0] is not None else None
    sizes = operands.get(3)
    if sizes is not None and sizes.size != 0:  # sizes are taken as they are
        return
    scales = operands.get(2 if len(inputs) > 2 else 1)
    values = given.get("scales") if scales is None else scales.array
    extents = found.tensor_type.shape.dim
    if values is None or dims is None or len(dims) != len(extents):
        return
    axes = given.get("axes") or range(len(dims))
    if np.shape(values) != (len(axes),) or not all(-len(dims) <= axis < len(dims) for axis in axes):
        return
    for axis, scale in zip(axes, np.asarray(values, "float32"), strict=True):
        dim = dims[axis]
        if dim is not None:
            extents[axis].dim_value = scaled_extent(dim, float(scale))


def scaled_extent(extent: int, scale: float) -> int:
    """Extent of an axis after scaling, rounded down from the product in float32."""
    return int(np.floor(np.float32(extent) * np.float32(scale)))


def _check_extents(found: Mapping[str, onnx.TypeProto], label: str) -> None:
    """Refuse results with less than no element along an axis: more cut off than there is, windows beyond their input.

    Raises
    ------
    MalformedNodeError
    """
    for name, kind in found.items():
        dims = [dim.dim_value for dim in kind.tensor_type.shape.dim if dim.HasField("dim_value")]
        if min(dims, default=0) < 0:
            raise MalformedNodeError(
                f"{label}: its result {name!r} would have an extent of {min(dims)}; its input is too small for its "
                "pads, kernel or strides: give a larger input (--input-shape), or mend the node"
            )


def _check_channels(node: onnx.NodeProto, inputs: Sequence[Value | None], label: str) -> None:
    """Refuse a convolution whose weights are for another number of channels, which inference does not look at.

    Raises
    ------
    MalformedNodeError
    """
    data, weights = (partial_shape(value.type) if value is not None else None for value in inputs[:2])
    groups = next((int(item.i) for item in node.attribute if item.name == "group"), 1)
    if data is None or weights is None or len(data) < 2 or len(weights) < 2:
        return
    channels, each = data[1], weights[1]
    if channels is not None and each is not None and channels != groups * each:
        raise MalformedNodeError(f"{label}: it has {channels} channels, and its weights are for {groups * each}")
