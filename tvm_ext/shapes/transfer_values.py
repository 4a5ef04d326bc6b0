"""Transfer functions of operators that make values of shapes, and shapes of values.

``Shape -> Gather -> Mul -> Concat -> Reshape`` is followed element by element; NumPy does what rearranges, on arrays of
expressions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Symbolic, product
from tvm_ext.shapes.lattice import (
    ANYTHING,
    LARGEST_VALUE,
    NOT_CONSTANT,
    UNKNOWN,
    Element,
    Fact,
    array_of,
    dim_of,
    elements_of,
    is_dim,
    is_extreme,
)
from tvm_ext.shapes.transfer import Step, Transfer, axis_of, ceil_divided, larger, of_shape, small_shape, with_value

FINEST_SCALE = 64
"""Denominator up to which a scale times a size is the same in floats and in integers."""


def shape(step: Step) -> list[Fact]:
    """``Shape``."""
    dims = step.dims(0)
    if dims is None:
        return [UNKNOWN if step.waits(0) else ANYTHING]
    taken = dims[slice(step.attribute("start", None), step.attribute("end", None))]
    return with_value(array_of(taken))


def size(step: Step) -> list[Fact]:
    """``Size``."""
    dims = step.dims(0)
    if dims is None:
        return [UNKNOWN if step.waits(0) else Fact((), NOT_CONSTANT)]
    return with_value(array_of([product(map(dim_of, dims)) if all(map(is_dim, dims)) else NOT_CONSTANT], ()))


def filled(step: Step) -> list[Fact]:
    """``ConstantOfShape``: its shape is its input's value, as erratum E19 says."""
    wanted = step.integers(0)
    if step.waits(0):
        return [UNKNOWN]
    if wanted is None:
        rank = small_shape(step.shape(0))
        return of_shape(NOT_CONSTANT if rank is None or len(rank) != 1 else (NOT_CONSTANT,) * rank[0])
    known, fill = small_shape(tuple(wanted)), step.attribute("value", None)
    number = np.asarray(np.float32(0) if fill is None else fill).ravel()[:1]
    if known is not None and number.dtype.kind in "iufb":
        return with_value(array_of(elements_of(number) * int(np.prod(known)), known))
    return of_shape(tuple(wanted))


def resize(step: Step) -> list[Fact]:
    """``Resize`` and ``Upsample``: sizes, or the size times a scale, rounded down."""
    data = step.dims(0)
    scales_at = 1 if step.operator.kind == "Upsample" or len(step.operator.inputs) == 2 else 2
    if step.waits(0, scales_at, 3):
        return [UNKNOWN]
    if data is None or step.attribute("keep_aspect_ratio_policy", b"stretch") not in (b"stretch", "stretch"):
        return [ANYTHING if data is None else Fact((NOT_CONSTANT,) * len(data), NOT_CONSTANT)]
    axes = step.attribute("axes", None) or list(range(len(data)))
    sizes = step.integers(3) if step.given(3) and scales_at == 2 else None
    scales = step.operator.attributes.get("scales")
    if sizes is None and scales is None:
        found = step.fact(scales_at).value if step.given(scales_at) else NOT_CONSTANT
        scales = list(found.ravel()) if isinstance(found, np.ndarray) else None
    result: list[Element] = list(data)
    for place, axis in enumerate(axes):
        if sizes is not None and len(sizes) == len(axes):
            result[axis] = sizes[place]
        elif scales is not None and len(scales) == len(axes):
            result[axis] = _scaled(data[axis], scales[place])
        else:
            result[axis] = NOT_CONSTANT
    return of_shape(tuple(result))


def _scaled(dim: Element, scale: Any) -> Element:
    if not is_dim(dim) or isinstance(scale, Symbolic) or is_extreme(scale):
        return NOT_CONSTANT
    ratio = Fraction(float(scale))
    if ratio.denominator > FINEST_SCALE:
        return int(np.floor(np.float32(int(dim)) * np.float32(scale))) if isinstance(dim, int) else NOT_CONSTANT
    return dim_of(dim) * ratio.numerator // ratio.denominator


def range_(step: Step) -> list[Fact]:
    """``Range``: as many numbers as fit between the ends."""
    if step.waits(0, 1, 2):
        return [UNKNOWN]
    ends = [step.integers(position) for position in range(3)]
    if any(found is None or len(found) != 1 for found in ends):
        return of_shape((NOT_CONSTANT,))
    start, limit, delta = (found[0] for found in ends if found is not None)
    if not is_dim(start) or not is_dim(limit) or not isinstance(delta, int | np.integer) or delta == 0:
        return of_shape((NOT_CONSTANT,))
    apart = dim_of(limit) - dim_of(start) if delta > 0 else dim_of(start) - dim_of(limit)
    count = larger(step, ceil_divided(apart, abs(int(delta))), 0)
    if isinstance(count, int) and count <= LARGEST_VALUE:
        return with_value(array_of([dim_of(start) + int(delta) * index for index in range(count)]))
    return of_shape((count,))


def top_k(step: Step) -> list[Fact]:
    """``TopK``: values and places."""
    data, count = step.dims(0), step.integers(1, "k")
    if step.waits(0, 1):
        return [UNKNOWN] * 2
    if data is None:
        return [ANYTHING] * 2
    axis = axis_of(step.attribute("axis", -1), len(data))
    if axis is None:
        return [ANYTHING] * 2
    taken = count[0] if count else NOT_CONSTANT
    if isinstance(taken, int | np.integer):
        step.needs_at_least(data[axis], int(taken))
    else:
        step.needs_at_most(taken, data[axis])
    return of_shape((*data[:axis], taken, *data[axis + 1 :])) * 2


def one_hot(step: Step) -> list[Fact]:
    """``OneHot``: a new axis."""
    data, depth = step.dims(0), step.integers(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None:
        return [ANYTHING]
    axis = step.attribute("axis", -1)
    axis = axis + len(data) + 1 if axis < 0 else axis
    return of_shape((*data[:axis], depth[0] if depth else NOT_CONSTANT, *data[axis:]))


TRANSFERS: dict[str, Transfer] = {
    "ConstantOfShape": filled,
    "OneHot": one_hot,
    "Range": range_,
    "Resize": resize,
    "Shape": shape,
    "Size": size,
    "TopK": top_k,
    "Upsample": resize,
}
