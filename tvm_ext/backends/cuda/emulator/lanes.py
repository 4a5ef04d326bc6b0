"""The threads of some blocks, run in step: a value is one number for all of them, or an array with a number for each.

An array has the lanes (threads) in its last axis; a vector value of TIR has its elements in the axis before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tvm_ext.backends.cuda.emulator.memory import Storage
    from tvm_ext.backends.cuda.emulator.races import Checker

WARP = 32
DIMENSIONS = ("x", "y", "z")


@dataclass(frozen=True)
class Launch:
    """The shape of a launch: extents of the grid and of a block, x first."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """Thread blocks of the grid."""
        return int(np.prod(self.grid))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(np.prod(self.block))

    @property
    def warps(self) -> int:
        """Warps of a block, the last of which may be incomplete."""
        return -(-self.threads // WARP)


@dataclass(eq=False)
class Lanes:
    """The state of the threads of consecutive blocks.

    Attributes
    ----------
    launch : Launch
    first, count : int
        The blocks: their first number and how many they are.
    slots : list
        Values of variables, in the slots that the translation gave them.
    storages : list of Storage
        Memory, likewise.
    checker : Checker, optional
        Told of accesses and barriers.
    mask : array of bool (lanes) or (elements, lanes), optional
        The threads that are active; None for all.
    once : dict
        Values that depend on nothing but the numbers of thread and block.
    copies : list of list
        Asynchronous copies under way, in the groups that are waited for; the last group is open.
    products : list of list
        Products of warpgroups under way, likewise.
    unseen : bool
        Whether copies have arrived that products of warpgroups do not see yet.
    """

    launch: Launch
    first: int
    count: int
    slots: list[Any]
    storages: list[Storage | None]
    checker: Checker | None = None
    mask: NDArray[np.bool_] | None = None
    once: dict[int, Any] = field(default_factory=dict)
    copies: list[list[Any]] = field(default_factory=lambda: [[]])
    products: list[list[Any]] = field(default_factory=lambda: [[]])
    unseen: bool = False

    def __post_init__(self) -> None:
        threads = self.launch.threads
        self.lanes = self.count * threads
        self.lane = np.arange(self.lanes, dtype=np.int64)
        self.thread = (self.lane % threads).astype(np.int32)
        self.block = self.lane // threads  # among the blocks of this object

    def index(self, tag: str) -> NDArray[np.int32]:
        """Give the number of block or thread in a dimension, by its name in CUDA such as ``"threadIdx.x"``."""
        whole, dimension = tag.split(".")
        axis = DIMENSIONS.index(dimension)
        of_thread = whole == "threadIdx"
        extents: Sequence[int] = self.launch.block if of_thread else self.launch.grid
        number = self.thread.astype(np.int64) if of_thread else self.block + self.first
        return (number // int(np.prod(extents[:axis], dtype=np.int64)) % extents[axis]).astype(np.int32)

    def masked(self, condition: Any) -> Any:
        """Give the mask of the active threads for which a condition holds."""
        return condition if self.mask is None else self.mask & condition

    def where(self, lane: int) -> str:
        """Name a lane: its block and its thread."""
        block, thread = divmod(int(lane), self.launch.threads)
        return f"block {_position(block + self.first, self.launch.grid)}, thread {self.thread_name(thread)}"

    def thread_name(self, thread: int) -> str:
        """Name a thread of a block by its coordinates."""
        return _position(int(thread), self.launch.block)


def _position(number: int, extents: Sequence[int]) -> str:
    x, rest = number % extents[0], number // extents[0]
    y, z = rest % extents[1], rest // extents[1]
    return f"({x}, {y}, {z})" if extents[2] > 1 else f"({x}, {y})" if extents[1] > 1 else f"{x}"


def launch_of(extents: Mapping[str, int]) -> Launch:
    """Make a launch of the extents by CUDA's names; what is not named is 1."""

    def shape(whole: str) -> tuple[int, int, int]:
        x, y, z = (int(extents.get(f"{whole}.{dimension}", 1)) for dimension in DIMENSIONS)
        return x, y, z

    return Launch(shape("blockIdx"), shape("threadIdx"))
