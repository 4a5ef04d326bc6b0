"""How each operator of a quantised model is computed on integers: one rule each, looked up by operator name.

A rule gets the mutator, the bound variable and the call as they stand in the old function. It notes in the mutator's
tables what is known of the variable and returns True when the binding needs no other code.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from tvm import relax

from tvm_ext.quantized.relax.convolutions import convolve, has_integer_kernel
from tvm_ext.quantized.relax.moves import MOVES
from tvm_ext.quantized.relax.mutator import SIGNED_OFFSET, IntegerMutator, Rule
from tvm_ext.quantized.relax.values import ACTIVATION_TYPES, IntegerSum, Quantized, QuantizedConstant
from tvm_ext.quantized.sums import MOST
from tvm_ext.relax_utils import open_shape, same_extents, scalar, static_shape


def _dequantize(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    known = QuantizedConstant.from_call(call)
    if known is not None:
        rewriter.constants[var] = known
        return False  # for uses that stay in float; otherwise nobody uses it
    scale, zero_point = scalar(call.args[1]), scalar(call.args[2])
    if scale is None or zero_point is None or str(call.ty.dtype) != "float32" or not scale > 0:
        return False
    value = rewriter.activation(call.args[0], float(scale), int(zero_point))
    if value is None:
        return False
    shift = SIGNED_OFFSET if str(call.args[0].ty.dtype) == "int8" else 0
    rewriter.quantized[var] = Quantized(value.data, float(scale), int(zero_point) + shift)
    return True


def _quantize(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    data = call.args[0]
    scale, zero_point, dtype = scalar(call.args[1]), scalar(call.args[2]), str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ACTIVATION_TYPES or not scale > 0:
        return False
    if str(data.ty.dtype) != "float32":
        return False
    wanted = Quantized(data, float(scale), int(zero_point) + (SIGNED_OFFSET if dtype == "int8" else 0))
    rewriter.integers[var] = _quantized_as(rewriter, data, wanted)
    return True


def _quantized_as(rewriter: IntegerMutator, data: relax.Expr, wanted: Quantized) -> Quantized:
    """Quantise a float value of the old function with the steps of ``wanted``."""
    if isinstance(data, relax.Var):
        known = rewriter.quantized.get(data)
        if known is not None and known.same_steps(wanted):
            return known
        if data in rewriter.sums:
            return rewriter.requantize(rewriter.sums[data], wanted.scale, wanted.zero_point)
        if data in rewriter.joined:
            parts, axis = rewriter.joined[data]
            same = [
                part.data
                if part.same_steps(wanted)
                else rewriter.quantize(rewriter.dequantize(part), wanted.scale, wanted.zero_point)
                for part in parts
            ]
            joined = rewriter.emit(relax.op.concat(same, axis=axis))
            return Quantized(joined, wanted.scale, wanted.zero_point)
    quantized = rewriter.quantize(rewriter.visit_expr(data), wanted.scale, wanted.zero_point)
    return Quantized(quantized, wanted.scale, wanted.zero_point)


def _operands(rewriter: IntegerMutator, call: relax.Call) -> tuple[Quantized, QuantizedConstant, np.ndarray] | None:
    """Give a quantised activation and quantised weights, and these without their zero point."""
    data, weight = call.args
    value = rewriter.quantized.get(data) if isinstance(data, relax.Var) else None
    known = rewriter.constants.get(weight) if isinstance(weight, relax.Var) else None
    if value is None or known is None:
        return None
    centred = known.centred
    return None if centred is None else (value, known, centred)


def _convolution(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    operands = _operands(rewriter, call)
    if operands is None:
        return False
    value, known, weight = operands
    scale = known.scale_along(0)
    if scale is None or not has_integer_kernel(call, weight):
        return False
    total = convolve(rewriter, value, weight, scale, call)
    if total is not None:
        rewriter.sums[var] = rewriter.decide(call.op.name.removeprefix("relax."), total)
    return total is not None


def _matmul(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    operands = _operands(rewriter, call)
    if operands is None:
        return False
    value, known, weight = operands
    scale = known.scale_along(-1)
    total = None if scale is None else multiply(rewriter, value, weight, scale)
    if total is not None:
        rewriter.sums[var] = rewriter.decide("matmul", total)
    return total is not None


def multiply(
    rewriter: IntegerMutator,
    value: Quantized,
    weight: np.ndarray,
    scale: np.ndarray,
    moved: relax.Expr | None = None,
) -> IntegerSum | None:
    """Emit an exact product of matrices, ``(..., K) x (K, N)``, as a convolution.

    None for other shapes, and where a sum could leave int32. Rows become the columns of a picture one row high, those
    of which a run tells the number pictures of one pixel.
    """
    shape = open_shape(value.data)
    if shape is None or len(shape) < 2 or weight.ndim != 2 or not isinstance(shape[-1], int):
        return None
    *outer, depth = shape
    rows = prod(outer)
    data, pictures = value.data, (rows, depth, 1, 1)
    if isinstance(rows, int):
        pictures = (1, depth, 1, rows)
        if rows > 1:
            data = rewriter.emit(relax.op.permute_dims(rewriter.emit(relax.op.reshape(data, (rows, depth))), [1, 0]))
    picture = Quantized(rewriter.emit(relax.op.reshape(data, pictures)), value.scale, value.zero_point)
    result = convolve(rewriter, picture, np.ascontiguousarray(weight.T)[:, :, None, None], scale, None, moved)
    return None if result is None else replace(result, matrix_shape=(*outer, weight.shape[1]))


def _add(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Take a bias into the sum, if it is a whole number of the sum's steps."""
    for total, other in (call.args, call.args[::-1]):
        value = rewriter.sums.get(total) if isinstance(total, relax.Var) else None
        bias = rewriter.constant_values(other)
        if value is None or bias is None or value.is_clipped:
            continue
        per_channel = along_channels(bias, value)
        if per_channel is None or not _has_shape(call, value):
            continue
        steps = per_channel.astype(np.float64) / value.scale.astype(np.float64)
        whole = np.rint(steps)
        if np.abs(steps - whole).max() > 0.01 or np.abs(whole).max() > MOST:
            continue
        shift = value.shift + whole.astype(np.int64)
        if not rewriter.fits(value.weights, shift):
            continue
        rewriter.sums[var] = rewriter.decide("add", replace(value, shift=shift))
        return True
    return False


