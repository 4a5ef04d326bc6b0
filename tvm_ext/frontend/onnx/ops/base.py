"""What every converter needs: the attributes of its node, constants and shapes, and folding of constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter, get_type

from tvm_ext.errors import ModelError, UnsupportedOperatorError


@dataclass(frozen=True)
class Node:
    """An ONNX node on its way to Relax.

    Attributes
    ----------
    op_type : str
        As the model file spells it.
    attributes : dict
        As TVM's importer parses them: strings are bytes; ``tvm_custom`` holds the node's name and number of outputs.
    parameters : list
        The importer's tables: every value by name, and the weights it keeps as variables.
    """

    op_type: str
    attributes: dict[str, Any]
    parameters: list[Any]

    def refuse(self, reason: str) -> NoReturn:
        """Say that this variant of the operator is not supported; the importer adds which node it is.

        Raises
        ------
        UnsupportedOperatorError
            Always.
        """
        raise UnsupportedOperatorError(reason)

    def damaged(self, reason: str) -> NoReturn:
        """Say that the node breaks the rules of its operator; the importer adds which node it is.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError(reason)

    def text(self, name: str, default: str = "") -> str:
        """Value of a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)

    def texts(self, name: str) -> list[str]:
        """Values of an attribute that is a list of strings; empty if it is absent."""
        values = self.attributes.get(name, ())
        return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]

    def integer(self, name: str, default: int) -> int:
        """Value of an integer attribute."""
        return int(self.attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """Value of a float attribute."""
        return float(self.attributes.get(name, default))

    def integers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Values of an attribute that is a list of integers."""
        return [int(value) for value in self.attributes.get(name, default)]

    def numbers(self, name: str) -> list[float]:
        """Values of an attribute that is a list of floats; empty if it is absent."""
        return [float(value) for value in self.attributes.get(name, ())]

    def shape(self, value: Any, name: str) -> tuple[int, ...]:
        """Shape of an input, which has to be fixed.

        Raises
        ------
        UnsupportedOperatorError
            If the rank or a dimension is unknown.
        """
        if isinstance(value, np.ndarray):
            return value.shape
        dims = getattr(value.ty, "shape", None)
        if not isinstance(dims, relax.ShapeExpr) or not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims.values):
            found = "an unknown shape" if dims is None else f"shape {dims}"
            self.refuse(f"input {name} has {found}, a fixed one is needed; bind the model's input shapes")
        return tuple(int(dim) for dim in dims.values)

    def dims(self, value: Any, name: str) -> tuple[Any, ...]:
        """Shape of an input, whose extents may be open: numbers, and expressions.

        Raises
        ------
        UnsupportedOperatorError
            If it is computed from values.
        """
        if isinstance(value, np.ndarray):
            return value.shape
        dims = getattr(value.ty, "shape", None)
        if not isinstance(dims, relax.ShapeExpr):
            self.refuse(f"input {name} has an unknown shape, a fixed one is needed; bind the model's input shapes")
        return tuple(int(dim) if isinstance(dim, tvm.tirx.IntImm) else dim for dim in dims.values)

    def fixed(self, dim: Any, name: str, axis: int) -> int:
        """Require a fixed number of elements along an axis of an input whose other extents may be open.

        Raises
        ------
        UnsupportedOperatorError
            If it is open.
        """
        if not isinstance(dim, int):
            self.refuse(f"input {name} has {dim} elements along axis {axis}, a fixed number is needed")
        return dim

    def array(self, value: Any) -> np.ndarray | None:
        """Value of an input if it is known now, else None."""
        if isinstance(value, relax.Var) and value.name in self.parameters[1]:
            return np.asarray(self.parameters[1][value.name][1].numpy())
        if isinstance(value, tvm.ir.GenericConst):
            return np.asarray(value.value.numpy())
        if isinstance(value, relax.ShapeExpr) and all(isinstance(dim, tvm.tirx.IntImm) for dim in value.values):
            return np.array([int(dim) for dim in value.values], "int64")
        if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
            return np.array(value.value, str(value.ty.dtype))
        return None

    def constant(self, value: Any, name: str) -> np.ndarray:
        """Value of an input that has to be known when the model is imported.

        Raises
        ------
        UnsupportedOperatorError
            If it is computed in the graph.
        """
        array = self.array(value)
        if array is None:
            self.refuse(f"input {name} is computed in the graph, a constant is needed; fold the model's constants")
        return array

    def scalar(self, value: Any, name: str) -> Any:
        """Python number of a constant input that holds one element.

        Raises
        ------
        UnsupportedOperatorError
            If it is computed in the graph.
        ModelError
            If it has more than one element.
        """
        array = self.constant(value, name)
        if array.size != 1:
            self.damaged(f"input {name} has shape {array.shape}, a scalar was expected")
        return array.item()

    def axis(self, name: str, rank: int, default: int) -> int:
        """Value of an axis attribute, counted from the front.

        Raises
        ------
        ModelError
            If it is out of range.
        """
        return self.in_range(self.integer(name, default), rank)

    def in_range(self, axis: int, rank: int) -> int:
        """Count an axis from the front.

        Raises
        ------
        ModelError
            If it is out of range.
        """
        if not -rank <= axis < rank:
            self.damaged(f"axis {axis} is out of range for {rank} dimensions")
        return axis % rank

    def outputs(self, values: Sequence[Any]) -> Any:
        """Return the outputs the node names, of all that the operator has, in the form the importer takes.

        Raises
        ------
        UnsupportedOperatorError
            If the node names more outputs, or one that is None.
        """
        count = int(self.attributes.get("tvm_custom", {}).get("num_outputs", len(values)))
        if count > len(values):
            self.refuse(f"{count} outputs are asked for, {len(values)} are supported")
        if count == 1:
            return values[0]
        return relax.Tuple(list(values[:count]))


