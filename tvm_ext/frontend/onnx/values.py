"""What is known about each tensor of an ONNX graph while it is being prepared: its type, its value, its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(eq=False)
class Value:
    """One tensor.

    Attributes
    ----------
    name : str
        Its name in the prepared graph; the empty string for an output that nobody wanted.
    type : onnx.TypeProto or None
        None when nothing is known; a dimension that is not known has neither value nor name.
    constant : numpy.ndarray, onnx.TensorProto or None
        Its value, when that does not depend on the inputs of the model. A TensorProto is not decoded until asked for.
    is_empty_sequence : bool
        It is a sequence of no tensors.
    rows : Value or None
        For a sequence that a loop appended to: the tensor whose rows are its elements, instead of the sequence.
    """

    name: str
    type: onnx.TypeProto | None = None
    constant: np.ndarray | onnx.TensorProto | None = None
    is_empty_sequence: bool = False
    rows: Value | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape in elements, None unless every dimension is known."""
        return known_shape(self.type)

    @property
    def array(self) -> np.ndarray | None:
        """The constant as an array, which is kept; None when it is not a constant."""
        if self.constant is not None:
            self.constant = self.decode()
        return self.constant

    def decode(self) -> np.ndarray:
        """Decode the constant into an array, which is not kept (two copies of large weights would be)."""
        if isinstance(self.constant, onnx.TensorProto):
            return numpy_helper.to_array(self.constant)
        return np.asarray(self.constant)

    @property
    def size(self) -> int | None:
        """Number of elements, None unless the shape is known."""
        return None if self.shape is None else element_count(self.shape)

    def tensor(self) -> onnx.TensorProto:
        """Write the constant as a TensorProto under the value's name."""
        tensor = onnx.TensorProto()
        if isinstance(self.constant, onnx.TensorProto):
            tensor.CopyFrom(self.constant)
        else:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(self.constant)))
        tensor.name = self.name
        return tensor


class Scope:
    """The tensors that a graph sees, its own and those of the graphs around it, and the nodes it is being turned into.

    Parameters
    ----------
    nodes : list of onnx.NodeProto
        Receives the nodes. A graph that is put in the place of a node shares the list of the graph around it.
    outputs : set of str
        Names that a node of this graph has to make.
    outer : Scope, optional
        Of the graph around, None for the main graph.
    path : str
        Put before the labels of nodes.
    typed : bool
        Whether the types of the graph's inputs are known, so that a type error is an error. In a loop's body they are
        not.
    """

    def __init__(
        self,
        nodes: list[onnx.NodeProto],
        outputs: set[str],
        outer: Scope | None = None,
        path: str = "",
        typed: bool = True,
    ) -> None:
        self.nodes = nodes
        self.outputs = outputs
        self.outer = outer
        self.path = path
        self.typed: bool = typed and (outer is None or outer.typed)
        self.values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return name in self.values or (self.outer is not None and name in self.outer)

    def visible(self) -> set[str]:
        """List the names that nodes can read."""
        return set(self.values) | (self.outer.visible() if self.outer is not None else set())


def constant_value(name: str, constant: np.ndarray | onnx.TensorProto) -> Value:
    """Describe a constant, with the type that follows from it."""
    if isinstance(constant, onnx.TensorProto):
        return Value(name, tensor_type(constant.data_type, constant.dims), constant)
    constant = np.asarray(constant)
    return Value(name, tensor_type(helper.np_dtype_to_tensor_dtype(constant.dtype), constant.shape), constant)


def tensor_type(element_type: int, shape: Sequence[int]) -> onnx.TypeProto:
    """Type of a tensor whose shape is known."""
    return helper.make_tensor_type_proto(element_type, [int(dim) for dim in shape])


def known_shape(type_proto: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """Shape of a tensor type, None unless every dimension is known."""
    dims = partial_shape(type_proto)
    if dims is None or any(dim is None for dim in dims):
        return None
    return tuple(dim for dim in dims if dim is not None)


def partial_shape(type_proto: onnx.TypeProto | None) -> tuple[int | None, ...] | None:
    """Dimensions of a tensor type, each None when it is not known; None when the rank is not known."""
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in type_proto.tensor_type.shape.dim)


def element_type(type_proto: onnx.TypeProto | None) -> int:
    """Element type number of a tensor type, 0 when it is not known."""
    return 0 if type_proto is None else type_proto.tensor_type.elem_type


def element_count(shape: Sequence[int]) -> int:
    """Count elements, in Python integers (a damaged shape overflows NumPy's)."""
    count = 1
    for dim in shape:
        count *= int(dim)
    return count


def byte_count(type_proto: onnx.TypeProto | None) -> int | None:
    """Size of a tensor in bytes (a string counts as one), None unless its shape is known."""
    shape = known_shape(type_proto)
    if shape is None:
        return None
    try:
        width = helper.tensor_dtype_to_np_dtype(element_type(type_proto)).itemsize
    except (KeyError, TypeError, ValueError):
        width = 1
    return element_count(shape) * width


def common_type(first: onnx.TypeProto | None, second: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """Merge what two types agree on: the type of a value that has one or the other."""
    if first is None or second is None or first == second:
        return first if first == second else None
    one, other = partial_shape(first), partial_shape(second)
    if element_type(first) != element_type(second) or element_type(first) == 0:
        return None
    if one is None or other is None or len(one) != len(other):
        return helper.make_tensor_type_proto(element_type(first), None)
    dims = [a if a == b else None for a, b in zip(one, other, strict=True)]
    return helper.make_tensor_type_proto(element_type(first), dims)


def element_type_only(type_proto: onnx.TypeProto) -> onnx.TypeProto | None:
    """Type without its shape, which may change from one iteration of a loop to the next."""
    if not type_proto.HasField("tensor_type"):
        return None
    return helper.make_tensor_type_proto(type_proto.tensor_type.elem_type, None)


def kind_of(declared: onnx.TypeProto) -> str:
    """Say what a value is that is not a tensor."""
    kinds = {"optional_type": "an optional value", "sparse_tensor_type": "a sparse tensor"}
    kind = declared.WhichOneof("value")
    return "of no known type" if kind is None else kinds.get(kind, f"a {kind.removesuffix('_type')}")
