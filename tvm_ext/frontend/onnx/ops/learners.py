"""Scaling, linear models and encodings of scikit-learn, as it is exported to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import Converter, Node, add, astype, constant, dtype_of, emit

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def array_of(value: Any, dtype: str | None = None) -> np.ndarray:
    """Give a list, a number or a tensor of an attribute as an array."""
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array if dtype is None else array.astype(dtype)


def rows_of(node: Node, bb: relax.BlockBuilder, value: Any) -> Any:
    """Give an input as rows of floats; a vector is one row."""
    x = emit(bb, value)
    x = astype(bb, x, "float64" if dtype_of(x) == "float64" else "float32")
    shape = node.dims(x, "X")
    if len(shape) == 1:
        return bb.emit(relax.op.reshape(x, [1, shape[0]]))
    if len(shape) != 2:
        node.refuse(f"its input has {len(shape)} dimensions, rows and columns are supported")
    return x


def transformed(node: Node, bb: relax.BlockBuilder, scores: Any, how: str) -> Any:
    """Apply what the operator calls ``post_transform`` to scores of shape (rows, targets).

    Raises
    ------
    UnsupportedOperatorError
        If it is one that no converter writes.
    """
    match how:
        case "" | "NONE":
            return scores
        case "LOGISTIC":
            return bb.emit(relax.op.sigmoid(scores))
        case "SOFTMAX":
            return bb.emit(relax.op.nn.softmax(scores, -1))
    node.refuse(f"its post_transform is {how}; NONE, LOGISTIC and SOFTMAX are supported")


def labelled(bb: relax.BlockBuilder, scores: Any, labels: list[int]) -> Any:
    """Give the label of the largest score of each row, the first of equal ones."""
    best = bb.emit(relax.op.argmax(scores, 1))
    return bb.emit(relax.op.take(constant(labels, "int64"), best, 0))


def _product(node: Node, bb: relax.BlockBuilder, x: Any, targets: int) -> Any:
    columns, coefficients = node.dims(x, "X")[1], np.array(node.numbers("coefficients"))
    if not isinstance(columns, int) or coefficients.size != targets * columns:
        node.damaged(f"it has {coefficients.size} coefficients for {targets} targets and {columns} columns")
    matrix = constant(coefficients.reshape(targets, columns).T.copy(), dtype_of(x))
    product, intercepts = bb.emit(relax.op.matmul(x, matrix)), node.numbers("intercepts")
    if len(intercepts) not in (0, targets):
        node.damaged(f"it has {len(intercepts)} intercepts for {targets} targets")
    return add(bb, product, constant(intercepts, dtype_of(x))) if intercepts else product


class LinearRegressor(Converter):
    """Products with coefficients."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give a value for each row and target."""
        x = rows_of(node, bb, inputs[0])
        scores = _product(node, bb, x, node.integer("targets", 1))
        return astype(bb, transformed(node, bb, scores, node.text("post_transform", "NONE")), "float32")


class LinearClassifier(Converter):
    """Products with the coefficients of each class, and the class of the largest."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the class of each row, and the scores of all classes."""
        x, labels = rows_of(node, bb, inputs[0]), node.integers("classlabels_ints")
        if len(labels) < 2 or len(node.numbers("intercepts")) not in (0, len(labels)):
            node.refuse("it has no integer as label of each class that it has coefficients of")
        scores = _product(node, bb, x, len(labels))
        found = transformed(node, bb, scores, node.text("post_transform", "NONE"))
        return node.outputs([labelled(bb, scores, labels), astype(bb, found, "float32")])


class Scaler(Converter):
    """``(x - offset) * scale``, of columns or of all."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the scaled columns."""
        x = emit(bb, inputs[0])
        x = astype(bb, x, "float64" if dtype_of(x) == "float64" else "float32")
        offset, scale = node.numbers("offset") or [0.0], node.numbers("scale") or [1.0]
        moved = bb.emit(relax.op.subtract(x, constant(offset, dtype_of(x))))
        return astype(bb, bb.emit(relax.op.multiply(moved, constant(scale, dtype_of(x)))), "float32")


