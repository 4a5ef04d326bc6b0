"""Normalisations: over several axes, with their statistics as outputs, and by a norm."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

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
)


def moments(x: Any, epsilon: float, centred: bool) -> tuple[Any, Any]:
    """Mean and inverse standard deviation over the last axis; not ``centred``, inverse root mean square."""
    mean = relax.op.mean(x, -1, keepdims=True)
    spread = relax.op.subtract(x, mean) if centred else x
    variance = relax.op.mean(relax.op.multiply(spread, spread), -1, keepdims=True)
    return mean, relax.op.rsqrt(relax.op.add(variance, constant(epsilon, dtype_of(x))))


def normalise(node: Node, x: Any, gamma: Any, beta: Any | None, epsilon: float, centred: bool) -> Any:
    """Layer normalisation over the last axis, or by the root mean square if not ``centred``."""
    if dtype_of(x) == "float64":  # TVM has neither
        mean, inverse = moments(x, epsilon, centred)
        scaled = relax.op.multiply((relax.op.subtract(x, mean) if centred else x) * inverse, gamma)
        return scaled if beta is None else relax.op.add(scaled, beta)
    if not centred:
        return relax.op.nn.rms_norm(x, gamma, [-1], epsilon)
    if beta is None:
        beta = constant(np.zeros(node.shape(gamma, "scale")), dtype_of(x))
    return relax.op.nn.layer_norm(x, gamma, beta, [-1], epsilon)


class _Normalization(Converter):
    """Normalisation over all axes from ``axis`` on, as one over a last axis that joins them."""

    centred = True

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor, mean and inverse standard deviation."""
        x, scale = emit(bb, inputs[0]), inputs[1]
        bias = inputs[2] if cls.centred else None
        shape, dtype = node.dims(x, "X"), dtype_of(x)
        axis = node.axis("axis", len(shape), -1)
        if not all(isinstance(dim, int) for dim in shape[axis:]):
            return cls._over_open_axes(node, bb, x, scale, bias, list(range(axis, len(shape))))
        joined, stash = (*(shape[:axis] or (1,)), prod(shape[axis:])), element_type(node.integer("stash_type", 1))
        statistics = [*shape[:axis], *[1] * (len(shape) - axis)]
        parts: list[Any] = []
        for value, name in ((scale, "scale"), (bias, "B")):
            if value is None:
                parts.append(None)
                continue
            array = known(node, value)
            if node.shape(value, name) != shape[axis:]:
                if not isinstance(array, np.ndarray):
                    node.refuse(f"input {name} has shape {node.shape(value, name)}, {shape[axis:]} is supported")
                array = np.ascontiguousarray(np.broadcast_to(array, shape[axis:]))
            parts.append(emit(bb, astype(bb, reshape(bb, array, joined[-1:]), stash)))
        epsilon = node.number("epsilon", 1e-5)
        flat = astype(bb, reshape(bb, x, joined) if joined != shape else x, stash)
        result = bb.emit(normalise(node, flat, parts[0], parts[1], epsilon, cls.centred))
        result = astype(bb, result, dtype)
        outputs = [reshape(bb, result, shape) if joined != shape else result]
        if node.attributes.get("tvm_custom", {}).get("num_outputs", 1) > 1:
            outputs += [reshape(bb, emit(bb, value), statistics) for value in moments(flat, epsilon, cls.centred)]
        return node.outputs(outputs if cls.centred else outputs[:1])

    @classmethod
    def _over_open_axes(
        cls, node: Node, bb: relax.BlockBuilder, x: Any, scale: Any, bias: Any | None, axes: list[int]
    ) -> Any:
        dtype, stash = dtype_of(x), element_type(node.integer("stash_type", 1))
        data = emit(bb, astype(bb, x, stash))
        mean = bb.emit(relax.op.mean(data, axes, keepdims=True))
        spread = bb.emit(relax.op.subtract(data, mean)) if cls.centred else data
        variance = bb.emit(relax.op.mean(bb.emit(relax.op.multiply(spread, spread)), axes, keepdims=True))
        epsilon = constant(node.number("epsilon", 1e-5), stash)
        inverse = bb.emit(relax.op.rsqrt(bb.emit(relax.op.add(variance, epsilon))))
        result = bb.emit(relax.op.multiply(spread, inverse))
        result = bb.emit(relax.op.multiply(result, emit(bb, astype(bb, known(node, scale), stash))))
        if bias is not None:
            result = bb.emit(relax.op.add(result, emit(bb, astype(bb, known(node, bias), stash))))
        result = astype(bb, result, dtype)
        return node.outputs([result, mean, inverse] if cls.centred else [result])


