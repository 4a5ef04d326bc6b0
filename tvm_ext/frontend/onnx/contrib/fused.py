"""Fused operators that onnxruntime's graph optimiser puts into models, as the operators they stand for."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    constant,
    dtype_of,
    emit,
    known,
    softmax_from,
    take_slice,
)
from tvm_ext.frontend.onnx.ops.normalization import moments, normalise

_CONV_OPSET = 11
_GEMM_OPSET = 13


class FusedMatMul(Converter):
    """Product of transposed operands, scaled."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the product."""
        operands = [
            cls._transposed(node, bb, inputs[index], name, node.integer(f"trans{name}", 0), batch)
            for index, (name, batch) in enumerate(
                (("A", node.integer("transBatchA", 0)), ("B", node.integer("transBatchB", 0)))
            )
        ]
        product = relax.op.matmul(*operands)
        alpha = node.number("alpha", 1.0)
        return product if alpha == 1.0 else relax.op.multiply(product, constant(alpha, dtype_of(inputs[0])))

    @staticmethod
    def _transposed(node: Node, bb: relax.BlockBuilder, value: Any, name: str, matrix: int, batch: int) -> Any:
        rank = len(node.dims(value, name))
        if rank < 2:
            return value
        order = list(range(rank))
        if batch:
            # The first axis moves next to the last: (2, 0, 1, 3) of a tensor (d, b1, b2, k) read as (b1, b2, d, k).
            order = [*range(1, rank - 1), 0, rank - 1]
        if matrix:
            order[-2:] = reversed(order[-2:])
        return value if order == sorted(order) else bb.emit(relax.op.permute_dims(value, order))


def activate(node: Node, bb: relax.BlockBuilder, x: Any, name: str, parameters: list[float]) -> Any:
    """Apply the activation that an operator was fused with.

    Raises
    ------
    UnsupportedOperatorError
        If it is not one that onnxruntime fuses.
    """
    dtype = dtype_of(x)
    match name:
        case "":
            return x
        case "Relu":
            return relax.op.nn.relu(x)
        case "Tanh":
            return relax.op.tanh(x)
        case "Sigmoid":
            return relax.op.sigmoid(x)
        case "LeakyRelu":
            return relax.op.nn.leakyrelu(x, parameters[0] if parameters else 0.01)
        case "Clip" if len(parameters) == 2:
            return relax.op.clip(x, parameters[0], parameters[1])
        case "HardSigmoid":
            alpha, beta = parameters if len(parameters) == 2 else (0.2, 0.5)
            line = relax.op.add(relax.op.multiply(x, constant(alpha, dtype)), constant(beta, dtype))
            return relax.op.clip(line, 0.0, 1.0)
    node.refuse(f"activation {name!r} with {len(parameters)} parameters is not supported")


class FusedConv(Converter):
    """Convolution, a tensor to add, and an activation."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activated convolution."""
        convert = onnx_frontend.Conv.get_converter(_CONV_OPSET)
        operands = onnx_frontend.onnx_input([inputs[0], inputs[1], inputs[2]])
        result = emit(bb, convert(bb, operands, dict(node.attributes), node.parameters))
        if inputs[3] is not None:
            result = bb.emit(relax.op.add(result, inputs[3]))
        return activate(node, bb, result, node.text("activation"), node.numbers("activation_params"))


class FusedGemm(Converter):
    """Product of matrices, a bias and an activation."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activated product."""
        convert = onnx_frontend.Gemm.get_converter(_GEMM_OPSET)
        operands = onnx_frontend.onnx_input([inputs[0], inputs[1], inputs[2]])
        result = emit(bb, convert(bb, operands, dict(node.attributes), node.parameters))
        names = ("activation_alpha", "activation_beta")
        parameters = [node.number(name, 0.0) for name in names if name in node.attributes]
        return activate(node, bb, result, node.text("activation"), parameters)


class Gelu(Converter):
    """Gaussian error linear unit."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        return relax.op.nn.gelu(inputs[0])


class BiasGelu(Converter):
    """Gaussian error linear unit of a sum."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        return relax.op.nn.gelu(add(bb, inputs[0], inputs[1]))


class FastGelu(Converter):
    """Gaussian error linear unit by its approximation with a hyperbolic tangent, of a sum if there is a bias."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        return relax.op.nn.gelu_tanh(inputs[0] if inputs[1] is None else add(bb, inputs[0], inputs[1]))


class QuickGelu(Converter):
    """X sigmoid(alpha x)."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the activation."""
        x, alpha = inputs[0], node.number("alpha", 1.702)
        scaled = x if alpha == 1.0 else relax.op.multiply(x, constant(alpha, dtype_of(x)))
        return relax.op.multiply(x, relax.op.sigmoid(scaled))


class BiasSplitGelu(Converter):
    """Left half of a sum, gated by the activated right half."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the gated half."""
        total = add(bb, inputs[0], inputs[1])
        shape = node.dims(total, "X")
        axis = len(shape) - 1
        half = node.fixed(shape[axis], "X", axis) // 2
        left, right = (take_slice(bb, total, axis, begin, begin + half) for begin in (0, half))
        return relax.op.multiply(left, relax.op.nn.gelu(right))


