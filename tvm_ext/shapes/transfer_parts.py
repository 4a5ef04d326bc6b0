"""Transfer functions of operators that take tensors apart and put them together along axes: slices to pads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_ext.shapes.lattice import ANYTHING, NOT_CONSTANT, UNKNOWN, Element, Fact, array_of, dim_of, is_dim, is_extreme
from tvm_ext.shapes.transfer import (
    Step,
    Transfer,
    axis_of,
    ceil_divided,
    larger,
    length_of,
    of_shape,
    small_shape,
    smaller,
    with_value,
)

MANY = 1 << 31
"""Bounds of slices from here on mean the end of the axis."""


def slice_(step: Step) -> list[Fact]:
    """``Slice``, its bounds as inputs or attributes."""
    data = step.dims(0)
    old = "starts" in step.operator.attributes
    if step.waits(0, *(() if old else (1, 2, 3, 4))):
        return [UNKNOWN]
    if data is None:
        return [ANYTHING]
    starts, ends = step.integers(1, "starts"), step.integers(2, "ends")
    count = len(starts) if starts is not None else length_of(step.shape(1))
    axes = step.numbers(3, "axes") if "axes" in step.operator.attributes or step.given(3) else None
    if axes is None and not step.given(3) and count is not None:
        axes = list(range(count))
    steps = step.numbers(4) if step.given(4) else [1] * (count or 0)
    if axes is None:
        return of_shape((NOT_CONSTANT,) * len(data))
    result, index = list(data), [slice(None)] * len(data)
    exact = starts is not None and ends is not None and steps is not None
    for place, axis in enumerate(axes):
        position = axis_of(axis, len(data))
        if position is None:
            return [ANYTHING]
        if not exact:
            result[position] = NOT_CONSTANT
            continue
        start, end, pace = starts[place], ends[place], steps[place]  # type: ignore[index]
        result[position] = _sliced(step, data[position], start, end, pace)
        if all(isinstance(item, int | np.integer) for item in (start, end)):
            index[position] = _python_slice(int(start), int(end), pace)  # type: ignore[arg-type]
        else:
            exact = False
    value = step.fact(0).value
    if exact and isinstance(value, np.ndarray):
        return with_value(value[tuple(index)])
    return of_shape(tuple(result))


def _python_slice(start: int, end: int, pace: int) -> slice:
    """Spell the bounds as Python does, where None is before the first element from behind."""
    return slice(start if abs(start) < MANY else None, None if abs(end) >= MANY else end, pace)


def _sliced(step: Step, dim: Element, start: Element, end: Element, pace: int) -> Element:
    """Extent of a slice along one axis."""
    if isinstance(dim, int) and isinstance(start, int | np.integer) and isinstance(end, int | np.integer):
        return len(range(dim)[slice(int(start), int(end), pace)]) if pace > 0 else len(
            range(dim)[_python_slice(int(start), int(end), pace)])  # fmt: skip
    if pace < 1:
        whole = isinstance(end, int) and end <= -MANY and isinstance(start, int) and (start == -1 or start >= MANY)
        return ceil_divided(dim, -pace) if whole and pace < 0 else NOT_CONSTANT
    first, last = _bounded(step, start, dim), _bounded(step, end, dim)
    if not is_dim(first) or not is_dim(last):
        return NOT_CONSTANT
    return ceil_divided(larger(step, dim_of(last) - dim_of(first), 0), pace)


def _bounded(step: Step, place: Element, dim: Element) -> Element:
    """Count a bound from the front and keep it inside."""
    if not is_dim(place) or not is_dim(dim):
        return NOT_CONSTANT
    if isinstance(place, int | np.integer) and abs(int(place)) >= MANY:
        return dim if place > 0 else 0
    if step.at_most(place, -1):
        place = dim_of(place) + dim_of(dim)
    elif not step.at_least(place, 0):
        return NOT_CONSTANT
    return larger(step, smaller(step, place, dim), 0)


def gather(step: Step) -> list[Fact]:
    """``Gather``."""
    data, index = step.dims(0), step.dims(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or index is None:
        return [ANYTHING]
    axis = axis_of(step.attribute("axis", 0), len(data))
    if axis is None:
        return [ANYTHING]
    value, places = step.fact(0).value, step.numbers(1)
    known = small_shape(step.shape(1))
    if isinstance(value, np.ndarray) and places is not None and known is not None:
        if all(-value.shape[axis] <= place < value.shape[axis] for place in places):
            return with_value(np.take(value, np.array(places, "int64").reshape(known), axis))
    return of_shape((*data[:axis], *index, *data[axis + 1 :]))


def concat(step: Step) -> list[Fact]:
    """``Concat``."""
    count = len(step.operator.inputs)
    if step.waits(*range(count)):
        return [UNKNOWN]
    shapes = [step.dims(position) for position in range(count)]
    known = [found for found in shapes if found is not None]
    if len(known) < count or not known or len({len(found) for found in known}) > 1:
        return [ANYTHING]
    axis = axis_of(step.attribute("axis", 0), len(known[0]))
    if axis is None:
        return [ANYTHING]
    values = [step.fact(position).value for position in range(count)]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == count:
        return with_value(np.concatenate(arrays, axis))
    if all(length_of(found) is not None for found in known):  # a vector of which some elements are known
        parts = [value if isinstance(value, np.ndarray) else array_of([NOT_CONSTANT] * int(found[0]))  # type: ignore[arg-type]
                 for value, found in zip(values, known, strict=True)]  # fmt: skip
        return with_value(np.concatenate(parts, axis))
    total: Element = 0
    for found in known:
        total = dim_of(total) + dim_of(found[axis]) if is_dim(total) and is_dim(found[axis]) else NOT_CONSTANT
    for found in known[1:]:
        for place in range(len(found)):
            if place != axis:
                step.needs_equal(known[0][place], found[place])
    others = [_agreed([found[place] for found in known]) for place in range(len(known[0]))]
    return of_shape((*others[:axis], total, *others[axis + 1 :]))


def _agreed(dims: Sequence[Element]) -> Element:
    """Of dimensions that have to be equal: a number if there is one."""
    numbers = [dim for dim in dims if isinstance(dim, int)]
    constants = [dim for dim in dims if not is_extreme(dim)]
    return numbers[0] if numbers else constants[0] if constants else dims[0]


def split(step: Step) -> list[Fact]:
    """``Split``, into given or equal parts."""
    data, count = step.dims(0), len(step.operator.outputs)
    if step.waits(0) or step.waits(1):
        return [UNKNOWN] * count
    if data is None:
        return [ANYTHING] * count
    axis = axis_of(step.attribute("axis", 0), len(data))
    if axis is None:
        return [ANYTHING] * count
    parts = step.integers(1, "split")
    if parts is None and not step.given(1) and is_dim(data[axis]):
        part = ceil_divided(data[axis], count) if "num_outputs" in step.operator.attributes else (
            dim_of(data[axis]) // count)  # fmt: skip
        if "num_outputs" not in step.operator.attributes and dim_of(data[axis]) % count != 0:
            step.assume(f"({data[axis]}) % {count} == 0")
        rest = dim_of(data[axis]) - dim_of(part) * (count - 1) if is_dim(part) else NOT_CONSTANT
        parts = [part] * (count - 1) + [rest if "num_outputs" in step.operator.attributes else part]
        step.needs_extent(rest)
    elif (lengths := step.numbers(1, "split")) is not None:
        step.needs_equal(data[axis], sum(lengths))
    if parts is None or len(parts) != count:
        return [Fact((*data[:axis], NOT_CONSTANT, *data[axis + 1 :]), NOT_CONSTANT)] * count
    value = step.fact(0).value
    if isinstance(value, np.ndarray) and all(isinstance(part, int | np.integer) for part in parts):
        cuts = np.cumsum([int(part) for part in parts])[:-1]  # type: ignore[arg-type]
        return [fact for piece in np.split(value, cuts, axis) for fact in with_value(piece)]
    return [Fact((*data[:axis], part, *data[axis + 1 :]), NOT_CONSTANT) for part in parts]


def tile(step: Step) -> list[Fact]:
    """``Tile``."""
    data, times = step.dims(0), step.integers(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or times is None or len(times) != len(data):
        return [ANYTHING if data is None else Fact((NOT_CONSTANT,) * len(data), NOT_CONSTANT)]
    return of_shape(
        tuple(
            dim_of(dim) * dim_of(n) if is_dim(dim) and is_dim(n) else NOT_CONSTANT
            for dim, n in zip(data, times, strict=True)
        )
    )


def pad(step: Step) -> list[Fact]:
    """``Pad``, the amounts as an input or attribute."""
    data, pads = step.dims(0), step.integers(1, "pads")
    if step.waits(0, 1, 3):
        return [UNKNOWN]
    if data is None:
        return [ANYTHING]
    axes = step.numbers(3) if step.given(3) else list(range(len(data)))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return of_shape((NOT_CONSTANT,) * len(data))
    result = list(data)
    for place, axis in enumerate(axes):
        parts = (data[axis], pads[place], pads[place + len(axes)])
        result[axis] = sum(map(dim_of, parts)) if all(map(is_dim, parts)) else NOT_CONSTANT
        widths = [int(width) for width in parts[1:] if isinstance(width, int | np.integer)]
        if len(widths) == 2:
            reflects = step.attribute("mode", b"constant") in (b"reflect", "reflect") and max(widths) > 0
            step.needs_at_least(
                data[axis], (max(widths) + 1 if reflects else 0) - sum(min(width, 0) for width in widths)
            )
    return of_shape(tuple(result))


def fourier(step: Step) -> list[Fact]:
    """``DFT``: one axis as long as the transform, or its half, and both parts of complex numbers or one."""
    data = step.dims(0)
    if step.waits(0, 1, 2):
        return [UNKNOWN]
    if data is None:
        return [ANYTHING]
    axes = step.numbers(2, "axis")
    if axes is None and len(data) == 3 and not step.given(2):
        axes = [1]  # of other ranks the version of the operator decides
    axis = None if axes is None else axis_of(axes[0], len(data))
    if axis is None:
        return of_shape((NOT_CONSTANT,) * len(data))
    onesided, inverse = step.attribute("onesided", 0), step.attribute("inverse", 0)
    given = step.integers(1)
    length = data[axis] if not step.given(1) else given[0] if given else NOT_CONSTANT
    if is_dim(length) and onesided and inverse and not step.given(1):
        length = 2 * (dim_of(length) - 1)
    elif is_dim(length) and onesided and not inverse:
        length = dim_of(length) // 2 + 1
    return of_shape((*data[:axis], length, *data[axis + 1 : -1], 1 if onesided and inverse else 2))


TRANSFERS: dict[str, Transfer] = {
    "Concat": concat,
    "DFT": fourier,
    "Gather": gather,
    "Pad": pad,
    "Slice": slice_,
    "Split": split,
    "Tile": tile,
}
