"""Local response normalisation of blocked tensors as one kernel.

before: ``s = mean of x * x over neighbouring channels; y = x / (alpha * s + bias) ** beta``, a pooling along channels
        between two conversions of layouts
after:  ``y = local_response(x')``, which stays in blocks of channels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_ext.layout.lanes import ANYTHING
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.relax_utils import OUT_ELEMENTWISE, constant, static_shape
from tvm_ext.schedules.compute.response import local_response


@dataclass(frozen=True)
class _Response:
    """A normalisation that was found: what it normalises, and its numbers; see :func:`local_response`."""

    data: relax.Expr
    before: int
    behind: int
    scale: float
    bias: float
    exponent: float


def response_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Compute the division that ends a normalisation of a blocked tensor together with all before it."""
    found = _response_of(rewriter, call)
    value = None if found is None else rewriter.known(found.data)
    if found is None or value is None or value.is_open or max(found.before, found.behind) > value.block:
        return None
    var = rewriter.emit_kernel(
        local_response, [value.var], "local_response", OUT_ELEMENTWISE, channels=value.channels, before=found.before,
        behind=found.behind, scale=found.scale, bias=found.bias, exponent=found.exponent,
    )  # fmt: skip
    return rewriter.describe(var, value, ANYTHING)


def _response_of(rewriter: BlockedLayoutMutator, call: relax.Call) -> _Response | None:
    """Recognise ``x / (mean * alpha + bias) ** exponent``, where ``call`` is the division."""
    if call.op.name != "relax.divide" or str(call.ty.dtype) != "float32":
        return None
    data, power = call.args[0], _defined(rewriter, call.args[1], "relax.power")
    base = _defined(rewriter, power.args[0], "relax.add") if power is not None else None
    scaled, bias = _with_number(base)
    mean, alpha = _with_number(_defined(rewriter, scaled, "relax.multiply"))
    exponent = _number(power.args[1]) if power is not None else None
    if mean is None or alpha is None or bias is None or exponent is None:
        return None
    window = _window_of(rewriter, mean, data)
    return None if window is None else _Response(data, *window, alpha / (1 + sum(window)), bias, exponent)


def _window_of(rewriter: BlockedLayoutMutator, mean: relax.Expr, data: relax.Expr) -> tuple[int, int] | None:
    """Tell how many channels before and behind each are in a mean of the squares of ``data``; None: it is no such."""
    pool = _defined(rewriter, _reshaped(rewriter, mean), "relax.nn.avg_pool2d", "relax.nn.avg_pool3d")
    shape = static_shape(data)
    if pool is None or shape is None or static_shape(mean) != shape:
        return None
    squares, first, last = _without_padding(rewriter, pool.args[0])
    given, square = static_shape(squares), _defined(rewriter, _reshaped(rewriter, squares), "relax.multiply")
    if square is None or given is None or static_shape(pool) != given:
        return None
    attributes = pool.attrs
    size, *others = (int(extent) for extent in attributes.pool_size)
    padding = [int(extent) for extent in attributes.padding]
    before, behind = padding[0], padding[len(padding) // 2]
    is_along_channels = (
        all(arg.same_as(data) for arg in square.args)
        and given[:3] == (shape[0], 1, shape[1])
        and attributes.layout in ("NCHW", "NCDHW")
        and all(extent == 1 for extent in others)
        and sum(padding) == before + behind
        and first + before + last + behind == size - 1
        and all(int(step) == 1 for step in (*attributes.strides, *attributes.dilation))
        and (bool(attributes.count_include_pad) or sum(padding) == 0)
    )
    return (first + before, last + behind) if is_along_channels else None


def _without_padding(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> tuple[relax.Expr, int, int]:
    """Give what an expression is of, with zeros before and behind its third axis, and how many these are."""
    call = _defined(rewriter, expr, "relax.nn.pad")
    if call is None or call.attrs.pad_mode != "constant" or float(call.attrs.pad_value) != 0.0:
        return expr, 0, 0
    width = [int(extent) for extent in call.attrs.pad_width]
    first, last = width[4:6]
    is_along_channels = min(first, last) >= 0 and sum(map(abs, width)) == first + last
    return (call.args[0], first, last) if is_along_channels else (expr, 0, 0)


def _with_number(call: Any) -> tuple[Any, float | None]:
    """Take apart an operator of a tensor and a number, in either order; None for both where it is none."""
    if call is None:
        return None, None
    for tensor, number in (call.args, reversed(call.args)):
        value = _number(number)
        if value is not None:
            return tensor, value
    return None, None


def _number(expr: relax.Expr) -> float | None:
    """Give the value of a constant of one element; None for others."""
    values = constant(expr)
    return float(values.reshape(())) if values is not None and values.size == 1 else None


def _reshaped(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> relax.Expr:
    """Give what an expression is a reshape of, or a reshape of a reshape."""
    while (call := _defined(rewriter, expr, "relax.reshape", "relax.expand_dims", "relax.squeeze")) is not None:
        expr = call.args[0]
    return expr


def _defined(rewriter: BlockedLayoutMutator, expr: Any, *names: str) -> Any:
    """Give the call that a variable is bound to, if it is of one of these operators; None otherwise."""
    value = rewriter.definitions.get(expr) if isinstance(expr, relax.Var) else None
    is_one = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name in names
    return value if is_one else None
