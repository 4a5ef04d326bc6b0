"""Brings an ONNX model into the form that TVM's importer takes: static shapes, folded, every node with a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from tvm_ext.dynamic import OpenDimension
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.check import check_graph
from tvm_ext.frontend.onnx.fold import Folder
from tvm_ext.frontend.onnx.graph import reads
from tvm_ext.frontend.onnx.infer import MalformedNodeError, OtherTypes
from tvm_ext.frontend.onnx.inputs import bind_inputs
from tvm_ext.frontend.onnx.model import OnnxModel
from tvm_ext.frontend.onnx.tensor_sizes import EXPORT_AGAIN
from tvm_ext.frontend.onnx.values import Value, byte_count, kind_of, known_shape
from tvm_ext.tensor_spec import TensorSpec

LARGEST_TENSOR = 2**36
"""Bytes. What asks for more is damaged: computing with it would take hours, and preparing to do so as well."""

CONSTANTS_NEED_NOT_BE_INPUTS = 4
"""The first ONNX IR version of which that is true."""


@dataclass(frozen=True)
class PreparedModel:
    """An ONNX model that can be imported.

    Attributes
    ----------
    skeleton : onnx.ModelProto
        The model without its initializers, with static input shapes and a unique name for every node.
    constants : mapping from str to Value
        What the initializers are to be; large ones share their memory with the original model.
    inputs : tuple of TensorSpec
        In the order of the graph's inputs.
    labels : mapping from str to str
        For each node's name, words for the node of the original model that it comes from.
    types : mapping from str to onnx.TypeProto
        Types of the tensors that nodes make, subgraphs included, as far as they are known.
    notes : tuple of str
        What was done, one sentence each.
    unfolded : tuple of str
        A sentence for each node that depends on no input of the model and could not be computed all the same.
    unsupported : mapping from str to str
        For each node that has to be refused: why, by its name.
    """

    skeleton: onnx.ModelProto
    constants: Mapping[str, Value]
    inputs: tuple[TensorSpec, ...]
    labels: Mapping[str, str]
    types: Mapping[str, onnx.TypeProto]
    notes: tuple[str, ...]
    unfolded: tuple[str, ...]
    unsupported: Mapping[str, str]

    def to_proto(self) -> onnx.ModelProto:
        """Put the whole model together, a copy of its weights included."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.skeleton)
        for value in self.constants.values():
            proto.graph.initializer.append(value.tensor())
        return proto


def prepare(
    model: OnnxModel,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    is_supported: Callable[[onnx.NodeProto], bool] = lambda node: True,
    other_types: OtherTypes | None = None,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> PreparedModel:
    """Bind input shapes, infer, fold and simplify.

    Parameters
    ----------
    model : OnnxModel
    input_shapes : mapping from input name to shape, optional
        Values for dimensions that the model leaves open.
    is_supported : callable
        Says of a node whether it can be imported; if not, ONNX's own definition of its operator is put in its place.
    other_types : callable, optional
        Infers the types of nodes whose operators ONNX does not define.
    dynamic : mapping from name to OpenDimension, optional
        Dimensions of inputs that stay open.

    Raises
    ------
    ModelError
        If the graph is not sound.
    UnsupportedOperatorError
        If an input or output is not a tensor.
    InputError
        If the shapes do not fit, or dimensions are left without a value.
    """
    proto = model.proto
    check_graph(proto, model.source)
    inputs, input_notes = bind_inputs(proto.graph, input_shapes, model.source, dynamic)
    element_types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    given = [helper.make_tensor_value_info(spec.name, element_types[spec.name], spec.shape) for spec in inputs]
    _check_sizes({value.name: value.type for value in given}, model.source)
    folder = Folder(proto, is_supported, other_types)
    try:
        folder.run(given)
    except MalformedNodeError as error:
        remedy = EXPORT_AGAIN
        if input_notes:
            shapes = ", ".join(f"{spec.name}: {list(spec.shape)}" for spec in inputs)
            remedy = f"do the input shapes ({shapes}) fit the model?"
        raise ModelError(f"{model.source}: {error}; {remedy}") from None
    _check_sizes(folder.types, model.source)
    notes = input_notes + _fold_notes(folder, len(proto.graph.node))
    for declared, value in zip(proto.graph.output, folder.outputs, strict=True):
        kind = (value.type or declared.type).WhichOneof("value") or "tensor_type"
        if kind != "tensor_type":
            raise UnsupportedOperatorError(
                f"{model.source}: output {declared.name!r} is {kind_of(value.type or declared.type)}, and only "
                "tensors can be returned; export the model with tensor outputs"
            )
        promised = declared.type.tensor_type.elem_type
        made = value.type.tensor_type.elem_type if value.type else 0
        if promised and made and promised != made:
            names = [onnx.TensorProto.DataType.Name(number).lower() for number in (promised, made)]
            raise ModelError(
                f"{model.source}: output {declared.name!r} is declared {names[0]}, but the node that makes it gives "
                f"{names[1]}; {EXPORT_AGAIN}"
            )
    read = {name for node in folder.nodes for name in reads(node)} | {value.name for value in folder.outputs}
    constants = {name: value for name, value in folder.constants.items() if name in read}
    skeleton = _skeleton(proto, given, folder)
    return PreparedModel(
        skeleton,
        constants,
        tuple(inputs),
        folder.labels,
        folder.types,
        tuple(notes),
        tuple(folder.unfolded),
        folder.unsupported,
    )


def _check_sizes(types: Mapping[str, onnx.TypeProto], source: str) -> None:
    for name, type_proto in types.items():
        size = byte_count(type_proto) or 0
        if size > LARGEST_TENSOR:
            raise ModelError(
                f"{source}: tensor {name!r} of shape {list(known_shape(type_proto) or ())} would take {size / 1e9:.0f} "
                f"GB, and {LARGEST_TENSOR / 1e9:.0f} GB is the most that is compiled for; check the dimensions of the "
                "model's inputs, and its strides and scales"
            )


def _fold_notes(folder: Folder, before: int) -> list[str]:
    notes = list(folder.dropped)
    for operator, number in folder.expanded.items():
        notes.append(
            f"expanded {number} {operator} node{'s' * (number > 1)} by {'their' if number > 1 else 'its'} definition"
        )
    for number, what in (
        (folder.folded, "folded {} node{} into constants"),
        (folder.branches, "replaced {} If node{} by the branch taken"),
        (folder.unrolled, "unrolled {} Loop node{}"),
        (folder.simplified, "removed {} node{} that change nothing"),
    ):
        if number:
            notes.append(what.format(number, "s" * (number > 1)))
    if before != len(folder.nodes):
        notes.append(f"of {before} nodes {len(folder.nodes)} are left")
    return notes


def _skeleton(proto: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto], folder: Folder) -> onnx.ModelProto:
    outputs = [
        helper.make_value_info(declared.name, value.type or declared.type)
        for declared, value in zip(proto.graph.output, folder.outputs, strict=True)
    ]
    return onnx.ModelProto(
        ir_version=max(proto.ir_version, CONSTANTS_NEED_NOT_BE_INPUTS),
        opset_import=proto.opset_import,
        producer_name=proto.producer_name,
        graph=onnx.GraphProto(name=proto.graph.name or "main", node=folder.nodes, input=inputs, output=outputs),
    )
