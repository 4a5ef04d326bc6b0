"""The memories of a GPU as arrays: global, shared by a block, a thread's own, and fragments of a warp.

Indices are those of elements: one number for all lanes, an array (lanes), or an array (elements, lanes) or
(elements, 1) for vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator.lanes import Lanes
from tvm_ext.errors import CompileError

_EXTENSIONS = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
}


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Give numpy's type of one element of a type of TIR."""
    element = dtype.partition("x")[0]
    if element in _EXTENSIONS:
        return _EXTENSIONS[element]
    if element in ("int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn") or dtype == "handle":
        raise CompileError(f"the emulator has no memory for elements of type {dtype}")
    return np.dtype(element)


@dataclass(eq=False)
class Access:
    """A place in a kernel that reads or writes a buffer.

    Attributes
    ----------
    kernel, buffer, text : str
        For reports.
    number : int
        Among the accesses of the kernel.
    itemsize : int
        Bytes of an element.
    together : int
        Elements that one instruction moves, where a vector's elements are neighbours.
    """

    kernel: str
    buffer: str
    text: str
    number: int
    itemsize: int
    together: int = 1


class Storage(ABC):
    """Memory of one allocation, read and written as elements of some type.

    Parameters
    ----------
    nbytes : int
        Of one copy of it.
    scope : str
        As in TIR.
    """

    ordered = True
    """Whether threads have to be kept apart by barriers."""

    def __init__(self, nbytes: int, scope: str) -> None:
        self.nbytes, self.scope = nbytes, scope
        self._views: dict[Any, NDArray[Any]] = {}

    def extent(self, dtype: np.dtype[Any]) -> int:
        """Count the elements of a type that it holds."""
        return self.nbytes // dtype.itemsize

    @abstractmethod
    def load(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, access: Access) -> Any:
        """Read elements; lanes that are not active get any value."""

    @abstractmethod
    def store(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, value: Any, access: Access) -> None:
        """Write elements of the active lanes."""

    def inside(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, access: Access) -> tuple[Any, Any]:
        """Check indices; gives them with those out of bounds replaced by 0, and the mask of lanes that may be used."""
        extent = self.extent(dtype)
        mask = lanes.mask
        if not isinstance(index, np.ndarray):
            if 0 <= index < extent:
                return index, mask
            index = np.full((1,), index)
        elif index.size and index.min() >= 0 and index.max() < extent:
            return index, mask
        wrong = (index < 0) | (index >= extent)
        bad = wrong if mask is None else wrong & mask
        if bad.any() and lanes.checker is not None:
            lanes.checker.out_of_bounds(lanes, access, index, bad, extent)
        return np.where(wrong, 0, index), ~wrong if mask is None else mask & ~wrong


def spread(lanes: Lanes, *values: Any) -> tuple[Any, ...]:
    """Bring values to one shape that has all lanes in its last axis."""
    return np.broadcast_arrays(*values, lanes.lane)[: len(values)]