class Normalizer(Converter):
    """Rows divided by their largest element, the sum of magnitudes or the root of the sum of squares, but by no 0."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the divided rows."""
        x, norm = rows_of(node, bb, inputs[0]), node.text("norm", "MAX")
        match norm:
            case "MAX":
                size = bb.emit(relax.op.max(x, 1, keepdims=True))
            case "L1":
                size = bb.emit(relax.op.sum(bb.emit(relax.op.abs(x)), 1, keepdims=True))
            case "L2":
                squares = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(x, x)), 1, keepdims=True))
                size = bb.emit(relax.op.sqrt(squares))
            case _:
                node.damaged(f"its norm is {norm}")
        is_zero = bb.emit(relax.op.equal(size, constant(0.0, dtype_of(x))))
        divisor = bb.emit(relax.op.where(is_zero, constant(1.0, dtype_of(x)), size))
        return astype(bb, bb.emit(relax.op.divide(x, divisor)), "float32")


class Imputer(Converter):
    """A value, or NaN, replaced by another one for each column."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the input without missing values."""
        x = emit(bb, inputs[0])
        dtype = dtype_of(x)
        values: Sequence[float]
        if "float" in dtype:
            values, missing = node.numbers("imputed_value_floats"), node.number("replaced_value_float", 0.0)
        else:
            values, missing = node.integers("imputed_value_int64s"), node.integer("replaced_value_int64", 0)
        if not values:
            node.damaged(f"it names no value to take the place of a missing {dtype}")
        if missing != missing:
            is_missing = bb.emit(relax.op.isnan(x))
        else:
            is_missing = bb.emit(relax.op.equal(x, constant(missing, dtype)))
        return relax.op.where(is_missing, constant(values, dtype), x)


class FeatureVectorizer(Converter):
    """Columns of several inputs side by side, as floats."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the joined rows."""
        rows = [astype(bb, rows_of(node, bb, value), "float32") for value in inputs if value is not None]
        return relax.op.concat(rows, 1)


class LabelEncoder(Converter):
    """Numbers for numbers, looked up in a list of keys; NaN is found by NaN."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the value of each key, or the default."""
        x = emit(bb, inputs[0])
        keys, values = (cls._list(node, name) for name in ("keys", "values"))
        if len(keys) != len(values) or not len(keys):
            node.damaged(f"it has {len(keys)} keys and {len(values)} values")
        if len(np.unique(keys)) < len(keys):
            node.refuse("a key of it is repeated, of which ONNX takes the last one and onnxruntime the first")
        default = node.attributes.get("default_tensor")
        if default is None:
            is_real = values.dtype.kind == "f"
            default = node.number("default_float", -0.0) if is_real else node.integer("default_int64", -1)
        default = array_of(default).astype(values.dtype).reshape(-1)
        wide = bb.emit(relax.op.expand_dims(x, -1))
        same = bb.emit(relax.op.equal(wide, constant(keys.astype(dtype_of(x)))))
        if keys.dtype.kind == "f" and np.isnan(keys).any():
            both = bb.emit(relax.op.logical_and(bb.emit(relax.op.isnan(wide)), constant(np.isnan(keys))))
            same = bb.emit(relax.op.logical_or(same, both))
        found = astype(bb, same, "int32")
        place = bb.emit(relax.op.argmax(found, -1))
        is_found = bb.emit(relax.op.greater(bb.emit(relax.op.max(found, -1)), constant(0, "int32")))
        value = bb.emit(relax.op.take(constant(values), place, 0))
        return relax.op.where(is_found, value, constant(default[0]))

    @staticmethod
    def _list(node: Node, name: str) -> np.ndarray:
        for kind, dtype in (("int64s", "int64"), ("floats", "float32"), ("tensor", None)):
            if f"{name}_{kind}" in node.attributes:
                return array_of(node.attributes[f"{name}_{kind}"], dtype)
        node.refuse(f"its {name} are no numbers")


class OneHotEncoder(Converter):
    """Numbers as rows of 0 and a 1 at their place in a list; of those that are not in it, zeros alone."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give an axis of categories after the others."""
        if "cats_int64s" not in node.attributes:
            node.refuse("its categories are no numbers (cats_int64s)")
        if not node.integer("zeros", 1):
            node.refuse("with zeros=0 a number that is no category is an error, which no run finds; export it with 1")
        categories = array_of(node.attributes["cats_int64s"], "int64")
        x = astype(bb, emit(bb, inputs[0]), "int64")
        same = bb.emit(relax.op.equal(bb.emit(relax.op.expand_dims(x, -1)), constant(categories)))
        return astype(bb, same, "float32")


_OPERATORS = (
    FeatureVectorizer,
    Imputer,
    LabelEncoder,
    LinearClassifier,
    LinearRegressor,
    Normalizer,
    OneHotEncoder,
    Scaler,
)
CONVERTERS: dict[tuple[str, str], type] = {("ai.onnx.ml", operator.__name__): operator for operator in _OPERATORS}
