"""Rules for models with integer operators (ONNX's QLinearConv and its kin) in the form in which they are imported.

before: ``astype(clip(round(float(conv2d(int32(x) - zx, w) + b) * m) + zy, 0, 255), "uint8")``
after:  as :mod:`tvm_ext.quantized.relax.integer_arithmetic` describes

The form has one operator for each step, and each step is noted until the cast to 8 bits, where the whole is emitted. A
step that is followed by something else is computed as the model has it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from tvm_ext.quantized.relax.convolutions import convolve, has_integer_kernel
from tvm_ext.quantized.relax.mutator import SIGNED_OFFSET, IntegerMutator, Rule
from tvm_ext.quantized.relax.rules import along_channels, multiply
from tvm_ext.quantized.relax.values import ACTIVATION_TYPES, Quantized, as_bytes
from tvm_ext.relax_utils import constant, open_shape, scalar, static_shape


def _astype(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    data, dtype = call.args[0], str(call.ty.dtype)
    source = str(data.ty.dtype)
    if dtype == "int32" and source in ACTIVATION_TYPES:
        value = rewriter.activation(data, 1.0, 0)
        if value is not None:
            shift = SIGNED_OFFSET if source == "int8" else 0
            rewriter.centred[var] = Quantized(value.data, 1.0, shift)
        return value is not None
    if dtype == "float32" and source == "int32" and data in rewriter.totals:
        rewriter.sums[var] = rewriter.totals[data]
        return True
    if dtype in ACTIVATION_TYPES and data in rewriter.rounded:
        total, zero_point, clipped = rewriter.rounded[data]
        limits = np.iinfo(dtype)
        if clipped != (limits.min, limits.max):
            return False
        shift = SIGNED_OFFSET if dtype == "int8" else 0
        rewriter.integers[var] = rewriter.requantize(total, 1.0, zero_point + shift)
        return True
    return False


def _subtract(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    value, shift = rewriter.centred.get(call.args[0]), scalar(call.args[1])
    if value is None:
        return False
    if shift is None and isinstance(call.args[1], relax.Var):
        shape = static_shape(call.args[1])
        if shape is None or any(extent != 1 for extent in shape) or len(shape) > len(open_shape(call) or ()):
            return False
        rewriter.moved[var] = value, call.args[1]
        return True
    if not isinstance(shift, int) or not 0 <= value.zero_point + shift <= 255:
        return False
    rewriter.centred[var] = replace(value, zero_point=value.zero_point + shift)
    return True


def _weights(expr: relax.Expr) -> np.ndarray | None:
    """Constant int32 weights that are 8-bit integers less a zero point."""
    weight = constant(expr)
    return None if weight is None or weight.dtype != np.int32 else as_bytes(weight)


def _convolution(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    weight = _weights(call.args[1])
    if weight is None or not has_integer_kernel(call, weight):
        return False
    ones = np.ones(weight.shape[0], np.float32)
    if call.args[0] in rewriter.moved:
        value, shift = rewriter.moved[call.args[0]]
        total = convolve(rewriter, value, weight, ones, call, rewriter.visit_expr(shift))
    elif call.args[0] in rewriter.centred:
        total = convolve(rewriter, rewriter.centred[call.args[0]], weight, ones, call)
    else:
        return False
    if total is None:
        return False
    rewriter.totals[var] = rewriter.decide(call.op.name.removeprefix("relax."), total)
    return True


def _matmul(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    weight = _weights(call.args[1])
    if weight is None or str(call.ty.dtype) != "int32":
        return False
    ones = np.ones(weight.shape[-1], np.float32)
    if call.args[0] in rewriter.moved:
        value, shift = rewriter.moved[call.args[0]]
        total = multiply(rewriter, value, weight, ones, rewriter.visit_expr(shift))
    elif call.args[0] in rewriter.centred:
        total = multiply(rewriter, rewriter.centred[call.args[0]], weight, ones)
    else:
        return False
    if total is None:
        return False
    rewriter.totals[var] = rewriter.decide("matmul", total)
    return True


def _add(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    left, right = call.args
    if left in rewriter.totals:
        value, bias = rewriter.totals[left], rewriter.constant_values(right)
        per_channel = None if bias is None or bias.dtype != np.int32 else along_channels(bias, value)
        if per_channel is None:
            return False
        shift = value.shift + per_channel.astype(np.int64)
        if not rewriter.fits(value.weights, shift):
            return False
        rewriter.totals[var] = rewriter.decide("add", replace(value, shift=shift))
        return True
    if left in rewriter.rounded:
        value, zero_point, clipped = rewriter.rounded[left]
        added = scalar(right)
        if added is None or not float(added).is_integer() or clipped is not None:
            return False
        rewriter.rounded[var] = value, zero_point + int(added), None
    return False


def _multiply(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    value, factor = rewriter.sums.get(call.args[0]), rewriter.constant_values(call.args[1])
    if (
        value is None
        or factor is None
        or factor.dtype != np.float32
        or not (value.scale == 1).all()
        or value.is_clipped
    ):
        return False
    per_channel = along_channels(factor, value)
    if per_channel is None:
        return False
    rewriter.sums[var] = replace(value, scale=per_channel)
    return True


def _round(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    value = rewriter.sums.get(call.args[0])
    if value is not None:
        rewriter.rounded[var] = value, 0, None
    return False


def _clip(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    if call.args[0] in rewriter.rounded:
        value, zero_point, _ = rewriter.rounded[call.args[0]]
        low, high = (float(getattr(bound, "value", bound)) for bound in call.args[1:])
        rewriter.rounded[var] = value, zero_point, (low, high)
    return False


OPERATOR_OTHER_AXES_RULES: dict[str, Rule] = dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv3d"), _convolution)
"""Rules for targets that have integer kernels of ``(N, C, W)``; volumes are convolved as images."""

OPERATOR_RULES: dict[str, Rule] = {
    "relax.astype": _astype,
    "relax.subtract": _subtract,
    "relax.nn.conv2d": _convolution,
    "relax.matmul": _matmul,
    "relax.add": _add,
    "relax.multiply": _multiply,
    "relax.round": _round,
    "relax.clip": _clip,
}
