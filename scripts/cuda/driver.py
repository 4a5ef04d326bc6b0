"""The few calls of NVIDIA's driver that kernels need, by ctypes: no package besides numpy and no toolkit is needed.

Runs where neither TVM nor this package is installed. :mod:`scripts.cuda.emulated_device` has the same methods.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_NAME_LENGTH = 256
_MAX_DYNAMIC_SHARED, _COMPUTE_MAJOR, _COMPUTE_MINOR = 8, 75, 76


class DriverError(RuntimeError):
    """A call of the driver failed; the message names the call and the driver's word for the fault."""


class Device:
    """The first GPU of this machine.

    Parameters
    ----------
    library : str
        Of the driver.

    Raises
    ------
    DriverError
        When there is no driver, or no GPU.
    """

    measures = True

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(
                "there is no NVIDIA driver on this machine (libcuda.so.1); run this where a GPU is"
            ) from error
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._stream, self._events = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
        self._call("cuStreamCreate", ctypes.byref(self._stream), 1)
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        name, version = ctypes.create_string_buffer(_NAME_LENGTH), ctypes.c_int()
        self._call("cuDeviceGetName", name, _NAME_LENGTH, device)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self.name, self.driver = name.value.decode(), f"{version.value // 1000}.{version.value % 1000 // 10}"
        numbers = []
        for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            numbers.append(number.value)
        self.arch = f"sm_{numbers[0]}{numbers[1]}"

    def load(self, case: str, binary: Path) -> Callable[[str, int], Any]:
        """Load machine code; gives what finds a kernel by its name, with its bytes of dynamic shared memory."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary.read_bytes())

        def find(name: str, dynamic: int) -> Any:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            if dynamic > 48 << 10:
                self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, dynamic)
            return function

        return find

    def allocate(self, nbytes: int) -> Any:
        """Allocate memory of the device, at least one byte, filled with zeros."""
        memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(max(nbytes, 1)))
        self._call("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(max(nbytes, 1)))
        return memory

    def free(self, memory: Any) -> None:
        """Give memory back."""
        self._call("cuMemFree_v2", memory)

    def upload(self, memory: Any, array: np.ndarray) -> None:
        """Copy an array to the device."""
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self._call("cuMemcpyHtoD_v2", memory, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))

    def download(self, memory: Any, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Copy an array from the device."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), memory, ctypes.c_size_t(array.nbytes))
        return array

    def launch(
        self, function: Any, grid: Sequence[int], threads: Sequence[int], dynamic: int, memories: Sequence[Any]
    ) -> None:
        """Start a kernel whose arguments are all memories."""
        pointers = (ctypes.c_void_p * len(memories))(*(ctypes.addressof(memory) for memory in memories))
        self._call("cuLaunchKernel", function, *grid, *threads, dynamic, self._stream, pointers, None)

    def synchronize(self) -> None:
        """Wait for what was started, copies too; a fault of a kernel is raised here."""
        self._call("cuCtxSynchronize")

    def seconds(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Capture work as a graph and launch it so many times; gives the seconds of each launch."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", self._stream, 0)
        work()
        self._call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        found = []
        for _ in range(repeats):
            self._call("cuEventRecord", self._events[0], self._stream)
            self._call("cuGraphLaunch", executable, self._stream)
            self._call("cuEventRecord", self._events[1], self._stream)
            self._call("cuEventSynchronize", self._events[1])
            passed = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(passed), *self._events)
            found.append(passed.value * 1e-3)
        self._call("cuGraphExecDestroy", executable)
        self._call("cuGraphDestroy", graph)
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            word = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(word))
            raise DriverError(f"{name} failed: {(word.value or b'unknown').decode()} ({code})")
