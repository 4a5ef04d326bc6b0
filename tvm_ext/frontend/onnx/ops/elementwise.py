"""Elementwise operators and rearrangements whose types or modes TVM's converters do not cover."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    astype,
    constant,
    dtype_of,
    element_type,
    emit,
    known,
    reshape,
    subtract,
    transpose,
)
from tvm_ext.frontend.onnx.ops.extents import as_tensor, counted, normal, number, reshaped


class Pow(Converter):
    """Power; base and exponent may be of different types, and integers. Small constant powers become products."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the power, of the base's type."""
        base, exponent = inputs[0], known(node, inputs[1])
        dtype = dtype_of(base)
        if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.ndim <= max(base.ty.ndim, 0):
            match float(exponent.item()):
                case 1.0:
                    return base
                case 2.0:
                    return relax.op.multiply(base, base)
                case 3.0:
                    return relax.op.multiply(relax.op.multiply(base, base), base)
                case 0.5 if dtype.startswith("float"):
                    # A power of -inf is inf, which has no square root.
                    below = bb.emit(relax.op.equal(base, constant(-np.inf, dtype)))
                    return relax.op.where(below, constant(np.inf, dtype), bb.emit(relax.op.sqrt(base)))
        # TVM has a power of floats only; float64 holds every integer power up to 2 to the 53rd exactly.
        real = dtype if dtype.startswith("float") and dtype_of(exponent) != "float64" else "float64"
        power = relax.op.power(astype(bb, base, real), emit(bb, astype(bb, exponent, real)))
        if np.issubdtype(np.dtype(dtype), np.integer):
            power = relax.op.trunc(power)
        return astype(bb, bb.emit(power), dtype)


class IsInf(Converter):
    """Whether an element is infinite, of either sign or of one."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the booleans."""
        x, dtype = inputs[0], dtype_of(inputs[0])
        positive, negative = node.integer("detect_positive", 1), node.integer("detect_negative", 1)
        high, low = (relax.op.equal(x, constant(sign * np.inf, dtype)) for sign in (1, -1))
        if positive and negative:
            return relax.op.logical_or(high, low)
        if positive or negative:
            return high if positive else low
        return relax.op.zeros(list(node.dims(x, "X")), "bool")


class Sign(Converter):
    """1, 0 or -1; a number without a sign is 0, or more."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the signs."""
        x = emit(bb, inputs[0])
        if not dtype_of(x).startswith("uint"):
            return relax.op.sign(x)
        return relax.op.minimum(x, constant(1, dtype_of(x)))


class Elu(Converter):
    """Exponential linear unit, of any float type."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        return exponential_unit(inputs[0], node.number("alpha", 1.0), 1.0)


class Selu(Converter):
    """Scaled exponential linear unit, of any float type."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        alpha = node.number("alpha", 1.67326319217681884765625)
        return exponential_unit(inputs[0], alpha, node.number("gamma", 1.05070102214813232421875))


def exponential_unit(x: Any, alpha: float, gamma: float) -> Any:
    """Gamma times x where x is positive, alpha (exp(x) - 1) elsewhere."""
    dtype = dtype_of(x)
    zero, one = constant(0.0, dtype), constant(1.0, dtype)
    tail = relax.op.subtract(relax.op.exp(relax.op.minimum(x, zero)), one)
    total = relax.op.add(relax.op.maximum(x, zero), relax.op.multiply(constant(alpha, dtype), tail))
    return total if gamma == 1.0 else relax.op.multiply(constant(gamma, dtype), total)


class Dropout(Converter):
    """Identity at inference, or with a ratio of 0; the mask is all true."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the tensor and the mask."""
        if inputs[2] is not None:
            training, ratio = node.array(inputs[2]), None if inputs[1] is None else node.array(inputs[1])
            if (training is None or training.any()) and (ratio is None or ratio.any()):
                node.refuse("dropout while training (input training_mode) is not supported")
        mask = relax.op.ones(list(node.dims(inputs[0], "data")), "bool")
        return node.outputs([inputs[0], mask])


class OneHot(Converter):
    """Rows of a table of two values, the index on a new axis."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the encoded indices."""
        indices, asked = inputs[0], node.array(inputs[1])
        rank = len(node.dims(indices, "indices"))
        axis = node.axis("axis", rank + 1, -1)
        values = known(node, inputs[2])
        off, on = (
            emit(bb, values[index]) if isinstance(values, np.ndarray) else _element(bb, values, index)
            for index in (0, 1)
        )
        index = bb.emit(relax.op.expand_dims(astype(bb, emit(bb, indices), "int64"), axis))
        if asked is not None:
            depth = int(node.scalar(inputs[1], "depth"))
            positions = np.arange(depth).reshape(-1, *[1] * (rank - axis))
            ahead, behind = (constant(numbers, "int64") for numbers in (positions, positions - depth))
        else:
            extent = counted(node, bb, inputs[1])
            ahead = bb.emit(relax.op.arange(0, extent, 1, "int64"))
            ahead = bb.emit(relax.op.reshape(ahead, relax.ShapeExpr([extent, *[1] * (rank - axis)])))
            behind = bb.emit(relax.op.subtract(ahead, as_tensor(bb, extent)))
        # Negative indices count from the end; those out of range match no position.
        hit = relax.op.logical_or(relax.op.equal(index, ahead), relax.op.equal(index, behind))
        return relax.op.where(hit, on, off)


