"""DRAM as the accelerator sees it: one flat image, and named buffers laid out in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tvm_ext.errors import VTAProgramError

PAGE_BYTES = 4096
ADDRESS_SPACE = 1 << 32


@dataclass(frozen=True)
class Region:
    """A buffer in DRAM.

    Attributes
    ----------
    name : str
    address : int
        Physical address of its first byte.
    nbytes : int
    """

    name: str
    address: int
    nbytes: int


@dataclass
class MemoryImage:
    """A growing DRAM image, as the host prepares it before a run.

    Attributes
    ----------
    base : int
        Physical address of its first byte.
    data : NDArray[np.uint8]
        Its contents, a whole number of pages.
    regions : dict
        Buffers by name.
    """

    base: int = PAGE_BYTES
    data: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    regions: dict[str, Region] = field(default_factory=dict)

    def allocate(self, name: str, contents: NDArray | int) -> Region:
        """Append a buffer that begins on a page, so that it is aligned for elements of every size.

        Parameters
        ----------
        name : str
        contents : array or int
            What it holds, or how many zero bytes.

        Raises
        ------
        VTAProgramError
            If the name is taken or 32-bit addresses are used up.
        """
        if name in self.regions:
            raise VTAProgramError(f"the memory image has a buffer {name!r} already; choose another name")
        nbytes = contents if isinstance(contents, int) else contents.nbytes
        address = self.base + self.data.size
        pages = -(-nbytes // PAGE_BYTES)
        if address + pages * PAGE_BYTES > ADDRESS_SPACE:
            raise VTAProgramError(f"buffer {name!r} of {nbytes} bytes does not fit the 4 GiB that VTA can address")
        self.data = np.concatenate([self.data, np.zeros(pages * PAGE_BYTES, np.uint8)])
        self.regions[name] = Region(name, address, nbytes)
        if not isinstance(contents, int):
            self.write(name, contents)
        return self.regions[name]

    def write(self, name: str, contents: NDArray) -> None:
        """Fill a buffer from its start.

        Raises
        ------
        VTAProgramError
            If the contents are larger than the buffer.
        """
        region = self.regions[name]
        if contents.nbytes > region.nbytes:
            raise VTAProgramError(f"{contents.nbytes} bytes do not fit buffer {name!r} of {region.nbytes} bytes")
        start = region.address - self.base
        self.data[start : start + contents.nbytes] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)

    def read(
        self, name: str, dtype: DTypeLike, shape: tuple[int, ...], data: NDArray[np.uint8] | None = None
    ) -> NDArray:
        """Return a buffer's contents, of this image or of ``data``, its state after a run."""
        region = self.regions[name]
        start = region.address - self.base
        source = self.data if data is None else data
        return source[start : start + region.nbytes].view(dtype)[: int(np.prod(shape))].reshape(shape).copy()


def check_image(dram: NDArray, base: int) -> None:
    """Check the form of a memory image.

    Raises
    ------
    VTAProgramError
        If it is not one axis of uint8, within 32-bit addresses.
    """
    if dram.dtype != np.uint8 or dram.ndim != 1 or base < 0 or base + dram.size > ADDRESS_SPACE:
        raise VTAProgramError(
            f"a memory image is a uint8 array [bytes] within 32-bit addresses; "
            f"found {dram.dtype}{list(dram.shape)} from address {base:#x}"
        )


@dataclass(frozen=True)
class SimulationResult:
    """What a run did.

    Attributes
    ----------
    dram : NDArray[np.uint8]
        The image after the run.
    steps : dict
        Micro-ops executed: ``gemm`` (multiplying), ``reset`` (by GEMM as well), ``alu``.
    bytes_moved : dict
        Bytes loaded from DRAM by memory (``uop``, ``wgt``, ``inp``, ``acc``, ``acc_8bit``) and stored (``out``).
    tokens_left : tuple of int
        Tokens that nobody took: load to compute, compute to load, compute to store, store to compute.
    """

    dram: NDArray[np.uint8]
    steps: dict[str, int]
    bytes_moved: dict[str, int]
    tokens_left: tuple[int, int, int, int]
