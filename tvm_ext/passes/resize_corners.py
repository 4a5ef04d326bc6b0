"""Resizing to one row or column with aligned corners: the first one, as PyTorch and onnxruntime have it.

before: ``y = image.resize2d(x, (1, 4), coordinate_transformation_mode="align_corners")``
after:  ``y = resize2d(x, (2, 4), ...)[:, :, 0:1, :]`` in one kernel

TVM divides the distance of the corners by that of the result's, which is zero. Of two rows the first is the first
row of the picture, whatever the interpolation.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi

_OPTIONS = ("roi", "layout", "method", "coordinate_transformation_mode", "rounding_method", "extrapolation_value")


def legalize_resize2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``image.resize2d`` to a call of a kernel; a rule for ``relax.transform.LegalizeOps``."""
    attributes = call.attrs
    options = {name: getattr(attributes, name) for name in _OPTIONS}
    options |= {"bicubic_alpha": attributes.cubic_alpha, "bicubic_exclude": attributes.cubic_exclude}
    sizes = list(call.args[1].values)
    single = [isinstance(size, int | tirx.IntImm) and int(size) == 1 for size in sizes]
    if str(attributes.coordinate_transformation_mode) != "align_corners" or not any(single):
        return builder.call_te(topi.image.resize2d, call.args[0], size=call.args[1], **options)
    larger = [tirx.const(2, "int64") if one else size for one, size in zip(single, sizes, strict=True)]
    axes = [
        axis for one, axis in zip(single, (str(attributes.layout).index(side) for side in "HW"), strict=True) if one
    ]

    def resize(data: te.Tensor) -> te.Tensor:
        resized: Any = topi.image.resize2d(data, size=larger, **options)
        return topi.strided_slice(resized, [0] * len(axes), [1] * len(axes), [1] * len(axes), axes)

    return builder.call_te(resize, call.args[0], primfunc_name_hint="resize2d")


RESIZE_LEGALIZATIONS = {"relax.image.resize2d": legalize_resize2d}
