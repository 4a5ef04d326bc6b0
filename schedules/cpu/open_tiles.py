"""What kernels that are written out for open extents share: tiles along a row, and the epilogue of what they compute.

No split of an open extent leaves loops of known lengths, so that these kernels are no schedules: a rule reads from the
blocks what is computed, and writes the loops out.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.script.ir_builder import tirx as T
from tvm.tirx import IterVar

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE
from tvm_ext.schedules.cpu.machine import Machine

FEW_COLUMNS = 4
"""Columns of the tiles that take what is left over, up to the last few of a row."""

ZERO = tirx.const(0, "int64")


class Epilogue:
    """What is computed of the elements of a result, as it is stored.

    Parameters
    ----------
    result : tvm.tirx.Buffer
        What the block before computes.
    store : tvm.s_tir.SBlock
        The block that stores.
    """

    def __init__(self, result: Any, store: Any) -> None:
        self.result, self._store = result, store
        self._axes = [axis.var for axis in store.iter_vars]

    def fits(self) -> bool:
        """Whether the epilogue reads the result where it stores its own, element by element."""
        axes, shape = self._axes, self.result.shape
        if len(axes) != len(shape) or not isinstance(self._store.body, tirx.BufferStore):
            return False
        analyzer = tvm.sym.Analyzer()
        return all(
            int(axis.iter_type) == IterVar.DataPar and analyzer.can_prove_equal(axis.dom.extent, extent)
            for axis, extent in zip(self._store.iter_vars, shape, strict=True)
        ) and all(self._at_axes(load.indices) for load in self._loads() if load.source.same_as(self.result))

    def counts_rows(self) -> bool:
        """Whether all that is read and stored lies as the result does, or is the same for all rows.

        Then the axes before the last but one may be 0, and the last but one the number of the row among all rows: the
        address is the same.
        """
        return self._same_addresses(self._axes[:-1])

    def counts_pixels(self) -> bool:
        """Whether all that is read and stored lies as the result does, or is the same for all pixels of an image.

        Then rows (and planes) may be 0, and the column the number of the pixel in its image: the address is the same.
        """
        return self._same_addresses(self._axes[2:-1])

    def is_plain(self) -> bool:
        """Whether nothing is called, as a function like ``exp`` is: calls are long code in a tile."""
        found: list[Any] = []
        tvm_ffi.structural_walk(self._store.body.value, (tvm.ir.Call, found.append))
        return not found

    def store(self, element: Any, index: Sequence[Any]) -> None:
        """Apply the epilogue to an element of the result, and store that."""
        values = dict(zip(self._axes, index, strict=True))

        def replaced(node: Any) -> Any:
            node = tvm_ffi.structural_map(
                node, (tvm.ir.TensorLoad, lambda load: element if load.source.same_as(self.result) else load)
            )
            return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda variable: values.get(variable, variable)))

        body = self._store.body
        T.buffer_store(body.buffer, replaced(body.value), [replaced(index) for index in body.indices])

    def _loads(self) -> list[Any]:
        return loads_of(self._store.body.value)

    def _at_axes(self, indices: Sequence[Any]) -> bool:
        return len(indices) == len(self._axes) and all(
            index.same_as(axis) or (isinstance(extent, tirx.IntImm) and int(extent) == 1)
            for index, axis, extent in zip(indices, self._axes, self.result.shape, strict=True)
        )

    def _same_addresses(self, axes: Sequence[Any]) -> bool:
        """Whether all that uses one of ``axes`` is an address of a tensor that lies as the result does."""
        body = self._store.body
        same = _same_shape(body.buffer.shape, self.result.shape) and self._at_axes(body.indices)
        return (
            same
            and all(
                (_same_shape(load.source.shape, self.result.shape) and self._at_axes(load.indices))
                or not any(_uses(index, axes) for index in load.indices)
                for load in self._loads()
            )
            and not _uses(_without_loads(body.value), axes)
        )


class OpenWindows:
    """Reads what the blocks of a convolution or pooling compute, and stores elements through its epilogue.

    Parameters
    ----------
    schedule : Schedule
        With two blocks, what is computed and what stores it.
    window, store : SBlockRV
    """

    def __init__(self, schedule: Schedule, window: SBlockRV, store: SBlockRV) -> None:
        block = schedule.get(window)
        self.kind = str(block.annotations[KERNEL_ATTRIBUTE])
        self.result = block.body.buffer
        self.epilogue = Epilogue(self.result, schedule.get(store))
        self.fits, self.store = self.epilogue.fits, self.epilogue.store
        self.rank = len(self.result.shape) - 3
        geometry = [int(item) for item in block.annotations[GEOMETRY_ATTRIBUTE]]
        rank = self.rank
        self.strides, self.dilation, self.before = (geometry[i * rank : (i + 1) * rank] for i in range(3))
        self.further = geometry[3 * rank :]
        read = [buffer for buffer in _sources(block.body.value) if not buffer.same_as(self.result)]
        self.weight = next((b for b in read if all(isinstance(extent, tirx.IntImm) for extent in b.shape)), None)
        self.data = next(buffer for buffer in read if self.weight is None or not buffer.same_as(self.weight))
        self.lanes, self.dtype = int(self.result.shape[-1]), str(self.result.dtype)


def tiles(first: Any, left: Any, widths: Sequence[int], tile: Callable[[Any, int], None]) -> None:
    """Go along ``left`` columns from ``first`` on, in tiles of the first width, then of the next.

    ``tile`` emits what is done for some columns from one on. Each width is code of its own.
    """
    for columns in widths:
        count = left // columns

        def whole_tiles(count: Any = count, columns: int = columns, first: Any = first) -> None:
            with T.serial(ZERO, count) as number:
                tile(first + number * columns, columns)

        whole_tiles()
        first, left = first + count * columns, left - count * columns


def check_tile(count: int, vectors: int, machine: Machine) -> None:
    """Refuse a tile of ``count`` rows or columns that the registers do not hold, with its weights and one broadcast.

    Raises
    ------
    ScheduleError
        If that is so.
    """
    if count * vectors + vectors + 1 > machine.vector_registers:
        raise ScheduleError(f"a tile of {count} x {vectors} vectors is more than {machine.vector_registers} registers")


def whole(number: Any) -> Any:
    """Give an extent as an expression of 64 bits, as the indices of tensors of open extents are."""
    return tirx.const(number, "int64") if isinstance(number, int) else number


def product(extents: Sequence[Any]) -> Any:
    """Multiply extents."""
    total: Any = tirx.const(1, "int64")
    for extent in extents:
        total = total * extent
    return tvm.sym.Analyzer().simplify(total)


def digits(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Take a number apart into one index for each extent, the last one running fastest."""
    found: list[Any] = []
    for extent in reversed(list(extents)[1:]):
        if isinstance(extent, int | tirx.IntImm) and int(extent) == 1:
            found.append(ZERO)
            continue
        found.append(number % extent)
        number = number // extent
    return [*([number] if extents else []), *reversed(found)]


