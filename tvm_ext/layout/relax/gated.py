"""Convolutions of gated channels: the weights take up the gate, and the image is read as it is.

before: ``y = x * gate; z = conv2d(y, w)``
after:  ``z = conv2d(x, w * gate)``, where the weights are at most half as many as the elements of the image

Scaled weights are a tensor of their own, and an image may be scaled in place: of as many weights nothing is saved.

``gate`` is a number from 0 to 1 for each channel, as squeeze and excitation computes it: no weight times it overflows.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import tvm
from tvm import relax, te

from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.layout.relax.convolution import GatedWeights, convolve, known_weight
from tvm_ext.relax_utils import BROADCAST, constant, static_shape

ROUNDING = 1e-6
"""How much more than 1 a gate may be: of a hard sigmoid, six times a sixth."""


def gated_convolution_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convolve what is gated, where only this convolution reads it."""
    data, weight, shape = call.args[0], known_weight(call), static_shape(call.args[0])
    gated: Any = rewriter.definitions.get(data) if isinstance(data, relax.Var) else None
    if weight is None or shape is None or not _calls(gated, "relax.multiply") or rewriter.uses[data] != 1:
        return None
    if len(shape) != 4 or shape[0] != 1 or int(call.attrs.groups) != 1 or 2 * weight.size > prod(shape):
        return None
    for image, gate in (gated.args, reversed(gated.args)):
        source, factors = rewriter.known(image), rewriter.known(gate)
        if source is None or factors is None or not _is_gate(rewriter, gate):
            continue
        if static_shape(image) != shape or static_shape(gate) != (1, shape[1], 1, 1) or source.turned or factors.turned:
            continue
        if source.block == factors.block:
            return convolve(rewriter, call, image, weight, GatedWeights(factors.block, _scaling(rewriter, factors)))
    return None


def _scaling(rewriter: BlockedLayoutMutator, factors: Blocked) -> Any:
    def scaled(packed: relax.Expr) -> relax.Expr:
        return rewriter.emit_kernel(scaled_weight, [packed, factors.var], "scaled_weight", BROADCAST)

    return scaled


def scaled_weight(weight: te.Tensor, factors: te.Tensor) -> te.Tensor:
    """Multiply packed weights ``(O / w, C / v, KH, KW, v, w)`` by a factor of each channel, ``(1, C / v, 1, 1, v)``."""
    return te.compute(weight.shape, lambda o, c, i, j, k, p: weight[o, c, i, j, k, p] * factors[0, c, 0, 0, k])


def _is_gate(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> bool:
    """Whether a tensor is known to hold numbers from 0 to 1, up to rounding."""
    low, high = _bounds(rewriter, expr)
    return 0.0 <= low <= high <= 1.0 + ROUNDING


def _bounds(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> tuple[float, float]:
    """Find bounds of what a tensor holds, NaN apart, from how it is computed."""
    value: Any = rewriter.definitions.get(expr) if isinstance(expr, relax.Var) else None
    if _calls(value, "relax.sigmoid"):
        return 0.0, 1.0
    if _calls(value, "relax.clip"):
        low, high = (float(getattr(bound, "value", bound)) for bound in value.args[1:])
        return low, high
    number = constant(value.args[1]) if isinstance(value, relax.Call) and len(value.args) == 2 else None
    if number is None or number.size != 1:
        return -inf, inf
    operand = float(number.reshape(()))
    low, high = _bounds(rewriter, value.args[0])
    if _calls(value, "relax.maximum"):
        return max(low, operand), max(high, operand)
    if _calls(value, "relax.minimum"):
        return min(low, operand), min(high, operand)
    if operand > 0 and _calls(value, "relax.multiply"):
        return low * operand, high * operand
    if operand > 0 and _calls(value, "relax.divide"):
        return low / operand, high / operand
    return -inf, inf


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == name