class Global(Storage):
    """Memory of the device, which all blocks see."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array.nbytes, "global")
        self.array = array
        self.bytes = array.reshape(-1).view(np.uint8)
        self.written = False  # by the kernel that runs

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """See the memory as elements of a type."""
        found = self._views.get(dtype)
        if found is None:
            size = self.nbytes // dtype.itemsize * dtype.itemsize
            # Threads that are not active read something of a tensor without elements, too.
            found = self._views[dtype] = self.bytes[:size].view(dtype) if size else np.zeros(1, dtype)
        return found

    def base(self, lanes: Lanes, dtype: np.dtype[Any]) -> Any:
        """Where the copy of each lane begins in :meth:`view`."""
        return 0

    def load(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, access: Access) -> Any:
        """Read elements; lanes that are not active get any value."""
        index, mask = self.inside(lanes, dtype, index, access)
        place = index + self.base(lanes, dtype)
        if lanes.checker is not None:
            lanes.checker.read(lanes, self, dtype, index, place, mask, access)
        return self.view(dtype)[place]

    def store(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, value: Any, access: Access) -> None:
        """Write elements of the active lanes."""
        index, mask = self.inside(lanes, dtype, index, access)
        place, value = spread(lanes, index + self.base(lanes, dtype), value)
        if lanes.checker is not None:
            lanes.checker.write(lanes, self, dtype, index, place, mask, value, access)
        if mask is not None:
            mask = np.broadcast_to(mask, place.shape)
            place, value = place[mask], value[mask]
        self.view(dtype)[place] = value

    def join(
        self, lanes: Lanes, dtype: np.dtype[Any], index: Any, value: Any, operation: np.ufunc, access: Access
    ) -> None:
        """Join elements with the values of the active lanes, each of which does so by itself."""
        index, mask = self.inside(lanes, dtype, index, access)
        place, value = spread(lanes, index, value)
        if lanes.checker is not None:
            lanes.checker.atomic(lanes, self, dtype, place, mask, access)
        if mask is not None:
            mask = np.broadcast_to(mask, place.shape)
            place, value = place[mask], value[mask]
        operation.at(self.view(dtype), place, value.astype(dtype))


class Shared(Global):
    """Memory that the threads of a block share; a copy for each block."""

    def __init__(self, nbytes: int, scope: str, blocks: int) -> None:
        self._stride = -(-nbytes // 16) * 16  # so that a copy begins at an element of every type
        super().__init__(np.full(self._stride * blocks, 0xFF, np.uint8))  # not a number, in every type of floats
        self.nbytes, self.scope = nbytes, scope
        self._bases: dict[int, Any] = {}

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """See all copies as elements of a type."""
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.array.view(dtype)
        return found

    def base(self, lanes: Lanes, dtype: np.dtype[Any]) -> Any:
        """Where the copy of each lane begins in :meth:`view`."""
        found = self._bases.get(dtype.itemsize)
        if found is None:
            found = self._bases[dtype.itemsize] = lanes.block * (self._stride // dtype.itemsize)
        return found


class Local(Storage):
    """Registers and local memory of threads: a row of an element for all lanes."""

    ordered = False

    def __init__(self, elements: int, dtype: np.dtype[Any], lanes: int) -> None:
        super().__init__(elements * dtype.itemsize, "local")
        raw = np.full(elements * lanes * dtype.itemsize, 0xFF, np.uint8)
        self._dtype, self.rows = dtype, raw.view(dtype).reshape(elements, lanes)

    def cells(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """See the memory as (elements, lanes) of a type as wide as the one that it was allocated with."""
        if dtype == self._dtype:
            return self.rows
        if dtype.itemsize != self._dtype.itemsize:
            raise CompileError(f"the emulator cannot see local memory of {self._dtype} as {dtype}")
        return self.rows.view(dtype)

    def load(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, access: Access) -> Any:
        """Read elements; lanes that are not active get any value."""
        index, _ = self.inside(lanes, dtype, index, access)
        cells = self.cells(dtype)
        if not isinstance(index, np.ndarray):
            return cells[index]
        if index.shape[-1] == 1:
            return cells[index[..., 0]]
        return cells[index, lanes.lane]

    def store(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, value: Any, access: Access) -> None:
        """Write elements of the active lanes."""
        index, mask = self.inside(lanes, dtype, index, access)
        cells = self.cells(dtype)
        if mask is None and (not isinstance(index, np.ndarray) or index.shape[-1] == 1):
            cells[index[..., 0] if isinstance(index, np.ndarray) else index] = value
        elif not isinstance(index, np.ndarray):
            np.copyto(cells[index], value, where=mask, casting="unsafe")
        else:
            index, value = spread(lanes, index, value)
            lane = np.broadcast_to(lanes.lane, index.shape)
            if mask is not None:
                mask = np.broadcast_to(mask, index.shape)
                index, lane, value = index[mask], lane[mask], value[mask]
            cells[index, lane] = value


class Fragments(Storage):
    """Matrices that a warp holds in registers, in a form that ``wmma`` keeps to itself: (warps, elements)."""

    ordered = False

    def __init__(self, elements: int, dtype: np.dtype[Any], warps: int, scope: str) -> None:
        super().__init__(elements * dtype.itemsize, scope)
        raw = np.full(warps * elements * dtype.itemsize, 0xFF, np.uint8)
        self.values = raw.view(dtype).reshape(warps, elements)

    def matrices(self, index: int, rows: int, columns: int) -> NDArray[Any]:
        """Give the fragment of some number as (warps, rows, columns), to read or write."""
        size = rows * columns
        if not 0 <= index < self.values.shape[1] // size:
            raise CompileError(
                f"a kernel uses fragment {index} of {self.scope}, which has {self.values.shape[1] // size}"
            )
        return self.values[:, index * size : (index + 1) * size].reshape(-1, rows, columns)

    def load(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, access: Access) -> Any:
        """Refuse: which thread has an element is not told."""
        raise self._refusal(access)

    def store(self, lanes: Lanes, dtype: np.dtype[Any], index: Any, value: Any, access: Access) -> None:
        """Refuse: which thread has an element is not told."""
        raise self._refusal(access)

    def _refusal(self, access: Access) -> CompileError:
        return CompileError(
            f"kernel {access.kernel} takes single elements of {access.buffer}, a fragment of {self.scope}, of which "
            "CUDA does not tell where they are; load or store the whole fragment"
        )
