"""Transfer functions of operators that make shapes of values, and the arithmetic of small integer tensors.

``Shape -> Gather -> Mul -> Concat -> Reshape`` is followed element by element; NumPy does what rearranges, on arrays of
expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Dim, Symbolic, product
from tvm_ext.shapes.lattice import (
    ANYTHING,
    LARGEST_VALUE,
    NOT_CONSTANT,
    UNKNOWN,
    Element,
    Fact,
    Shape,
    array_of,
    dim_of,
    is_dim,
    is_extreme,
)
from tvm_ext.shapes.transfer import (
    Step,
    Transfer,
    axis_of,
    broadcast,
    ceil_divided,
    larger,
    of_shape,
    small_shape,
    smaller,
)

MANY = 1 << 31
"""Bounds of slices from here on mean the end of the axis."""

FINEST_SCALE = 64
"""Denominator up to which a scale times a size is the same in floats and in integers."""


def with_value(value: Any) -> list[Fact]:
    """One output whose values are known; NumPy gives the element itself in place of an array without dimensions."""
    array = value if isinstance(value, np.ndarray) else array_of([value], ())
    return [Fact(tuple(array.shape), array)] if array.size <= LARGEST_VALUE else of_shape(tuple(array.shape))


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


def reshape(step: Step) -> list[Fact]:
    """``Reshape``: what is left over is a quotient, in which equal dimensions cancel; zeros copy."""
    data, wanted = step.dims(0), step.integers(1, "shape")
    if step.waits(0, 1):
        return [UNKNOWN]
    rank = None if not step.given(1) else small_shape(step.shape(1))
    if wanted is None:
        return of_shape(NOT_CONSTANT if rank is None or len(rank) != 1 else (NOT_CONSTANT,) * rank[0])
    dims: list[Element] = list(wanted)
    for axis, dim in enumerate(dims):
        if isinstance(dim, int) and dim == 0 and not step.attribute("allowzero", 0):
            dims[axis] = data[axis] if data is not None and axis < len(data) else NOT_CONSTANT
        elif isinstance(dim, Symbolic) and not step.at_least(dim, 1) and not step.attribute("allowzero", 0):
            # A size that turns out to be 0 copies what is at its place.
            same = data is not None and axis < len(data) and data[axis] == dim
            dims[axis] = dim if same or step.at_least(dim, 0) else NOT_CONSTANT
    rest = [axis for axis, dim in enumerate(dims) if isinstance(dim, int) and dim == -1]
    if len(rest) == 1:
        others = [dim for axis, dim in enumerate(dims) if axis != rest[0]]
        dims[rest[0]] = _left_over(data, others)
        _needs_as_many(step, data, others, rest=True)
    else:
        _needs_as_many(step, data, dims, rest=False)
    value = step.fact(0).value
    if isinstance(value, np.ndarray) and all(isinstance(dim, int) for dim in dims):
        numbers = [int(dim) for dim in dims]  # type: ignore[arg-type]
        if int(np.prod(numbers)) == value.size:
            return with_value(value.reshape(numbers))
    return of_shape(tuple(dims))


def _needs_as_many(step: Step, data: Sequence[Element] | None, dims: Sequence[Element], rest: bool) -> None:
    """Note that a tensor has as many elements as its new shape, or a multiple of them."""
    if data is None or not all(map(is_dim, (*data, *dims))):
        return
    left, right = [dim_of(dim) for dim in data], []
    for dim in map(dim_of, dims):
        if dim in left:
            left.remove(dim)
        else:
            right.append(dim)
    whole, part = product(left), product(right)
    if not rest:
        step.needs_equal(whole, part)
    elif part != 1 and not (isinstance(whole, int) and isinstance(part, int)) and whole % part != 0:
        step.assume(f"({whole}) % ({part}) == 0")


def _left_over(data: Sequence[Element] | None, others: Sequence[Element]) -> Element:
    if data is None or not all(map(is_dim, (*data, *others))):
        return NOT_CONSTANT
    left, rest = [dim_of(dim) for dim in data], []
    for other in map(dim_of, others):
        if other in left:
            left.remove(other)
        else:
            rest.append(other)
    return divided_exactly(product(left), product(rest))


def divided_exactly(whole: Dim, part: Dim) -> Dim:
    """Divide by what is known to be a factor: a monomial is cancelled from every term."""
    if isinstance(part, int) or isinstance(whole, int):
        return whole // part if part != 0 else 0
    if len(part.terms) == 1:
        (monomial, coefficient) = part.terms[0]
        terms: list[tuple[tuple[Any, ...], int]] = []
        for atoms, factor in whole.terms:
            kept = list(atoms)
            for atom in monomial:
                if atom not in kept:
                    return whole // part
                kept.remove(atom)
            if factor % coefficient:
                return whole // part
            terms.append((tuple(kept), factor // coefficient))
        total: Dim = 0
        for kept_atoms, factor in terms:
            total = total + product([factor, *(Symbolic((((atom,), 1),)) for atom in kept_atoms)])
        return total
    return whole // part


def expand(step: Step) -> list[Fact]:
    """``Expand``: broadcast with a shape."""
    wanted = step.integers(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if wanted is None:
        return [ANYTHING]
    result = broadcast(step, [step.shape(0), tuple(wanted)])
    value, known = step.fact(0).value, small_shape(result)
    if isinstance(value, np.ndarray) and known is not None:
        return with_value(np.broadcast_to(value, known))
    return of_shape(result)


def filled(step: Step) -> list[Fact]:
    """``ConstantOfShape``: its shape is its input's value, as erratum E19 says."""
    wanted = step.integers(0)
    if step.waits(0):
        return [UNKNOWN]
    if wanted is None:
        rank = small_shape(step.shape(0))
        return of_shape(NOT_CONSTANT if rank is None or len(rank) != 1 else (NOT_CONSTANT,) * rank[0])
    known, fill = small_shape(tuple(wanted)), step.attribute("value", None)
    number = 0 if fill is None else np.asarray(fill).ravel()[0]
    if known is not None and float(number).is_integer():
        return with_value(array_of([int(number)] * int(np.prod(known)), known))
    return of_shape(tuple(wanted))


