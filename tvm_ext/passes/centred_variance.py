"""Normalisations whose variance is that of what is left of a group when its mean is taken off.

before: ``variance = sum(x * x) / n - mean * mean``        below zero for a group of equal numbers, and its root NaN
after:  ``variance = sum((x - mean) * (x - mean)) / n``

The difference of two large sums has lost as many digits as the square of the mean has more than the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx, topi


def legalize_group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``nn.group_norm`` to a kernel; a rule for ``relax.transform.LegalizeOps``."""
    attributes = call.attrs
    groups, epsilon = int(attributes.num_groups), float(attributes.epsilon)
    channel, axes = _channel_and_axes(call)

    def normalize(data: te.Tensor, weight: te.Tensor, bias: te.Tensor) -> te.Tensor:
        shape = list(data.shape)
        members = shape[channel] // groups
        weights, biases = (topi.reshape(value, [groups, members]) for value in (weight, bias))
        # The axes behind the channel are one further.
        within = {channel + 1, *(axis + (axis > channel) for axis in axes)}
        split = [*shape[:channel], groups, members, *shape[channel + 1 :]]
        if all(isinstance(extent, tirx.IntImm) for extent in shape):
            parts = topi.reshape(data, split)
            return topi.reshape(_normalized(parts, weights, biases, channel, within, epsilon), shape)
        # A reshape would find all places by divisions by open extents.
        parts = te.compute(split, lambda *index: data(*_joined(index, channel, members)), name="parts")
        normal = _normalized(parts, weights, biases, channel, within, epsilon)
        return te.compute(shape, lambda *index: normal(*_divided(index, channel, members)), name="joined")

    return builder.call_te(normalize, *call.args, primfunc_name_hint="group_norm")


def legalize_instance_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``nn.instance_norm`` to a kernel; a rule for ``relax.transform.LegalizeOps``."""
    channel, axes = _channel_and_axes(call)

    def normalize(data: te.Tensor, weight: te.Tensor, bias: te.Tensor) -> te.Tensor:
        return _normalized(data, weight, bias, channel, set(axes), float(call.attrs.epsilon))

    return builder.call_te(normalize, *call.args, primfunc_name_hint="instance_norm")


def _joined(index: Sequence[Any], channel: int, members: Any) -> list[Any]:
    """Make one index of those of a group and of its member."""
    return [*index[:channel], index[channel] * members + index[channel + 1], *index[channel + 2 :]]


def _divided(index: Sequence[Any], channel: int, members: Any) -> list[Any]:
    """Make two indices of one, which :func:`_joined` makes one of."""
    return [*index[:channel], index[channel] // members, index[channel] % members, *index[channel + 1 :]]


def _channel_and_axes(call: relax.Call) -> tuple[int, list[int]]:
    rank = len(call.args[0].ty.shape)
    return int(call.attrs.channel_axis) % rank, [int(axis) % rank for axis in call.attrs.axes]


def _normalized(
    x: te.Tensor, weight: te.Tensor, bias: te.Tensor, channel: int, within: set[int], epsilon: float
) -> te.Tensor:
    """Normalise over the axes ``within``; weight and bias have the axes of ``x`` from ``channel`` on."""
    dtype, rank = str(x.dtype), len(x.shape)
    wide = "float64" if dtype == "float64" else "float32"
    outside = [axis for axis in range(rank) if axis not in within]
    count = tirx.Cast(wide, prod((x.shape[axis] for axis in within), start=tirx.const(1, "int64")))

    def total(element: Any, name: str) -> te.Tensor:
        reduced = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in sorted(within)}

        def of_group(*group: tirx.Var) -> Any:
            place = reduced | dict(zip(outside, group, strict=True))
            return te.sum(element([place[axis] for axis in range(rank)], group), axis=list(reduced.values()))

        return te.compute([x.shape[axis] for axis in outside], of_group, name=name)

    def square(index: Sequence[Any], group: Sequence[Any]) -> Any:
        centred = x(*index).astype(wide) - mean(*group)
        return centred * centred

    def element(*index: tirx.Var) -> Any:
        group, own = [index[axis] for axis in outside], index[channel : channel + len(weight.shape)]
        scale = tirx.rsqrt(squares(*group) / count + tirx.const(epsilon, wide))
        normal = (x(*index).astype(wide) - mean(*group)) * scale
        return (normal * weight(*own).astype(wide) + bias(*own).astype(wide)).astype(dtype)

    sums = total(lambda index, _group: x(*index).astype(wide), "x_sum")
    mean = te.compute(sums.shape, lambda *group: sums(*group) / count, name="x_mean")
    squares = total(square, "x_var_sum")
    return te.compute(x.shape, element, name="normalized")


NORMALIZATION_LEGALIZATIONS = {
    "relax.nn.group_norm": legalize_group_norm,
    "relax.nn.instance_norm": legalize_instance_norm,
}
"""For ``relax.transform.LegalizeOps``."""