def _has_shape(call: relax.Call, value: IntegerSum) -> bool:
    shape = open_shape(call)
    return shape is not None and value.shape is not None and same_extents(shape, value.shape)


def along_channels(bias: np.ndarray, value: IntegerSum) -> np.ndarray | None:
    """One number for each channel of a constant that broadcasts to a sum, None if it differs along other axes."""
    shape = value.shape
    if shape is None or bias.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - bias.ndim) + bias.shape
    if any(extent != 1 for axis, extent in enumerate(full) if axis != value.channel_axis):
        return None
    return np.broadcast_to(bias.reshape(-1), value.scale.shape)


def _clip(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    value = rewriter.sums.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
    if value is None:
        return False
    low, high = 0.0, np.inf
    if call.op.name == "relax.clip":
        low, high = (float(getattr(bound, "value", bound)) for bound in call.args[1:])
    rewriter.sums[var] = value.clipped(low, high)
    return True


def _average(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Average over all rows and columns: an integer sum, and the count in the scale."""
    data = call.args[0]
    value = rewriter.quantized.get(data) if isinstance(data, relax.Var) else None
    shape, out_shape = (value.shape if value else None), static_shape(call)
    if value is None or shape is None or out_shape is None or len(shape) != 4 or len(out_shape) != 4:
        return False
    count = shape[2] * shape[3]
    ones, shift = np.broadcast_to(np.int8(1), (shape[1], count)), np.full(shape[1], -value.zero_point * count)
    if out_shape[2:] != (1, 1) or not _takes_all(call, shape) or not rewriter.fits(ones, shift):
        return False
    total = rewriter.emit(relax.op.sum(rewriter.emit(relax.op.astype(value.data, "int32")), axis=[2, 3], keepdims=True))
    scale = np.full(shape[1], np.float32(value.scale) / np.float32(count), np.float32)
    name = call.op.name.removeprefix("relax.")
    rewriter.sums[var] = rewriter.decide(name, IntegerSum(total, scale, shift, ones))
    return True


def _takes_all(call: relax.Call, shape: tuple[int, ...]) -> bool:
    """Whether an average whose result is one row and one column is over all rows and columns, each counted once."""
    if call.op.name == "relax.mean":
        return sorted(int(axis) % 4 for axis in call.attrs.axis or ()) == [2, 3]
    if call.op.name == "relax.nn.avg_pool2d":
        window = tuple(int(extent) for extent in call.attrs.pool_size)
        return window == shape[2:] and not any(int(width) for width in call.attrs.padding)
    return True


OTHER_AXES_RULES: dict[str, Rule] = dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv3d"), _convolution)
"""Rules for targets that have integer kernels of ``(N, C, W)``; volumes are convolved as images."""

RULES: dict[str, Rule] = {
    "relax.dequantize": _dequantize,
    "relax.quantize": _quantize,
    "relax.nn.conv2d": _convolution,
    "relax.matmul": _matmul,
    "relax.add": _add,
    "relax.nn.relu": _clip,
    "relax.clip": _clip,
    "relax.mean": _average,
    "relax.nn.adaptive_avg_pool2d": _average,
    "relax.nn.avg_pool2d": _average,
    **MOVES,
}