def slice_(step: Step) -> list[Fact]:
    """``Slice``, its bounds as inputs or attributes."""
    data = step.dims(0)
    old = "starts" in step.operator.attributes
    if step.waits(0, *(() if old else (1, 2, 3, 4))):
        return [UNKNOWN]
    if data is None:
        return [ANYTHING]
    starts, ends = step.integers(1, "starts"), step.integers(2, "ends")
    count = len(starts) if starts is not None else _length(step.shape(1))
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


def _length(found: Shape) -> int | None:
    known = small_shape(found)
    return known[0] if known is not None and len(known) == 1 else None


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
    if all(_length(found) is not None for found in known):  # a vector of which some elements are known
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
    if parts is None or len(parts) != count:
        return [Fact((*data[:axis], NOT_CONSTANT, *data[axis + 1 :]), NOT_CONSTANT)] * count
    value = step.fact(0).value
    if isinstance(value, np.ndarray) and all(isinstance(part, int | np.integer) for part in parts):
        cuts = np.cumsum([int(part) for part in parts])[:-1]  # type: ignore[arg-type]
        return [fact for piece in np.split(value, cuts, axis) for fact in with_value(piece)]
    return [Fact((*data[:axis], part, *data[axis + 1 :]), NOT_CONSTANT) for part in parts]


def squeeze(step: Step) -> list[Fact]:
    """``Squeeze``: of axes that are not named only those that are known to be 1."""
    data, named = step.dims(0), "axes" in step.operator.attributes or step.given(1)
    axes = step.numbers(1, "axes")
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or (named and axes is None):
        return [ANYTHING]
    if axes is None:
        if not all(isinstance(dim, int) or step.at_least(dim, 2) for dim in data):
            return [ANYTHING]
        axes = [axis for axis, dim in enumerate(data) if dim == 1]
    gone = {axis % len(data) for axis in axes} if data else set()
    return _same_elements(step, [dim for axis, dim in enumerate(data) if axis not in gone])


def unsqueeze(step: Step) -> list[Fact]:
    """``Unsqueeze``."""
    data, axes = step.dims(0), step.numbers(1, "axes")
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or axes is None:
        return [ANYTHING]
    rank = len(data) + len(axes)
    new, rest = {axis % rank for axis in axes}, iter(data)
    return _same_elements(step, [1 if axis in new else next(rest) for axis in range(rank)])


def _same_elements(step: Step, dims: Sequence[Element]) -> list[Fact]:
    value = step.fact(0).value
    known = small_shape(tuple(dims))
    if isinstance(value, np.ndarray) and known is not None:
        return with_value(value.reshape(known))
    return of_shape(tuple(dims))


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
    return of_shape(tuple(result))


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
    "Concat": concat,
    "ConstantOfShape": filled,
    "Expand": expand,
    "Gather": gather,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "Shape": shape,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "TopK": top_k,
    "Unsqueeze": unsqueeze,
    "Upsample": resize,
}