def _element(bb: relax.BlockBuilder, values: Any, index: int) -> Any:
    return bb.emit(relax.op.take(values, constant(index, "int64"), axis=0))


class EyeLike(Converter):
    """Ones on a diagonal, in the shape of the input."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the matrix, a constant where the shape is known."""
        shape = node.dims(inputs[0], "input")
        dtype = element_type(int(node.attributes["dtype"])) if "dtype" in node.attributes else dtype_of(inputs[0])
        if len(shape) != 2:
            node.damaged(f"input has shape {shape}, 2 dimensions were expected")
        offset = node.integer("k", 0)
        if all(isinstance(size, int) for size in shape):
            return constant(np.eye(*shape, offset), dtype)
        rows, columns = (bb.emit(relax.op.arange(0, size, 1, "int64")) for size in shape)
        rows = bb.emit(relax.op.add(reshape(bb, rows, (shape[0], 1)), constant(offset, "int64")))
        return relax.op.astype(bb.emit(relax.op.equal(rows, reshape(bb, columns, (1, shape[1])))), dtype)


class SpaceToDepth(Converter):
    """Blocks of pixels to channels, with the block (DCR) or the channel (CRD) first."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the rearranged tensor."""
        x, size, mode = inputs[0], node.integer("blocksize", 1), node.text("mode", "DCR")
        batch, channels, height, width = node.dims(x, "input")
        if mode not in ("DCR", "CRD"):
            node.refuse(f"attribute mode is {mode!r}, only DCR and CRD are supported")
        if size < 1 or any(isinstance(extent, int) and extent % size for extent in (height, width)):
            node.damaged(f"blocks of {size} do not divide an input of {height} by {width}")
        batch, channels, rows, columns = (normal(extent) for extent in (batch, channels, height // size, width // size))
        x = bb.emit(reshaped(bb, emit(bb, x), [batch, channels, rows, number(size), columns, number(size)]))
        x = transpose(bb, x, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
        return reshape(bb, x, (batch, normal(channels * size * size), rows, columns))


class ReverseSequence(Converter):
    """Each sequence of a batch reversed up to its own length."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the reversed sequences."""
        x = emit(bb, inputs[0])
        shape = node.dims(x, "input")
        time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
        if {time, batch} != {0, 1} or len(shape) < 2:
            node.damaged(f"time_axis {time} and batch_axis {batch} of shape {shape}; they have to be 0 and 1")
        lengths = astype(bb, known(node, inputs[1]), "int64")
        steps, spread = shape[time], (-1, 1) if batch == 0 else (1, -1)
        known_steps = isinstance(steps, int)
        step: Any = np.arange(steps) if known_steps else bb.emit(relax.op.arange(0, steps, 1, "int64"))
        step = reshape(bb, step, spread[::-1])
        last = reshape(bb, lengths, spread)
        if isinstance(last, np.ndarray) and known_steps:
            source: Any = np.where(step < last, last - 1 - step, step)
        else:
            last, step = emit(bb, last), emit(bb, step)
            mirrored = subtract(bb, subtract(bb, last, step), np.array(1))
            source = bb.emit(relax.op.where(relax.op.less(step, last), mirrored, step))
        # gather_elements takes an index for every element: the same for all features of a step.
        rest = [1] * (len(shape) - 2)
        source = emit(bb, reshape(bb, source, (*shape[:2], *rest)))
        if rest:
            source = bb.emit(relax.op.broadcast_to(source, shape))
        return relax.op.gather_elements(x, source, time)


class Hardmax(Converter):
    """One where the first of the largest elements along an axis is, and zero elsewhere."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._along(Node("Hardmax", attr, params), bb, inputs, 1)

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._along(Node("Hardmax", attr, params), bb, inputs, -1)

    @staticmethod
    def _along(node: Node, bb: relax.BlockBuilder, inputs: Any, usual: int) -> Any:
        x = emit(bb, inputs[0])
        shape = node.dims(x, "input")
        axis = node.axis("axis", len(shape), usual)
        whole = usual == 1  # before opset 13: all axes from this one on are one
        rows = reshape(bb, x, (*shape[:axis], -1)) if whole else x
        along = axis if not whole else len(shape[:axis])
        places = bb.emit(relax.op.argmax(rows, along, keepdims=True))
        extents = list(rows.ty.shape)
        spread = [1] * len(extents)
        spread[along] = extents[along]
        numbers = reshape(bb, bb.emit(relax.op.arange(0, extents[along], 1, "int64")), spread)
        found = astype(bb, bb.emit(relax.op.equal(numbers, places)), dtype_of(x))
        return reshape(bb, found, shape) if whole else found


_OPERATORS = (Dropout, Elu, EyeLike, Hardmax, IsInf, OneHot, Pow, ReverseSequence, Selu, Sign, SpaceToDepth)
CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in _OPERATORS}
