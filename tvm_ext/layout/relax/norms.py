"""Group, instance and layer normalisation of blocked tensors, which stay in blocks of channels.

before: ``y = group_norm(x, w, b, groups)`` with ``x`` and ``y`` in rows, between two conversions of layouts
after:  ``y' = blocked_norm(x', w', b')``
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvm_ext.layout.lanes import ANYTHING
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.relax_utils import OUT_ELEMENTWISE, constant, static_shape
from tvm_ext.schedules.compute.blocked_norm import blocked_norm
from tvm_ext.schedules.compute.channel_norm import channel_norm
from tvm_ext.schedules.compute.layout import block_channels


def norm_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Normalise groups of channels, or each of them, over whole images, or all of them over each pixel.

    Scales and biases are constants.
    """
    value, shape, attributes = rewriter.known(call.args[0]), static_shape(call), call.attrs
    numbers = [constant(operand) for operand in call.args[1:]]
    if value is None or shape is None or 0 in shape or str(call.ty.dtype) != "float32":
        return None
    if any(array is None or str(array.dtype) != "float32" for array in numbers):
        return None
    axes = sorted(int(axis) % value.rank for axis in attributes.axes)
    is_layer = call.op.name == "relax.nn.layer_norm"
    if axes != ([1] if is_layer else list(range(2, value.rank))):
        return None
    if not is_layer and int(attributes.channel_axis) % value.rank != 1:
        return None
    operands = [
        relax.const(block_channels(array.reshape(1, -1), value.block)[0], "float32")  # type: ignore[union-attr]
        for array in numbers
    ]
    compute: Callable[..., Any] = channel_norm
    sizes = {"channels": value.channels}
    if not is_layer:
        is_group = call.op.name == "relax.nn.group_norm"
        compute, sizes = blocked_norm, sizes | {"groups": int(attributes.num_groups) if is_group else value.channels}
    epsilon = float(attributes.epsilon)
    var = rewriter.emit_kernel(compute, [value.var, *operands], "norm", OUT_ELEMENTWISE, epsilon=epsilon, **sizes)
    return rewriter.describe(var, value, ANYTHING)