class LayerNormalization(_Normalization):
    """Zero mean and unit variance, then scale and bias."""


class RMSNormalization(_Normalization):
    """Unit root mean square, then scale."""

    centred = False


class InstanceNormalization(onnx_frontend.InstanceNormalization):
    """Zero mean and unit variance of each channel of each sample, then scale and bias: one operator, one kernel."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        node = Node("InstanceNormalization", attr, params)
        x = emit(bb, inputs[0])
        rank = len(node.dims(x, "input"))
        if rank < 3:
            node.damaged(f"its input has {rank} dimensions, a batch, channels and places were expected")
        dtype = dtype_of(x)
        if dtype == "float64":  # TVM has none
            return super()._impl_v6(bb, inputs, attr, params)
        wide = "float32" if dtype == "bfloat16" else dtype
        operands = [emit(bb, astype(bb, known(node, value), wide)) for value in (x, *inputs[1:3])]
        normal = relax.op.nn.instance_norm(*operands, 1, list(range(2, rank)), node.number("epsilon", 1e-5))
        return astype(bb, bb.emit(normal), dtype)


class BatchNormalization(onnx_frontend.BatchNormalization):
    """Zero mean and unit variance of each channel, then scale and bias: by given statistics, or by the batch's own.

    The latter is the training mode, which exporters also write where weights are standardised.
    """

    @classmethod
    def _impl_v15(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        if not attr.get("training_mode", 0):
            return super()._impl_v15(bb, inputs, attr, params)
        return cls._by_own_statistics(Node("BatchNormalization", attr, params), bb, inputs)

    @classmethod
    def _by_own_statistics(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor, and the given statistics with a share of the batch's."""
        x, scale, bias, mean, variance = (emit(bb, value) for value in inputs[:5])
        rank = len(node.dims(x, "X"))
        axes, along = [axis for axis in range(rank) if axis != 1], [-1] + [1] * (rank - 2)
        precise = "float32" if dtype_of(x) in ("float16", "bfloat16") else dtype_of(x)
        data = emit(bb, astype(bb, x, precise))
        own_mean = bb.emit(relax.op.mean(data, axes, keepdims=True))
        spread = bb.emit(relax.op.subtract(data, own_mean))
        own_variance = bb.emit(relax.op.mean(bb.emit(relax.op.multiply(spread, spread)), axes, keepdims=True))
        shifted = bb.emit(relax.op.add(own_variance, constant(node.number("epsilon", 1e-5), precise)))
        result = bb.emit(relax.op.multiply(spread, bb.emit(relax.op.rsqrt(shifted))))
        for apply, value in ((relax.op.multiply, scale), (relax.op.add, bias)):
            result = bb.emit(apply(result, bb.emit(relax.op.reshape(emit(bb, astype(bb, value, precise)), along))))
        outputs = [astype(bb, result, dtype_of(x))]
        share = node.number("momentum", 0.9)
        for given, own in ((mean, own_mean), (variance, own_variance)):
            flat = bb.emit(relax.op.reshape(own, [-1]))
            kept = relax.op.multiply(emit(bb, astype(bb, given, precise)), constant(share, precise))
            added = relax.op.multiply(flat, constant(1 - share, precise))
            outputs.append(astype(bb, bb.emit(relax.op.add(bb.emit(kept), bb.emit(added))), dtype_of(given)))
        return node.outputs(outputs)


