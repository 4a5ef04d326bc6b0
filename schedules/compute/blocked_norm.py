"""Normalisation of groups of channels of a blocked tensor: group and instance normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import full
from tvm_ext.schedules.divisors import divisors

NORM = "norm"
NORM_SUMS = ("norm_sums", "norm_squares")
NORM_GROUPS = ("norm_means", "norm_deviations")
NORM_LANES = ("norm_shifts", "norm_scales")

MOST_SUMS = 8
"""Sums of a block of channels that are taken side by side, at most: an addition waits for the one before it."""


def blocked_norm(
    data: te.Tensor, weight: te.Tensor, bias: te.Tensor, channels: int, groups: int, epsilon: float
) -> te.Tensor:
    """Compute ``(data - mean) / sqrt(variance + epsilon) * weight + bias``, both of a group of channels of an image.

    Whole groups in whole blocks are a unit: all of it is computed before the next one. Sums are of what elements differ
    by from the first one of their channel, and variances of what they differ by from the mean, so that large means cost
    no digits.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, ceil(C / v), [D,] H, W, v)``.
    weight, bias : te.Tensor
        Shape ``(ceil(C / v), v)``.
    channels, groups : int
        ``C``, and how many groups of neighbouring channels there are, all of the same size.
    epsilon : float

    Returns
    -------
    te.Tensor
        Shape of ``data``; lanes that belong to no channel may hold anything.
    """
    batch, chunks, *spatial, block = (int(extent) for extent in data.shape)
    members, pixels = channels // groups, prod(spatial)
    unit = lcm(members, block) // block if full(channels, block) else chunks
    units, inside = chunks // unit, groups * unit // chunks
    axis, side_by_side = _sums_of(spatial)

    def number(value: float) -> Expr:
        return tirx.const(value, data.dtype)

    def summed(name: str, element: Callable[..., Expr]) -> te.Tensor:
        """Sum over the pixels of each channel, into several sums."""
        over = [
            te.reduce_axis((0, extent // side_by_side if place == axis else extent), f"{name}_{place}")
            for place, extent in enumerate(spatial)
        ]

        def total(n: tirx.Var, u: tirx.Var, k: tirx.Var, part: tirx.Var, lane: tirx.Var) -> Expr:
            position = [index * side_by_side + part if place == axis else index for place, index in enumerate(over)]
            return te.sum(element(n, u, k, position, lane), over)

        shape = (batch, units, unit, side_by_side, block)
        return te.compute(shape, total, name=name, attrs={KERNEL_ATTRIBUTE: name})

    def of_groups(name: str, sums: te.Tensor, element: Callable[..., Expr]) -> te.Tensor:
        """Sum over the channels of each group what is known of them."""
        member, part = te.reduce_axis((0, members), f"{name}_member"), te.reduce_axis((0, side_by_side), f"{name}_part")

        def total(n: tirx.Var, u: tirx.Var, group: tirx.Var) -> Expr:
            channel = group * members + member
            place = (n, u, channel // block, part, channel % block)
            return te.sum(element(sums(*place), place), [member, part])

        return te.compute((batch, units, inside), total, name=name, attrs={KERNEL_ATTRIBUTE: name})

    def of_lanes(name: str, element: Callable[..., Expr]) -> te.Tensor:
        """Give each lane what belongs to the group of its channel; that of the last one to lanes without a channel."""

        def value(n: tirx.Var, u: tirx.Var, k: tirx.Var, lane: tirx.Var) -> Expr:
            group = (k * block + lane) // members
            if not full(channels, block):
                group = tirx.min(group, inside - 1)
            return element(n, u, k, lane, group)

        return te.compute((batch, units, unit, block), value, name=name, attrs={KERNEL_ATTRIBUTE: name})

    def first(n: tirx.Var, u: tirx.Var, k: tirx.Var, lane: tirx.Var) -> Expr:
        return data[n, u * unit + k, *[0] * len(spatial), lane]

    sums = summed(
        NORM_SUMS[0],
        lambda n, u, k, position, lane: data[n, u * unit + k, *position, lane] - first(n, u, k, lane),
    )
    means = of_groups(
        NORM_GROUPS[0],
        sums,
        lambda total, place: (
            total * number(1 / (pixels * members))
            + first(place[0], place[1], place[2], place[4]) * number(1 / (members * side_by_side))
        ),
    )
    shifts = of_lanes(NORM_LANES[0], lambda n, u, _k, _lane, group: means[n, u, group])

    def square(n: tirx.Var, u: tirx.Var, k: tirx.Var, position: Sequence[Expr], lane: tirx.Var) -> Expr:
        difference = data[n, u * unit + k, *position, lane] - shifts[n, u, k, lane]
        return difference * difference

    squares = summed(NORM_SUMS[1], square)
    deviations = of_groups(NORM_GROUPS[1], squares, lambda total, _place: total)
    scales = of_lanes(
        NORM_LANES[1],
        lambda n, u, k, lane, group: (
            weight[u * unit + k, lane]
            / tirx.sqrt(deviations[n, u, group] * number(1 / (pixels * members)) + number(epsilon))
        ),
    )

    def normalized(n: tirx.Var, chunk: tirx.Var, *rest: tirx.Var) -> Expr:
        place = (n, chunk // unit, chunk % unit, rest[-1])
        return (data(n, chunk, *rest) - shifts(*place)) * scales(*place) + bias[chunk, rest[-1]]

    return te.compute(data.shape, normalized, name="normalized", attrs={KERNEL_ATTRIBUTE: NORM})


def _sums_of(spatial: Sequence[int]) -> tuple[int, int]:
    """Choose along which axis of an image pixels are shared out to several sums, and to how many."""
    shares = [max(part for part in divisors(extent) if part <= MOST_SUMS) for extent in spatial]
    # Of the same number, neighbours are best, which lie side by side.
    axis = max(range(len(spatial)), key=lambda place: (shares[place], place))
    return axis, shares[axis]
