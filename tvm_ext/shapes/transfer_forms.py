"""Transfer functions of operators that give the same elements another shape: reshaped, expanded, with axes of 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Dim, Symbolic, product
from tvm_ext.shapes.lattice import ANYTHING, NOT_CONSTANT, UNKNOWN, Element, Fact, dim_of, is_dim
from tvm_ext.shapes.transfer import Step, Transfer, broadcast, of_shape, small_shape, with_value


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


def squeeze(step: Step) -> list[Fact]:
    """``Squeeze``: of axes that are not named those known to be 1; others must not be, or the rank would change."""
    data, named = step.dims(0), "axes" in step.operator.attributes or step.given(1)
    axes = step.numbers(1, "axes")
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or (named and axes is None):
        return [ANYTHING]
    if not axes:
        for dim in data:
            step.needs_another_than(dim, 1)
        axes = [axis for axis, dim in enumerate(data) if isinstance(dim, int) and dim == 1]
    gone = {axis % len(data) for axis in axes} if data else set()
    for axis in gone:
        step.needs_equal(data[axis], 1)
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


TRANSFERS: dict[str, Transfer] = {
    "Expand": expand,
    "Reshape": reshape,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
}