def registers(*shape: int, dtype: str) -> Any:
    """Allocate what a task keeps for itself, less than a kilobyte: it is on the stack, and LLVM has it in registers.

    What is larger, or in TVM's scope of registers, comes from the runtime: a call for each task, and memory that may be
    the same as any other for all that LLVM knows.
    """
    return T.sblock_alloc_buffer(shape, dtype, scope="global")


def kept(values: Sequence[Any]) -> list[Any]:
    """Compute numbers here, in a block, and give what reads them again.

    Simplification puts the value of a name in its place. The divisions that a place is made of would be part of every
    index of an unrolled tile: most of the time of compilation, and code that the loops of short rows wait for.
    """
    numbers = [value for value in values if not isinstance(value, int | tirx.IntImm)]
    if not numbers:
        return list(values)
    places = registers(len(numbers), dtype="int64")
    for at, value in enumerate(numbers):
        T.buffer_store(places, value, [whole(at)])
    again = iter(range(len(numbers)))
    return [value if isinstance(value, int | tirx.IntImm) else places[whole(next(again))] for value in values]


def loads_of(value: Any) -> list[Any]:
    """List what an expression reads, as often as it does."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, found.append))
    return found


def _uses(expression: Any, axes: Sequence[Any]) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, found.append))
    return any(variable.same_as(axis) for variable in found for axis in axes)


def _without_loads(value: Any) -> Any:
    """Give an expression with numbers in place of what it reads."""
    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, lambda load: tirx.const(0, str(load.source.dtype))))


def _same_shape(one: Sequence[Any], other: Sequence[Any]) -> bool:
    analyzer = tvm.sym.Analyzer()
    return len(one) == len(other) and all(map(analyzer.can_prove_equal, one, other))


def _sources(value: Any) -> list[Any]:
    """List the buffers that an expression reads, each once."""
    found: list[Any] = []
    for load in loads_of(value):
        if not any(load.source.same_as(other) for other in found):
            found.append(load.source)
    return found
