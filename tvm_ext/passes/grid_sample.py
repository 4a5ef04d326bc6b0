"""Bicubic sampling by a grid as three kernels: where the taps lie, what they weigh, and their sum.

before: ``y = image.grid_sample(x, grid, method="bicubic")``
after:  ``p = places(grid); w = weights(grid); y = sample(x, p, w)``, where ``p`` and ``w`` are never fused

TVM's own kernel writes the place of each of 16 taps, reflected and clipped, into the condition and the index of its
load, which is an expression of a hundred thousand nodes. Here each is computed once for a pixel, whatever its channels.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

from tvm_ext.relax_utils import OPAQUE

TAPS = 4
"""Elements along an axis that a cubic interpolation takes."""

PARAMETER = -0.75
"""Of the cubic kernel (Keys, Cubic convolution interpolation, 1981), as PyTorch and onnxruntime have it."""


def legalize_grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``image.grid_sample`` to calls of kernels; a rule for ``relax.transform.LegalizeOps``."""
    data, grid = call.args
    attributes = call.attrs
    padding, corners = str(attributes.padding_mode), bool(attributes.align_corners)
    if str(attributes.method) != "bicubic":
        options = {"method": attributes.method, "layout": attributes.layout}
        return builder.call_te(
            topi.image.grid_sample, data, grid, **options, padding_mode=padding, align_corners=corners
        )
    extents = list(data.ty.shape)[2:]
    opened = [size for size in extents if not isinstance(size, tirx.IntImm)]  # which a kernel cannot read off the grid

    def sizes(given: list[Any]) -> list[Any]:
        rest = iter(given)
        return [int(size) if isinstance(size, tirx.IntImm) else next(rest).astype("int32") for size in extents]

    def places(grid: te.Tensor, given: list[Any]) -> te.Tensor:
        return _places(grid, sizes(given), padding, corners)

    def weights(grid: te.Tensor, given: list[Any]) -> te.Tensor:
        return _weights(grid, sizes(given), corners)

    apart = {"op_pattern": OPAQUE}
    at, weight = (
        builder.emit(builder.call_te(part, grid, opened, primfunc_name_hint=part.__name__, primfunc_attrs=apart))
        for part in (places, weights)
    )
    return builder.call_te(_sample, data, at, weight, primfunc_name_hint="sample")


def _taps_of(grid: te.Tensor, shape_of_taps: Any, name: str) -> te.Tensor:
    batch, axes, rows, columns = grid.shape
    return te.compute((batch, axes, TAPS, rows, columns), shape_of_taps, name=name)


def _coordinate(value: Any, size: Any, corners: bool) -> Any:
    """Scale a coordinate from [-1, 1] to elements."""
    return (value + 1) * (size - 1) / 2 if corners else -0.5 + (value + 1) * size / 2


def _places(grid: te.Tensor, sizes: Any, padding: str, corners: bool) -> te.Tensor:
    """Compute the index of each tap, [batch, axis, tap, row, column]; -1 for one that is taken for zero."""

    def place(n: Any, axis: Any, tap: Any, h: Any, w: Any) -> Any:
        height, width = (_place(grid[n, axis, h, w], tap, size, padding, corners) for size in sizes)
        return tirx.Select(axis < 1, width, height)

    return _taps_of(grid, place, "places")


def _place(value: Any, tap: Any, size: Any, padding: str, corners: bool) -> Any:
    at = te.floor(_coordinate(value, size, corners)).astype("int32") - 1 + tap.astype("int32")
    if padding == "zeros":
        return tirx.Select(tirx.all(at >= 0, at < size), at, tirx.const(-1, "int32"))
    if padding == "reflection":
        # Corner pixels are mirrors if the ends of the grid are their centres; otherwise the edge between them is one.
        period = 2 * (size - 1) if corners else 2 * size
        at = tirx.floormod(at, tirx.max(period, 1))
        at = tirx.min(at, period - at if corners else period - 1 - at)
    return tirx.max(tirx.min(at, size - 1), 0)


def _weights(grid: te.Tensor, sizes: Any, corners: bool) -> te.Tensor:
    """Compute the weight of each tap, [batch, axis, tap, row, column]."""

    def weight(n: Any, axis: Any, tap: Any, h: Any, w: Any) -> Any:
        height, width = (_coordinate(grid[n, axis, h, w], size, corners) for size in sizes)
        at = tirx.Select(axis < 1, width, height)
        fraction = at - te.floor(at)
        distance = te.abs(fraction + 1 - tap.astype(grid.dtype))
        near = ((PARAMETER + 2) * distance - (PARAMETER + 3)) * distance * distance + 1
        far = ((PARAMETER * distance - 5 * PARAMETER) * distance + 8 * PARAMETER) * distance - 4 * PARAMETER
        return tirx.Select(tirx.all(tap >= 1, tap <= 2), near, far)

    return _taps_of(grid, weight, "weights")


def _sample(data: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """Sum the taps of a row, then the rows; a tap at -1 is zero whatever it weighs."""
    batch, channels = data.shape[:2]
    rows, columns = places.shape[3:]

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        total = None
        for row in range(TAPS):
            y = places[n, 1, row, h, w]
            line = None
            for column in range(TAPS):
                x = places[n, 0, column, h, w]
                inside = tirx.all(y >= 0, x >= 0)
                pixel = tirx.if_then_else(inside, data[n, c, y, x], tirx.const(0, data.dtype))
                part = pixel * weights[n, 0, column, h, w]
                line = part if line is None else line + part
            part = line * weights[n, 1, row, h, w]
            total = part if total is None else total + part
        return total

    return te.compute((batch, channels, rows, columns), element, name="sample")


SAMPLING_LEGALIZATIONS = {"relax.image.grid_sample": legalize_grid_sample}
"""For ``relax.transform.LegalizeOps``."""
