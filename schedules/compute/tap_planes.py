"""Planes of volumes that the taps of a window along the depth meet, as channels of images."""

from __future__ import annotations

from tvm import te, tirx


def tap_planes(
    volumes: te.Tensor, taps: int, step: int, dilation: int, padding: tuple[int, int], outside: int
) -> te.Tensor:
    """Lay volumes out as images, one for each place of a window along the depth.

    Parameters
    ----------
    volumes : te.Tensor
        Shape ``(N, C, D, H, W)``.
    taps, step, dilation : int
        Of the window: its extent, its stride, and how far its taps are apart.
    padding : (int, int)
        Planes in front and behind that are not there.
    outside : int
        What these hold.

    Returns
    -------
    te.Tensor
        Shape ``(N * D', C * taps, H, W)``; image ``n * D' + d`` has the plane ``d * step + t * dilation - padding[0]``
        of channel ``c`` as its channel ``c * taps + t``.
    """
    batch, channels, depth, height, width = (int(extent) for extent in volumes.shape)
    front, behind = padding
    count = (depth + front + behind - dilation * (taps - 1) - 1) // step + 1

    def element(image: tirx.Var, channel: tirx.Var, row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        plane = image % count * step + channel % taps * dilation - front
        value = volumes[image // count, channel // taps, plane, row, column]
        if not front and not behind:
            return value
        inside = tirx.all(plane >= 0, plane < depth)
        return tirx.if_then_else(inside, value, tirx.const(outside, volumes.dtype))

    return te.compute((batch * count, channels * taps, height, width), element, name="tap_planes")