class Converter(OnnxOpConverter):
    """Base of the converters; a subclass defines ``convert``, or ``_impl_vN`` for each operator set that differs."""

    op_type = ""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: list[Any], attr: dict[str, Any], params: list[Any]) -> Any:
        return cls.convert(Node(cls.op_type or cls.__name__, attr, params), bb, inputs)

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: list[Any]) -> Any:
        """Give the node's outputs as Relax expressions.

        Raises
        ------
        UnsupportedOperatorError
            If this variant of the operator is not supported.
        """
        raise NotImplementedError(f"{cls.__name__} defines no conversion")


def element_type(code: int) -> str:
    """Name, as numpy spells it, of an ONNX element type."""
    return str(get_type(code))


def dtype_of(value: Any) -> str:
    """Element type of an expression or array."""
    return str(value.dtype) if isinstance(value, np.ndarray) else str(value.ty.dtype.dtype)


def constant(value: Any, dtype: str | None = None) -> Any:
    """Relax constant of an array or number; keeps float64, which ``relax.const`` by itself would narrow."""
    array = np.asarray(value, dtype)
    return relax.const(array, str(array.dtype))


def emit(bb: relax.BlockBuilder, value: Any) -> Any:
    """Bind an expression to a variable; arrays become constants and leaves stay as they are."""
    if isinstance(value, np.ndarray | np.generic):
        return constant(np.asarray(value))
    if isinstance(value, relax.Var | tvm.ir.GenericConst):
        return value
    return bb.emit(value)


def known(node: Node, value: Any) -> Any:
    """Numpy array of an input that is constant, else the input: what the functions below fold or emit."""
    array = node.array(value)
    return value if array is None else array


def reshape(bb: relax.BlockBuilder, value: Any, shape: Sequence[int]) -> Any:
    """Reshape; at once if the value is an array."""
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    return bb.emit(relax.op.reshape(value, list(shape)))


def transpose(bb: relax.BlockBuilder, value: Any, axes: Sequence[int]) -> Any:
    """Permute the axes; at once if the value is an array."""
    if list(axes) == list(range(len(axes))):
        return value
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value.transpose(axes))
    return bb.emit(relax.op.permute_dims(value, list(axes)))


def astype(bb: relax.BlockBuilder, value: Any, dtype: str) -> Any:
    """Cast; at once if the value is an array, not at all if it has that type."""
    if dtype_of(value) == dtype:
        return value
    if isinstance(value, np.ndarray):
        return value.astype(dtype)
    return bb.emit(relax.op.astype(value, dtype))


def concatenate(bb: relax.BlockBuilder, values: Sequence[Any], axis: int) -> Any:
    """Join along an axis; at once if all values are arrays."""
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(list(values), axis)
    return bb.emit(relax.op.concat([emit(bb, value) for value in values], axis))


def pad_end(bb: relax.BlockBuilder, value: Any, axis: int, rank: int, amount: int) -> Any:
    """Append zeros along an axis; at once if the value is an array."""
    if amount == 0:
        return value
    widths = [(0, amount if index == axis else 0) for index in range(rank)]
    if isinstance(value, np.ndarray):
        return np.pad(value, widths)
    return bb.emit(relax.op.nn.pad(value, [width for pair in widths for width in pair]))


def add(bb: relax.BlockBuilder, left: Any, right: Any) -> Any:
    """Sum; at once if both values are arrays."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left + right
    return bb.emit(relax.op.add(emit(bb, left), emit(bb, right)))


def subtract(bb: relax.BlockBuilder, left: Any, right: Any) -> Any:
    """Take the difference; at once if both values are arrays."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left - right
    return bb.emit(relax.op.subtract(emit(bb, left), emit(bb, right)))


def multiply(bb: relax.BlockBuilder, left: Any, right: Any) -> Any:
    """Product; at once if both values are arrays."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left * right
    return bb.emit(relax.op.multiply(emit(bb, left), emit(bb, right)))


def softmax_from(node: Node, bb: relax.BlockBuilder, x: Any, axis: int) -> Any:
    """Softmax over all axes from one on."""
    shape = node.dims(x, "X")
    if axis == len(shape) - 1:
        return bb.emit(relax.op.nn.softmax(x, axis))
    flat = reshape(bb, x, [*shape[:axis], prod(shape[axis:])])
    return reshape(bb, bb.emit(relax.op.nn.softmax(flat, axis)), shape)


def take_slice(bb: relax.BlockBuilder, value: Any, axis: int, begin: int, end: int) -> Any:
    """Slice along one axis; at once if the value is an array."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value.take(range(begin, end), axis))
    return bb.emit(relax.op.strided_slice(value, [axis], [begin], [end]))
