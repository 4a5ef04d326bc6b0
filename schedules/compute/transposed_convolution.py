"""Transposed convolutions over the blocked layout: an ordinary one for each phase of the stride, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import ABSENT_TAPS_ATTRIBUTE, KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import padded_source
from tvm_ext.schedules.compute.layout import full, in_channels


def transposed_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    padding: Sequence[int],
    out_shape: Sequence[int],
    computed_width: int = 0,
    out_channels: int = 0,
    leads: Sequence[int] = (0, 0),
    absent: Sequence[Sequence[int]] = ((), ()),
) -> te.Tensor:
    """Transpose-convolve a blocked tensor: all phases of the stride, then spread over space.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, H, W, vi)``.
    weight : te.Tensor
        Shape ``(sh, sw, CO / vo, CI / vi, JH, JW, vi, vo)``; see :func:`phase_windows`.
    padding : sequence of int
        Of the data, for the windows of all phases.
    out_shape : sequence of two int
        ``OH, OW``: the number of positions of a phase times ``sh`` and ``sw``.
    computed_width : int
        Positions along a row to compute, at least ``OW / sw``; those beyond are dropped.
    out_channels : int
        ``CO`` where it does not fill the blocks of the weights; 0: all.
    leads : sequence of two int
        Along each axis: the last so many phases have windows that begin one element later.
    absent : sequence of two sequences of int
        Along each axis the places of windows that hold no tap: a phase, a place, the next phase, and so on.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, OH, OW, vo)``; ``[.., h, w, ..]`` is phase ``(h % sh, w % sw)`` at ``(h / sh, w / sw)``.
        Lanes beyond ``CO`` are zero.
    """
    scale_h, scale_w, out_chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in weight.shape)
    reach = [extent + (lead > 0) for extent, lead in zip(kernel, leads, strict=True)]
    source, spatial, _ = padded_source(data, reach, (1, 1), padding, (1, 1), computed_width)
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh, kw = te.reduce_axis((0, kernel[0]), "kh"), te.reduce_axis((0, kernel[1]), "kw")
    ii = te.reduce_axis((0, block_in), "ii")
    batch = int(data.shape[0])
    lead_h, lead_w = map(int, leads)

    def later(phase: tirx.Var, lead: int, scale: int) -> Expr:
        return (phase + lead) // scale if lead else 0

    phases = te.compute(
        (batch, scale_h, scale_w, out_chunks, *spatial, block_out),
        lambda n, a, b, oc, h, w, oi: te.sum(
            source[n, ic, h + kh + later(a, lead_h, scale_h), w + kw + later(b, lead_w, scale_w), ii]
            * weight[a, b, oc, ic, kh, kw, ii, oi],
            [ic, kh, kw, ii],
        ),
        name="conv",
        attrs={KERNEL_ATTRIBUTE: "conv_transpose", ABSENT_TAPS_ATTRIBUTE: [list(places) for places in absent]},
    )

    def spread(*index: tirx.Var) -> Expr:
        n, c, h, w, i = index
        value = phases[n, h % scale_h, w % scale_w, c, h // scale_h, w // scale_w, i]
        return value if full(out_channels, block_out) else in_channels(index, value, out_channels, phases)

    return te.compute((batch, out_chunks, *out_shape, block_out), spread, name="spread")


@dataclass(frozen=True)
class PhaseAxis:
    """The windows of the phases of a transposed convolution along one axis.

    Attributes
    ----------
    taps : tuple of tuple of int
        For each phase and each place of its window the tap that meets it; -1: none.
    first : int
        Input at which the windows of the first phases begin for the result at 0; those of the last ``lead`` ones begin
        one later.
    lead : int
    """

    taps: tuple[tuple[int, ...], ...]
    first: int
    lead: int

    @property
    def absent(self) -> list[int]:
        """Places without a tap: a phase, a place, the next phase, and so on."""
        return [
            number
            for phase, taps in enumerate(self.taps)
            for place, tap in enumerate(taps)
            if tap < 0
            for number in (phase, place)
        ]

    @staticmethod
    def of(extent: int, stride: int, before: int) -> PhaseAxis:
        """Describe ``extent`` taps, ``before`` elements being cut off in front of the result."""
        count = -(-extent // stride)
        # As if taps of zero preceded the others, so that all windows begin at the same place, if that is possible.
        zeros = next((zeros for zeros in range(count * stride - extent + 1) if (before + zeros) % stride == 0), 0)
        taps = []
        for phase in range(stride):
            meets = [(phase + before + zeros) % stride + stride * place - zeros for place in reversed(range(count))]
            taps.append(tuple(tap if 0 <= tap < extent else -1 for tap in meets))
        return PhaseAxis(tuple(taps), (before + zeros) // stride - (count - 1), (before + zeros) % stride)


def phase_windows(
    weight: np.ndarray, strides: Sequence[int], padding: Sequence[int]
) -> tuple[np.ndarray, list[PhaseAxis]]:
    """Divide the taps of a transposed 2-D convolution among the phases of its result.

    Output position ``s q + a`` (phase ``a``) only meets taps ``k`` with ``(a + p - k) % s == 0``; their inputs lie at
    ``q + (a + p - k) / s``, side by side.

    Parameters
    ----------
    weight : np.ndarray
        Shape ``(CI, CO, KH, KW)``.
    strides : sequence of two int
    padding : sequence of int
        Top and left; others may follow.

    Returns
    -------
    tuple
        Weights ``(sh, sw, CO, CI, JH, JW)`` by phase, with zeros for taps that a phase does not have; the two axes.
    """
    axes = [
        PhaseAxis.of(int(extent), int(stride), int(before))
        for extent, stride, before in zip(weight.shape[2:], strides, padding, strict=False)
    ]
    in_channels, out_channels = weight.shape[:2]
    rows, columns = (axis.taps for axis in axes)
    phases = np.zeros((*strides, out_channels, in_channels, len(rows[0]), len(columns[0])), weight.dtype)
    for (a, row), (b, column) in product(enumerate(rows), enumerate(columns)):
        for (i, high), (j, wide) in product(enumerate(row), enumerate(column)):
            if high >= 0 and wide >= 0:
                phases[a, b, :, :, i, j] = weight[:, :, high, wide].T
    return phases, axes


def transposed_as_convolution(
    weight: np.ndarray, strides: Sequence[int], padding: Sequence[int], out_shape: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Rewrite a transposed 2-D convolution as an ordinary one that computes all phases of the stride as channels.

    Output position ``s q + a`` (phase ``a``) only meets taps ``k`` with ``(a + p - k) % s == 0``; their inputs lie at
    ``q + (a + p - k) / s``. One window that covers the taps of all phases makes it a convolution of stride 1 with
    ``sh * sw * CO`` outputs, zeros standing for taps that a phase does not have.

    Parameters
    ----------
    weight : np.ndarray
        Shape ``(CI, CO, KH, KW)``.
    strides : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    out_shape : sequence of two int
        ``OH, OW`` of the transposed convolution.

    Returns
    -------
    tuple
        Weights ``(sh, sw, CO, CI, JH, JW)`` by phase; the first input offset of the window along each axis (the
        padding before is its negative); the number ``ceil(OH / sh), ceil(OW / sw)`` of positions to compute.
    """
    _, _, *kernel = weight.shape
    windows = []
    for axis in range(2):
        stride, before = strides[axis], padding[axis]
        offsets = {
            (phase, tap): (phase + before - tap) // stride
            for phase in range(stride)
            for tap in range(kernel[axis])
            if (phase + before - tap) % stride == 0
        }
        first, last = min(offsets.values(), default=0), max(offsets.values(), default=0)
        windows.append((offsets, first, last - first + 1))
    (rows, first_h, count_h), (columns, first_w, count_w) = windows
    in_channels, out_channels = weight.shape[:2]
    phases = np.zeros((*strides, out_channels, in_channels, count_h, count_w), weight.dtype)
    for (phase_h, tap_h), offset_h in rows.items():
        for (phase_w, tap_w), offset_w in columns.items():
            taps = weight[:, :, tap_h, tap_w].T
            phases[phase_h, phase_w, :, :, offset_h - first_h, offset_w - first_w] = taps
    counts = [-(-extent // stride) for extent, stride in zip(out_shape, strides, strict=True)]
    return phases, [first_h, first_w], counts
