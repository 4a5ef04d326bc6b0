"""Steps of optimisers (``ai.onnx.preview.training``) and normalisation while training, as Relax expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tvm_ext.frontend.onnx.ops.base import Converter, Node, constant, dtype_of, emit


def scaled(bb: relax.BlockBuilder, value: Any, factor: Any) -> Any:
    """Multiply a tensor by a number or a tensor."""
    other = factor if isinstance(factor, relax.Expr) else constant(factor, dtype_of(value))
    return bb.emit(relax.op.multiply(value, other))


def plus(bb: relax.BlockBuilder, *values: Any) -> Any:
    """Add tensors up."""
    total = values[0]
    for value in values[1:]:
        total = bb.emit(relax.op.add(total, value))
    return total


class _Optimizer(Converter):
    """A step that updates tensors, and tensors of state that go with them.

    Inputs are the rate, the count of steps, then all tensors, all gradients, and each kind of state for all of them.
    """

    states = 1

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the new tensors, then the new states."""
        given = [emit(bb, value) for value in inputs if value is not None]
        rate, count, tensors = given[0], given[1], given[2:]
        kinds = cls.states + 2
        if len(tensors) % kinds:
            node.damaged(f"{len(tensors)} tensors are given, a multiple of {kinds} was expected")
        number = len(tensors) // kinds
        steps = [cls.step(node, bb, rate, count, tensors[index::number]) for index in range(number)]
        return node.outputs([value for column in zip(*steps, strict=True) for value in column])

    @classmethod
    def step(cls, node: Node, bb: relax.BlockBuilder, rate: Any, count: Any, tensors: Sequence[Any]) -> list[Any]:
        """Give the new tensor and its new states."""
        raise NotImplementedError(f"{cls.__name__} defines no step")


class Adagrad(_Optimizer):
    """Duchi et al., Adaptive Subgradient Methods (2011)."""

    @classmethod
    def step(cls, node: Node, bb: relax.BlockBuilder, rate: Any, count: Any, tensors: Sequence[Any]) -> list[Any]:
        """Give the new tensor and the sum of squared gradients."""
        x, gradient, squares = tensors
        decay = bb.emit(relax.op.astype(count, dtype_of(x)))
        slower = plus(bb, scaled(bb, decay, node.number("decay_factor", 0.0)), constant(1.0, dtype_of(x)))
        rate = bb.emit(relax.op.divide(rate, slower))
        gradient = plus(bb, scaled(bb, x, node.number("norm_coefficient", 0.0)), gradient)
        squares = plus(bb, squares, scaled(bb, gradient, gradient))
        size = plus(bb, bb.emit(relax.op.sqrt(squares)), constant(node.number("epsilon", 0.0), dtype_of(x)))
        move = bb.emit(relax.op.divide(scaled(bb, gradient, rate), size))
        return [bb.emit(relax.op.subtract(x, move)), squares]


class Adam(_Optimizer):
    """Kingma and Ba, Adam (2015)."""

    states = 2

    @classmethod
    def step(cls, node: Node, bb: relax.BlockBuilder, rate: Any, count: Any, tensors: Sequence[Any]) -> list[Any]:
        """Give the new tensor and the averages of gradients and of their squares."""
        x, gradient, average, squares = tensors
        dtype = dtype_of(x)
        first, second = node.number("alpha", 0.9), node.number("beta", 0.999)
        gradient = plus(bb, scaled(bb, x, node.number("norm_coefficient", 0.0)), gradient)
        average = plus(bb, scaled(bb, average, first), scaled(bb, gradient, 1.0 - first))
        squares = plus(bb, scaled(bb, squares, second), scaled(bb, scaled(bb, gradient, gradient), 1.0 - second))
        size = plus(bb, bb.emit(relax.op.sqrt(squares)), constant(node.number("epsilon", 0.0), dtype))
        steps = bb.emit(relax.op.astype(count, dtype))
        one = constant(1.0, dtype)
        rest = [
            bb.emit(relax.op.subtract(one, bb.emit(relax.op.power(constant(base, dtype), steps))))
            for base in (first, second)
        ]
        corrected = bb.emit(relax.op.divide(scaled(bb, bb.emit(relax.op.sqrt(rest[1])), rate), rest[0]))
        rate = bb.emit(relax.op.where(relax.op.greater(steps, constant(0.0, dtype)), corrected, rate))
        x = bb.emit(relax.op.subtract(x, bb.emit(relax.op.divide(scaled(bb, average, rate), size))))
        return [scaled(bb, x, 1.0 - node.number("norm_coefficient_post", 0.0)), average, squares]


class Momentum(_Optimizer):
    """Gradient descent with momentum, the standard one or Nesterov's."""

    @classmethod
    def step(cls, node: Node, bb: relax.BlockBuilder, rate: Any, count: Any, tensors: Sequence[Any]) -> list[Any]:
        """Give the new tensor and the new momentum."""
        x, gradient, momentum = tensors
        dtype = dtype_of(x)
        alpha, mode = node.number("alpha", 0.0), node.text("mode", "standard")
        if mode not in ("standard", "nesterov"):
            node.refuse(f"attribute mode is {mode!r}, only standard and nesterov are supported")
        gradient = plus(bb, scaled(bb, x, node.number("norm_coefficient", 0.0)), gradient)
        later = relax.op.greater(count, constant(0, dtype_of(count)))
        share = bb.emit(relax.op.where(later, constant(node.number("beta", 1.0), dtype), constant(1.0, dtype)))
        momentum = plus(bb, scaled(bb, momentum, alpha), scaled(bb, gradient, share))
        move = momentum if mode == "standard" else plus(bb, gradient, scaled(bb, momentum, alpha))
        return [bb.emit(relax.op.subtract(x, scaled(bb, move, rate))), momentum]


_DOMAIN = "ai.onnx.preview.training"
CONVERTERS: dict[tuple[str, str], type] = {
    (_DOMAIN, operator.__name__): operator for operator in (Adagrad, Adam, Momentum)
}
