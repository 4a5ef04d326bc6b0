"""Memory between two pages that end the process when they are touched, and kernels called on it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

PAGE = mmap.PAGESIZE
CANARY = 0xA5
"""What the bytes between a tensor and the page it does not touch hold."""

PLACES = ("end", "begin")
"""Where a tensor lies: its last byte before a page that may not be touched, or its first byte behind one."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """Some bytes that may be touched, a page before them and one behind them that may not.

    Parameters
    ----------
    size : int
        Bytes; rounded up to whole pages.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // PAGE) * PAGE
        self._memory = mmap.mmap(-1, self.size + 2 * PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for guard in (address, address + PAGE + self.size):
            if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")

    def place(self, array: np.ndarray, place: str) -> np.ndarray:
        """Copy an array to where :data:`PLACES` says; the bytes around it hold :data:`CANARY`."""
        self._bytes()[:] = CANARY
        offset = PAGE + (self.size - array.nbytes if place == "end" else 0)
        placed: np.ndarray = np.ndarray(array.shape, array.dtype, self._memory, offset)
        placed[...] = array
        return placed

    def is_intact_around(self, size: int, place: str) -> bool:
        """Whether nothing was written beside the ``size`` bytes that were placed."""
        around = self._bytes()[:-size] if place == "end" and size else self._bytes()[size if place == "begin" else 0 :]
        return bool((around == CANARY).all())

    def _bytes(self) -> np.ndarray:
        return np.frombuffer(self._memory, np.uint8, self.size, PAGE)


@dataclass(frozen=True)
class KernelRun:
    """A kernel that ran on guarded memory.

    Attributes
    ----------
    name : str
    place : str
        One of :data:`PLACES`.
    fault : str
        What was wrong, or nothing.
    """

    name: str
    place: str
    fault: str


def call_guarded(function: Any, arguments: list[Any], place: str) -> tuple[list[Any], bool]:
    """Call a kernel with its tensors (NumPy arrays) on guarded memory.

    Returns
    -------
    arrays : list
        What the arguments hold afterwards.
    intact : bool
        Whether nothing beside them was written.
    """
    memories: list[tuple[GuardedMemory, int]] = []
    placed: list[Any] = []
    for argument in arguments:
        if not isinstance(argument, np.ndarray):
            placed.append(argument)
            continue
        memory = GuardedMemory(argument.nbytes)
        memories.append((memory, argument.nbytes))
        placed.append(memory.place(argument, place))
    function(*(tvm_ffi.from_dlpack(item) if isinstance(item, np.ndarray) else item for item in placed))
    intact = all(memory.is_intact_around(size, place) for memory, size in memories)
    return [item.copy() if isinstance(item, np.ndarray) else item for item in placed], intact


def run_guarded(
    executable: Any,
    kernels: set[str],
    inputs: list[np.ndarray],
    before: Callable[[str, str], None] = lambda name, place: None,
) -> tuple[Any, list[KernelRun]]:
    """Run a compiled module, and each of its kernels again on guarded copies of the arguments it got.

    Parameters
    ----------
    executable : tvm.runtime.Executable
        With a function ``main``.
    kernels : set of str
        Names of the kernels.
    before : callable
        Told the name of a kernel and the place before that kernel runs on guarded memory, which may end the process.

    Returns
    -------
    result : object
        What ``main`` returned.
    runs : list of KernelRun
    """
    machine = relax.VirtualMachine(executable, tvm.cpu())
    library = executable.mod.imports[0]
    runs: list[KernelRun] = []
    pending: list[list[Any]] = []

    def watch(_function: Any, name: str, is_before: bool, _result: Any, *arguments: Any) -> None:
        if name not in kernels:
            return
        values = [argument.numpy() if hasattr(argument, "numpy") else argument for argument in arguments]
        if is_before:
            pending.append([value.copy() if isinstance(value, np.ndarray) else value for value in values])
            return
        first = pending.pop()
        if any(isinstance(value, np.ndarray) and value.dtype.kind == "V" for value in first):
            return  # a type that NumPy has no arrays of
        for place in PLACES:
            before(name, place)
            after, intact = call_guarded(library[name], first, place)
            fault = "" if intact else "wrote beside its arguments"
            if not fault and not all(map(_same, after, values)):
                fault = "computed something else"
            runs.append(KernelRun(name, place, fault))

    machine.set_instrument(watch)
    result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return result, runs


def _same(one: Any, other: Any) -> bool:
    return not isinstance(one, np.ndarray) or one.tobytes() == other.tobytes()


def arrays_of(result: Any) -> Iterator[np.ndarray]:
    """Give the arrays of a result, which may be nested."""
    if hasattr(result, "numpy"):
        yield result.numpy()
    else:
        for part in result:
            yield from arrays_of(part)
