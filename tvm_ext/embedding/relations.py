"""The relations of a dataflow as sets and maps of integers (isl): domain, accesses, what outputs need and share.

Their size depends on the number of axes, not on extents. Section 4.2 of the source; access and overlap sets are its
definitions 4.5 and 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_ext.embedding.dataflow import Access, Dataflow
from tvm_ext.errors import MissingPackageError


def isl() -> Any:
    """Import islpy.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        import islpy
    except ImportError as error:
        raise MissingPackageError("embedding instructions needs the package islpy; install 'tvm-ext[embed]'") from error
    return islpy


def domain(flow: Dataflow) -> Any:
    """Return the iteration domain, ``{ [i, ...] : 0 <= i < extent and ... }``."""
    return isl().Set(f"{{ [{_names(flow)}] : {_bounds(flow, range(len(flow.axes)))} }}")


def access_map(flow: Dataflow, operand: int) -> Any:
    """Return where an operand (0 and 1: factors, 2: result) is accessed, from points of the domain to its elements."""
    index = ", ".join(_terms(flow.operands[operand]))
    return isl().Map(f"{{ [{_names(flow)}] -> [{index}] : {_bounds(flow, range(len(flow.axes)))} }}")


def access_set(flow: Dataflow, operand: int, output: Sequence[int]) -> Any:
    """Return the elements of a factor that an output needs; ``output`` has the axes that are not summed over, in order.

    Definition 4.5 of the source.
    """
    free = [at for at, axis in enumerate(flow.axes) if not axis.reduces]
    fixed = " and ".join(f"i{axis} = {value}" for axis, value in zip(free, output, strict=True)) or "true"
    points = isl().Set(f"{{ [{_names(flow)}] : {fixed} }}")
    return points.apply(access_map(flow, operand))


def shares(flow: Dataflow, operand: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    """Whether outputs that lie on a lattice need a common element of a factor (their overlap set is not empty).

    Parameters
    ----------
    flow : Dataflow
    operand : int
        0 or 1.
    steps : sequence of (axis, size, stride)
        The lattice: ``size`` outputs along an axis, ``stride`` apart. Any two different ones are compared; as accesses
        are affine, only how far they are apart matters.
    """
    access = flow.operands[operand]
    sums = [at for at, axis in enumerate(flow.axes) if axis.reduces and flow.axes[at].extent > 1 and access.uses(at)]
    bounds = [f"-{size} < e{number} < {size}" for number, (_, size, _) in enumerate(steps)]
    inner = [f"-{flow.axes[at].extent} < r{at} < {flow.axes[at].extent}" for at in sums]
    for row in access.index:
        left = [f"{row[axis] * stride}e{number}" for number, (axis, _, stride) in enumerate(steps) if row[axis]]
        right = [f"{row[at]}r{at}" for at in sums if row[at]]
        if left or right:
            inner.append(f"{' + '.join(left) or '0'} = {' + '.join(right) or '0'}")
    names = ", ".join(f"e{number}" for number in range(len(steps)))
    exists = f"exists {', '.join(f'r{at}' for at in sums)} : " if sums else ""
    common = isl().Set(f"{{ [{names}] : {' and '.join(bounds)} and ({exists}{' and '.join(inner) or 'true'}) }}")
    origin = isl().Set(f"{{ [{', '.join('0' for _ in steps)}] }}")
    return not common.subtract(origin).is_empty()


def _names(flow: Dataflow) -> str:
    return ", ".join(f"i{at}" for at in range(len(flow.axes)))


def _bounds(flow: Dataflow, axes: Sequence[int]) -> str:
    return " and ".join(f"0 <= i{at} < {flow.axes[at].extent}" for at in axes) or "true"


def _terms(access: Access) -> list[str]:
    return [
        " + ".join([*(f"{step}i{at}" for at, step in enumerate(row) if step), str(start)])
        for row, start in zip(access.index, access.offset, strict=True)
    ]
