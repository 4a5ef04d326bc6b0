"""What a model does in one run, as plain data: calls of kernels, and where each tensor lies.

The offsets are those of the arena that the pipeline planned. Kernels that keep large buffers for themselves get them in
what is free of the arena while they run, and behind it where that is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tvm_ext.errors import GraphError


class Region(StrEnum):
    """Where a tensor lies."""

    ARENA = "arena"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True)
class Place:
    """A tensor's first byte.

    Attributes
    ----------
    region : Region
    number : int
        Which constant, input or output; 0 for the arena.
    offset : int
        Bytes.
    """

    region: Region
    number: int
    offset: int = 0


@dataclass(frozen=True)
class Argument:
    """What a kernel is given for a parameter.

    Attributes
    ----------
    tensor : str
        Its name, for messages.
    place : Place
    bytes : int
    read, written : bool
        What the kernel does with it.
    written_first : bool
        The kernel reads nothing of it that it did not write, such as the row before.
    """

    tensor: str
    place: Place
    bytes: int
    read: bool = True
    written: bool = False
    written_first: bool = False


@dataclass(frozen=True)
class Step:
    """A call of a kernel.

    Attributes
    ----------
    kernel : str
    arguments : tuple of Argument
    scratch : int or None
        Where in the arena the buffers begin that the kernel keeps for itself; None if it has none there.
    scratch_bytes : int
    """

    kernel: str
    arguments: tuple[Argument, ...]
    scratch: int | None = None
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """What the C sources of a model do in one run.

    Attributes
    ----------
    steps : tuple of Step
    arena : int
        Bytes, with what kernels keep for themselves.
    planned : int
        Bytes of the arena as the pipeline planned it, for tensors between kernels.
    copies : tuple of (Argument, int)
        Outputs that no kernel writes: where they are at the end, and which output that is.
    """

    steps: tuple[Step, ...]
    arena: int
    planned: int
    copies: tuple[tuple[Argument, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self)


def place_scratch(
    steps: Sequence[Step],
    planned: int,
    needed: Mapping[str, int],
    copies: Sequence[tuple[Argument, int]] = (),
    alignment: int = 64,
) -> Plan:
    """Find room for what kernels keep for themselves.

    Parameters
    ----------
    steps : sequence of Step
        Without scratch.
    planned : int
        Bytes of the arena that the tensors are planned in.
    needed : mapping of str to int
        Bytes of scratch, by kernel.
    copies : sequence of (Argument, int)
        See :class:`Plan`.
    alignment : int
        Bytes that offsets are multiples of.

    Returns
    -------
    Plan
        Each scratch at the lowest offset at which it meets nothing that is alive.
    """
    alive = _alive(steps, copies)
    size = planned
    placed = []
    for number, step in enumerate(steps):
        bytes_needed = needed.get(step.kernel, 0)
        if not bytes_needed:
            placed.append(step)
            continue
        taken = sorted((low, high) for low, high, first, last in alive if first <= number <= last)
        offset = 0
        for low, high in taken:
            if offset + bytes_needed <= low:
                break
            offset = max(offset, -(-high // alignment) * alignment)
        size = max(size, offset + bytes_needed)
        placed.append(Step(step.kernel, step.arguments, offset, bytes_needed))
    return Plan(tuple(placed), size, planned, tuple(copies))


def _alive(steps: Sequence[Step], copies: Sequence[tuple[Argument, int]]) -> list[tuple[int, int, int, int]]:
    """List first byte, end, first and last step of everything in the arena: from each write to the last read of it."""
    found: list[tuple[int, int, int, int]] = []
    writes: list[tuple[int, int, int]] = []  # first byte, end, step; the last one to a byte counts
    for number, arguments in enumerate([*(step.arguments for step in steps), tuple(one for one, _ in copies)]):
        inside = [argument for argument in arguments if argument.place.region == Region.ARENA]
        for argument in inside:
            low, high = argument.place.offset, argument.place.offset + argument.bytes
            found.append((low, high, number, number))
            if not argument.read:
                continue
            missing = [(low, high)]
            for start, end, step in reversed(writes):
                if missing and any(start < right and left < end for left, right in missing):
                    found += [
                        (max(start, left), min(end, right), step, number)
                        for left, right in missing
                        if start < right and left < end
                    ]
                    missing = [
                        part
                        for left, right in missing
                        for part in ((left, min(right, start)), (max(left, end), right))
                        if part[0] < part[1]
                    ]
        writes += [
            (argument.place.offset, argument.place.offset + argument.bytes, number)
            for argument in inside
            if argument.written
        ]
    return found


def verify_plan(plan: Plan, granule: int = 64) -> None:
    """Run the calls on a shadow of the arena, with scratch and without: every read must find the same.

    No tensor may be written between the write of another that shares bytes with it and a read of that.

    Parameters
    ----------
    plan : Plan
    granule : int
        Bytes that one element of the shadow stands for.

    Raises
    ------
    GraphError
        If a kernel would read what another kernel's scratch, its own, or another tensor destroyed, or reaches outside
        the arena.
    """
    shadows = [np.full(-(-plan.arena // granule), -1, np.int64) for _ in range(2)]
    last = len(plan.steps)
    arguments = [*(step.arguments for step in plan.steps), tuple(argument for argument, _ in plan.copies)]
    for number, given in enumerate(arguments):
        step = plan.steps[number] if number < last else None
        where = f"step {number}, kernel {step.kernel}" if step is not None else "a copy to an output"
        ranges = [
            (one, _granules(plan, where, one.place.offset, one.bytes, granule)) for one in given if _is_inside(one)
        ]
        if step is not None and step.scratch is not None:
            own = _granules(plan, where, step.scratch, step.scratch_bytes, granule)
            shadows[0][own] = -2 - number
        for argument, part in ranges:
            known = shadows[1][part] >= 0  # nothing can be destroyed where nothing was written
            if argument.read and not np.array_equal(shadows[0][part][known], shadows[1][part][known]):
                raise GraphError(
                    f"{where}: what it reads of '{argument.tensor}' was destroyed by a kernel's own buffers"
                )
        for argument, part in ranges:
            if argument.written:
                for shadow in shadows:
                    shadow[part] = number
        if step is not None and step.scratch is not None and not np.all(shadows[0][own] == -2 - number):
            raise GraphError(f"{where}: its own buffers lie in a tensor that it writes")
    _require_intact(arguments)


def _require_intact(arguments: Sequence[Sequence[Argument]]) -> None:
    written: dict[str, int] = {}  # tensor -> last step that wrote it
    writes = [[one for one in given if one.written and _is_inside(one)] for given in arguments]
    for number, given in enumerate(arguments):
        for one in given:
            if not one.read or one.written_first or not _is_inside(one):
                continue
            between = range(written.get(_whole(one), number) + 1, number)
            others = [
                (step, two)
                for step in between
                for two in writes[step]
                if _whole(two) != _whole(one) and _overlap(one, two)
            ]
            if others and not _is_made_of(one, [two for _, two in others]):
                step, other = others[0]
                raise GraphError(f"step {number} reads '{one.tensor}', over which step {step} wrote '{other.tensor}'")
        for one in writes[number]:
            written[_whole(one)] = number


def _is_made_of(one: Argument, parts: Sequence[Argument]) -> bool:
    """Whether tensors are the parts that one is put together of: all inside of it, and not a byte without them.

    A concatenation whose operands were written into it has the name of an earlier tensor of its place and shape.
    """
    low, end = one.place.offset, one.place.offset + one.bytes
    if any(part.place.offset < low or part.place.offset + part.bytes > end for part in parts):
        return False
    for start, size in sorted((part.place.offset, part.bytes) for part in parts):
        if start > low:
            return False
        low = max(low, start + size)
    return low >= end


def _whole(argument: Argument) -> str:
    """Name of the tensor that an argument is, or is a part of."""
    return argument.tensor.partition("/")[0]


def _overlap(one: Argument, two: Argument) -> bool:
    low, high = one.place.offset, two.place.offset
    return low < high + two.bytes and high < low + one.bytes


def _is_inside(argument: Argument) -> bool:
    return argument.place.region == Region.ARENA


def _granules(plan: Plan, where: str, offset: int, size: int, granule: int) -> slice:
    if offset < 0 or offset + size > plan.arena:
        raise GraphError(f"{where}: bytes {offset:,} to {offset + size:,} are outside the arena of {plan.arena:,}")
    return slice(offset // granule, -(-(offset + size) // granule))