class MeanVarianceNormalization(Converter):
    """Zero mean and unit variance over some axes; where all elements are equal, nothing is divided by zero."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor."""
        x, axes = emit(bb, inputs[0]), [int(axis) for axis in node.attributes.get("axes", (0, 2, 3))]
        dtype = dtype_of(x)
        x = emit(bb, astype(bb, x, "float32" if dtype in ("float16", "bfloat16") else dtype))  # squares overflow early
        centred = bb.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
        variance = bb.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
        deviation = relax.op.add(relax.op.sqrt(variance), constant(1e-9, dtype_of(x)))
        return astype(bb, bb.emit(relax.op.divide(centred, deviation)), dtype)


class LpNormalization(Converter):
    """Division by the 1-norm or the 2-norm along an axis; a zero vector stays zero."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor."""
        x, order = emit(bb, inputs[0]), node.integer("p", 2)
        axis = node.axis("axis", len(node.dims(x, "input")), -1)
        if order not in (1, 2):
            node.damaged(f"attribute p is {order}, 1 or 2 was expected")
        dtype = dtype_of(x)
        x = astype(bb, x, "float32" if dtype in ("float16", "bfloat16") else dtype)  # squares overflow early
        powers = relax.op.abs(x) if order == 1 else relax.op.multiply(x, x)
        norm = relax.op.sum(powers, axis, keepdims=True)
        norm = bb.emit(norm if order == 1 else relax.op.sqrt(norm))
        zero, one = (constant(value, dtype_of(x)) for value in (0.0, 1.0))
        return astype(bb, bb.emit(relax.op.divide(x, relax.op.where(relax.op.equal(norm, zero), one, norm))), dtype)


class LRN(Converter):
    """Division by a power of the mean square over neighbouring channels; of an even number of them one more behind."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor."""
        x, size = emit(bb, inputs[0]), node.integer("size", 1)
        if size % 2 and x.ty.ndim in (3, 4) and "16" not in dtype_of(x):
            convert = onnx_frontend.LocalResponseNormalization.get_converter(13)
            return convert(bb, [x], dict(node.attributes), node.parameters)
        shape, dtype = node.shape(x, "X"), dtype_of(x)
        if size < 1 or len(shape) < 2:
            node.damaged(f"size is {size} and X has shape {shape}, a positive size and channels were expected")
        before = (size - 1) // 2
        x = astype(bb, x, "float32" if dtype in ("float16", "bfloat16") else dtype)  # squares overflow early
        squares = reshape(bb, bb.emit(relax.op.multiply(x, x)), [shape[0], 1, shape[1], prod(shape[2:])])
        # Of all elements of the window, those in the padding counted.
        mean = relax.op.nn.avg_pool2d(
            squares, [size, 1], padding=[before, 0, size - 1 - before, 0], count_include_pad=True
        )
        scaled = relax.op.multiply(bb.emit(mean), constant(node.number("alpha", 1e-4), dtype_of(x)))
        base = relax.op.add(bb.emit(scaled), constant(node.number("bias", 1.0), dtype_of(x)))
        power = relax.op.power(bb.emit(base), constant(node.number("beta", 0.75), dtype_of(x)))
        return astype(bb, bb.emit(relax.op.divide(x, reshape(bb, bb.emit(power), shape))), dtype)


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "BatchNormalization"): BatchNormalization,
    ("", "InstanceNormalization"): InstanceNormalization,
    ("", "LRN"): LRN,
    ("", "LayerNormalization"): LayerNormalization,
    ("", "LpNormalization"): LpNormalization,
    ("", "MeanVarianceNormalization"): MeanVarianceNormalization,
    ("", "RMSNormalization"): RMSNormalization,
}