class BiasAdd(Converter):
    """Sum of a tensor, a bias and a residual."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the sum."""
        return relax.op.add(add(bb, inputs[0], inputs[1]), inputs[2])


class BiasSoftmax(Converter):
    """Softmax of a sum, over all axes from ``axis`` on."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the probabilities."""
        data, bias = inputs[0], inputs[1]
        axis = node.axis("axis", len(node.dims(data, "data")), 1)
        return softmax_from(node, bb, add(bb, data, bias), axis)


class _SkipNormalization(Converter):
    """Sum of two tensors and a bias, normalised over the last axis; the sum is an output too."""

    centred = True

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised sum, mean, inverse standard deviation and the sum."""
        x, skip, gamma = inputs[0], inputs[1], inputs[2]
        beta, bias = (inputs[3], inputs[4]) if cls.centred else (None, inputs[3])
        total = add(bb, x, skip)
        if bias is not None:
            total = add(bb, total, bias)
        epsilon = node.number("epsilon", 1e-12)
        result = bb.emit(normalise(node, total, gamma, beta, epsilon, cls.centred))
        count = node.attributes.get("tvm_custom", {}).get("num_outputs", 1)
        if count == 1:
            return result
        mean, inverse = (emit(bb, value) for value in moments(total, epsilon, cls.centred))
        return node.outputs([result, mean, inverse, total])


class SkipLayerNormalization(_SkipNormalization):
    """Layer normalisation of a residual sum."""


class SkipSimplifiedLayerNormalization(_SkipNormalization):
    """Root-mean-square normalisation of a residual sum."""

    centred = False


class SimplifiedLayerNormalization(Converter):
    """Root-mean-square normalisation over the last axis."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor and the inverse standard deviation."""
        x, gamma = emit(bb, inputs[0]), inputs[1]
        rank = len(node.dims(x, "X"))
        if node.axis("axis", rank, -1) != rank - 1:
            node.refuse(f"attribute axis is {node.integer('axis', -1)}, only the last axis is supported")
        epsilon = node.number("epsilon", 1e-5)
        result = bb.emit(normalise(node, x, gamma, None, epsilon, centred=False))
        return node.outputs([result, emit(bb, moments(x, epsilon, centred=False)[1])])


class EmbedLayerNormalization(Converter):
    """Sum of word, position and segment embeddings, layer normalised."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised sum, the number of words of each sequence, and the sum."""
        words, segments, word_table, position_table, segment_table, gamma, beta, mask, positions = (
            inputs[index] for index in range(9)
        )
        batch, length = node.dims(words, "input_ids")
        if positions is None and not isinstance(length, int):
            places = bb.emit(relax.op.arange(0, length, 1, "int64"))
            position = bb.emit(relax.op.take(emit(bb, position_table), places, axis=0))
        elif positions is None:
            position = take_slice(bb, known(node, position_table), 0, 0, length)
        else:
            position = bb.emit(relax.op.take(position_table, positions, axis=0))
        total = add(bb, bb.emit(relax.op.take(word_table, words, axis=0)), position)
        if segments is not None:
            total = add(bb, total, bb.emit(relax.op.take(segment_table, segments, axis=0)))
        result = bb.emit(normalise(node, total, gamma, beta, node.number("epsilon", 1e-12), centred=True))
        if mask is None:
            count: Any = relax.op.zeros([batch], "int32")
        else:
            count = astype(bb, bb.emit(relax.op.sum(mask, axis=1)), "int32")
        return node.outputs([result, count, total])


class GroupNorm(Converter):
    """Group normalisation, channels first or last, with an optional SiLU."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the normalised tensor."""
        x, gamma, beta = inputs[0], inputs[1], inputs[2]
        rank = len(node.dims(x, "X"))
        channels_last = node.integer("channels_last", 1)
        axis = rank - 1 if channels_last else 1
        spatial = [index for index in range(1, rank) if index != axis]
        dtype = dtype_of(x)
        gamma, beta = (astype(bb, known(node, value), dtype) for value in (gamma, beta))
        result = relax.op.nn.group_norm(
            x, emit(bb, gamma), emit(bb, beta), node.integer("groups", 1), axis, spatial, node.number("epsilon", 1e-5)
        )
        return relax.op.nn.silu(result) if node.integer("activation", 0) else result


_OPERATORS = (
    BiasAdd,
    BiasGelu,
    BiasSoftmax,
    BiasSplitGelu,
    EmbedLayerNormalization,
    FastGelu,
    FusedConv,
    FusedGemm,
    FusedMatMul,
    Gelu,
    GroupNorm,
    QuickGelu,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
CONVERTERS: dict[tuple[str, str], type] = {
    **{("com.microsoft", operator.__name__): operator for operator in _OPERATORS},
    ("com.microsoft", "TransposeMatMul"): FusedMatMul,
    # onnxruntime defines it in the default domain.
    ("", "SimplifiedLayerNormalization"): SimplifiedLayerNormalization,
}
