"""The kernel that finds the places of the few largest, or smallest, elements of each row.

Up to :data:`SORTED` are kept in order, and an element that is among them moves those behind it. More are kept as a
heap, with the last of them on top, which is put in order at the end.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_tiles import ZERO
from tvm_ext.schedules.cpu.tasks import ROUGH
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

FEW_LARGEST_RULE = "cpu.few_largest"
"""Stands as the schedule rule of the kernel: it is written as it should be."""

BLOCK_VECTORS = 2
"""Vectors of elements that are looked through at once: most hold nothing that is among the few so far."""

SCALARS = 4
"""As many stand for a vector where there are none."""

SORTED = 16
"""So many are kept in order at most: an element that is among them is compared with each."""


def few_largest(
    rows: int | None, length: int, count: int, largest: bool, dtype: str, place_type: str, machine: Machine | None
) -> PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    rows : int or None
        None where it is known only when the kernel runs.
    length, count : int
        Elements of a row, and how many of them are found.
    largest : bool
        Or the smallest.
    dtype, place_type : str
        Types of the elements, which are integers, and of the places.
    machine : Machine or None
        None for one thread without vectors.

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the elements ``(rows, length)`` and the places ``(rows, count)``, those of the largest first; of
        equal elements the one in front comes first.
    """
    block = BLOCK_VECTORS * (machine.lanes(dtype) if machine else SCALARS)
    ahead = count + (length - count) % block  # elements in front of the first block
    forks = machine is not None and _forks(rows, length, machine)

    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("few_largest")
            total = T.int64() if rows is None else tirx.const(rows, "int64")
            extents = [tirx.const(extent, "int64") for extent in (length, count, 1)]
            source = T.arg("source", T.buffer((total, extents[0]), dtype))
            result = T.arg("result", T.buffer((total, extents[1]), place_type))
            begin = T.parallel if forks else T.serial
            with T.sblock("root"), begin(ZERO, total) as task, T.sblock("row"):
                row = T.axis.spatial(total, task)
                found = T.sblock_alloc_buffer((extents[1],), dtype, scope="local")
                places = T.sblock_alloc_buffer((extents[1],), place_type, scope="local")
                extreme = T.sblock_alloc_buffer((extents[2],), dtype, scope="local")
                # Of a row that is kept whole nothing is ever compared with the last one in order.
                in_order = count <= SORTED and count < length
                kept = (_Sorted if in_order else _Heap)(found, places, count, largest)

                def look_at(place: Any) -> None:
                    with T.If(kept.precedes(source[row, place], kept.last)), T.Then():
                        kept.insert(T.bind(source[row, place]), place)

                def look_at_blocks() -> None:
                    with T.serial(ZERO, tirx.const((length - ahead) // block, "int64")) as number:
                        first = T.bind(ahead + number * block)
                        T.buffer_store(extreme, source[row, first], [0])
                        join = tirx.max if largest else tirx.min
                        with T.serial(ZERO, tirx.const(block, "int64")) as x:
                            T.buffer_store(extreme, join(extreme[0], source[row, first + x]), [0])
                        with T.If(kept.precedes(extreme[0], kept.last)), T.Then():
                            with T.serial(ZERO, tirx.const(block, "int64")) as x:
                                look_at(first + x)

                kept.begin(lambda place: source[row, place])
                if ahead > count:
                    with T.serial(ZERO, tirx.const(ahead - count, "int64")) as place:
                        look_at(place + count)
                if length > ahead:
                    look_at_blocks()
                kept.end()
                with T.serial(ZERO, extents[1]) as at:
                    T.buffer_store(result, places[at], [row, at])
    attributes = {RULE_ATTRIBUTE: FEW_LARGEST_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)


def _forks(rows: int | None, length: int, machine: Machine) -> bool:
    seconds = (rows or 1) * length * machine.operation_seconds
    return rows is None or (rows > 1 and seconds >= ROUGH * machine.forking_pays_from())


class _Kept:
    """Elements and their places that are the first so far; elements come in the order of their places."""

    def __init__(self, found: Any, places: Any, count: int, largest: bool) -> None:
        self.found, self.places, self.count, self._largest = found, places, count, largest
        self._place_type = str(places.dtype)

    def precedes(self, one: Any, other: Any) -> Any:
        return one > other if self._largest else one < other

    def put(self, at: Any, element: Any, place: Any) -> None:
        T.buffer_store(self.found, element, [at])
        T.buffer_store(self.places, tirx.Cast(self._place_type, place), [at])

    def end(self) -> None:
        """Put them in order."""


class _Sorted(_Kept):
    @property
    def last(self) -> Any:
        return self.found[self.count - 1]

    def begin(self, element: Any) -> None:
        for at in range(self.count):
            self.put(at, tirx.const(0, str(self.found.dtype)), 0)
        with T.serial(ZERO, tirx.const(self.count, "int64")) as place:
            self.insert(T.bind(element(place)), place, place)

    def insert(self, element: Any, place: Any, filled: Any = None) -> None:
        """Move what an element precedes by one; of the first ``filled`` places is known what they hold."""
        for at in range(self.count - 1, -1, -1):
            here = self.precedes(element, self.found[at])
            if filled is not None:
                here = tirx.any(at >= filled, here)
            before = None
            if at:
                before = self.precedes(element, self.found[at - 1])
                if filled is not None:
                    before = tirx.any(at - 1 >= filled, before)
            for kept, new in ((self.places, tirx.Cast(self._place_type, place)), (self.found, element)):
                moved = new if before is None else tirx.Select(before, kept[at - 1], new)
                T.buffer_store(kept, tirx.Select(here, moved, kept[at]), [at])


class _Heap(_Kept):
    """A binary heap: nothing comes behind what is above it."""

    def __init__(self, found: Any, places: Any, count: int, largest: bool) -> None:
        super().__init__(found, places, count, largest)
        one = tirx.const(1, "int64")
        self._hole = T.sblock_alloc_buffer((one,), "int64", scope="local")
        self._next = T.sblock_alloc_buffer((one,), "int64", scope="local")

    @property
    def last(self) -> Any:
        return self.found[0]

    def begin(self, element: Any) -> None:
        with T.serial(ZERO, tirx.const(self.count, "int64")) as place:
            self.put(place, element(place), place)
        parents = self.count // 2
        with T.serial(ZERO, tirx.const(parents, "int64")) as number:
            at = T.bind(parents - 1 - number)
            self._sift(at, T.bind(self.found[at]), T.bind(self.places[at]), self.count)

    def insert(self, element: Any, place: Any) -> None:
        self._sift(ZERO, element, T.bind(tirx.Cast(self._place_type, place)), self.count)

    def end(self) -> None:
        with T.serial(ZERO, tirx.const(self.count - 1, "int64")) as number:
            size = T.bind(self.count - 1 - number)
            element, place = T.bind(self.found[size]), T.bind(self.places[size])
            self.put(size, self.found[0], self.places[0])
            self._sift(ZERO, element, place, size)

    def _sift(self, start: Any, element: Any, place: Any, size: Any) -> None:
        """Let an element sink from a place on, until nothing below comes behind it."""
        hole, following = self._hole, self._next
        T.buffer_store(hole, start, [0])
        T.buffer_store(following, 2 * start + 1, [0])
        # A place beyond the end says that it stays.
        with T.serial(ZERO, tirx.const(self.count.bit_length(), "int64")), T.If(following[0] < size), T.Then():
            left = T.bind(following[0])
            right = T.bind(tirx.min(left + 1, size - 1))
            child = T.bind(tirx.Select(self._behind(right, self.found[left], self.places[left]), right, left))
            with T.If(self._behind(child, element, place)):
                with T.Then():
                    self.put(hole[0], self.found[child], self.places[child])
                    T.buffer_store(hole, child, [0])
                    T.buffer_store(following, 2 * child + 1, [0])
                with T.Else():
                    T.buffer_store(following, tirx.Cast("int64", size), [0])
        self.put(hole[0], element, place)

    def _behind(self, at: Any, element: Any, place: Any) -> Any:
        """Whether what is kept at a place comes behind an element."""
        found = self.found[at]
        return tirx.any(self.precedes(element, found), tirx.all(found == element, self.places[at] > place))
