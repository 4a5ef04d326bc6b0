"""Memory that lies in one piece for the accelerator: where a board's Linux provides it.

- ``udmabuf``: the kernel module u-dma-buf, one buffer of a size chosen when it is loaded; works on any image;
- ``reserved``: a range of physical memory that the kernel was told to leave alone, through ``/dev/mem``;
- ``libcma``: the library of PYNQ images up to 2.6, which upstream's driver used.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.registers import physical_memory
from tvm_ext.backends.vta.memory import PAGE_BYTES
from tvm_ext.errors import VTADeviceError


class Allocation(Protocol):
    """A buffer in one piece.

    Attributes
    ----------
    address : int
        Physical address.
    contents : NDArray[np.uint8]
        The buffer as the host sees it.
    """

    address: int
    contents: NDArray[np.uint8]

    def flush(self) -> None:
        """Let the accelerator see what the host wrote."""
        ...

    def invalidate(self) -> None:
        """Let the host see what the accelerator wrote."""
        ...

    def free(self) -> None:
        """Give the memory back."""
        ...


class ContiguousMemory(Protocol):
    """Gives buffers in one piece."""

    def allocate(self, nbytes: int) -> Allocation:
        """Return a buffer that begins on a page.

        Raises
        ------
        VTADeviceError
            If there is no room.
        """
        ...


class RangeMemory:
    """One range of uncached memory, given out page by page, first fit.

    Parameters
    ----------
    contents : NDArray[np.uint8]
        The range as the host sees it; a whole number of pages is used.
    address : int
        Its physical address.

    Raises
    ------
    VTADeviceError
        If it does not begin on a page, or is smaller than one.
    """

    def __init__(self, contents: NDArray[np.uint8], address: int) -> None:
        if address % PAGE_BYTES or contents.size < PAGE_BYTES:
            raise VTADeviceError(
                f"{contents.size} bytes at physical address {address:#x} cannot be the accelerator's memory; it "
                f"begins at a multiple of {PAGE_BYTES}, and has at least as many bytes"
            )
        self.contents = contents
        self.address, self._pages = address, contents.size // PAGE_BYTES
        self._used: dict[int, int] = {}  # first page -> pages

    def allocate(self, nbytes: int) -> Allocation:
        """Return a buffer that begins on a page; raises VTADeviceError if there is no room."""
        pages = max(1, -(-nbytes // PAGE_BYTES))
        first = 0
        for begin, length in sorted(self._used.items()):
            if begin - first >= pages:
                break
            first = begin + length
        if first + pages > self._pages:
            free = self._pages - sum(self._used.values())
            raise VTADeviceError(
                f"no room for a buffer of {nbytes} bytes: of the accelerator's {self._pages * PAGE_BYTES} bytes "
                f"{free * PAGE_BYTES} are free, perhaps in several pieces; reserve more memory for it"
            )
        self._used[first] = pages
        start = first * PAGE_BYTES
        return _RangeAllocation(self, first, self.address + start, self.contents[start : start + nbytes])

    def release(self, first: int) -> None:
        """Take the pages of a buffer back."""
        del self._used[first]


class _RangeAllocation:
    """Uncached: nothing to flush or to invalidate."""

    def __init__(self, memory: RangeMemory, first: int, address: int, contents: NDArray[np.uint8]) -> None:
        self._memory, self._first = memory, first
        self.address, self.contents = address, contents

    def flush(self) -> None:
        pass

    def invalidate(self) -> None:
        pass

    def free(self) -> None:
        self._memory.release(self._first)


def mapped_memory(path: str, offset: int, address: int, nbytes: int) -> RangeMemory:
    """Map a range of physical memory.

    Parameters
    ----------
    path : str
        Device file.
    offset : int
        Where in the file the range begins.
    address : int
        Its physical address.
    nbytes : int

    Raises
    ------
    VTADeviceError
        If the file cannot be opened or mapped.
    """
    with physical_memory(path) as descriptor:
        try:
            contents = np.frombuffer(mmap.mmap(descriptor, nbytes, offset=offset), np.uint8)
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise VTADeviceError(
                f"cannot map {nbytes} bytes at {address:#x} from {path}: {reason}; "
                "is the range really reserved, and not used by the kernel?"
            ) from None
    return RangeMemory(contents, address)


def udmabuf_memory(
    name: str = "udmabuf0", devices: str = "/dev", attributes: str = "/sys/class/u-dma-buf"
) -> RangeMemory:
    """Return the buffer of the kernel module u-dma-buf.

    Raises
    ------
    VTADeviceError
        If there is no such buffer.
    """
    try:
        address = int((Path(attributes) / name / "phys_addr").read_text(), 16)
        nbytes = int((Path(attributes) / name / "size").read_text())
    except (OSError, ValueError) as error:
        raise VTADeviceError(
            f"no buffer {name!r} of u-dma-buf ({error}); load the module first: modprobe u-dma-buf {name}=67108864"
        ) from None
    return mapped_memory(str(Path(devices) / name), 0, address, nbytes)


def reserved_memory(address: int, nbytes: int, path: str = "/dev/mem") -> RangeMemory:
    """Return a range of physical memory that the kernel leaves alone (``mem=`` or ``reserved-memory``)."""
    return mapped_memory(path, address, address, nbytes)


class LibcmaMemory:
    """Memory from ``libcma.so`` of the PYNQ images up to 2.6; cached, so it is flushed and invalidated.

    Parameters
    ----------
    library : str

    Raises
    ------
    VTADeviceError
        If the library is not there.
    """

    def __init__(self, library: str = "libcma.so") -> None:
        try:
            self.driver = ctypes.CDLL(library)
            self.driver.cma_alloc.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
            self.driver.cma_alloc.restype = ctypes.c_void_p
            self.driver.cma_free.argtypes = [ctypes.c_void_p]
            self.driver.cma_get_phy_addr.argtypes = [ctypes.c_void_p]
            self.driver.cma_get_phy_addr.restype = ctypes.c_ulong
            for function in (self.driver.cma_flush_cache, self.driver.cma_invalidate_cache):
                function.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int]
        except (OSError, AttributeError) as error:
            raise VTADeviceError(
                f"cannot use {library}: {error}; PYNQ images from 2.7 on do not have it: load u-dma-buf there"
            ) from None

    def allocate(self, nbytes: int) -> Allocation:
        """Return a buffer that begins on a page; raises VTADeviceError if there is no room."""
        pointer = self.driver.cma_alloc(max(nbytes, 1), 1)
        if pointer in (None, 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1):
            raise VTADeviceError(f"libcma has no room for a buffer of {nbytes} bytes; end other users of it")
        return _LibcmaAllocation(self.driver, pointer, nbytes)


class _LibcmaAllocation:
    def __init__(self, library: ctypes.CDLL, pointer: int, nbytes: int) -> None:
        self._library, self._pointer, self._nbytes = library, pointer, nbytes
        self.address = int(library.cma_get_phy_addr(pointer))
        self.contents = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    def flush(self) -> None:
        self._library.cma_flush_cache(self._pointer, self.address, self._nbytes)

    def invalidate(self) -> None:
        self._library.cma_invalidate_cache(self._pointer, self.address, self._nbytes)

    def free(self) -> None:
        self._library.cma_free(self._pointer)


def memory_opener(description: str) -> Callable[[], ContiguousMemory]:
    """Give the function that opens memory, once its description is known to be one.

    Parameters
    ----------
    description : str
        ``udmabuf``, ``udmabuf:NAME``, ``libcma``, ``libcma:PATH`` or ``reserved:ADDRESS:BYTES`` (hexadecimal numbers
        begin with 0x).

    Raises
    ------
    VTADeviceError
        If it has another form; from the function that is given, if the memory cannot be had.
    """
    kind, _, rest = description.partition(":")
    if kind == "udmabuf":
        return partial(udmabuf_memory, rest or "udmabuf0")
    if kind == "libcma":
        return partial(LibcmaMemory, rest or "libcma.so")
    if kind == "reserved":
        try:
            address, nbytes = (int(number, 0) for number in rest.split(":"))
        except ValueError:
            raise VTADeviceError(
                f"memory {description!r}: expected reserved:ADDRESS:BYTES, for example reserved:0x18000000:0x4000000"
            ) from None
        return partial(reserved_memory, address, nbytes)
    raise VTADeviceError(f"memory {description!r} is not known; expected udmabuf, libcma or reserved:ADDRESS:BYTES")
