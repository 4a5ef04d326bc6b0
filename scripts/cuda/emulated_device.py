"""A device in the place of a GPU, for a rehearsal: the emulator, kernel by kernel, with no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.emulator.lowering import Lowered
from tvm_ext.backends.cuda.emulator.memory import numpy_type
from tvm_ext.errors import CompileError


@dataclass(frozen=True)
class _Function:
    """A kernel, the call that launches it, and what is checked of it."""

    kernel: tirx.PrimFunc
    name: str
    call: Any
    check: str


class EmulatedDevice:
    """The methods of :class:`scripts.cuda.driver.Device` on numpy arrays.

    Parameters
    ----------
    target : tvm.target.Target
    lowered : mapping of str to mapping
        By case, what its functions are lowered to.
    """

    measures, name, driver = False, "emulator", "none"

    def __init__(self, target: tvm.target.Target, lowered: Mapping[str, Mapping[str, Lowered]]) -> None:
        self._target, self._lowered, self.arch = target, lowered, str(target.attrs["arch"])

    def load(self, case: str, binary: Path) -> Callable[[str, int], Any]:
        """Give what finds a kernel by its name; the machine code must be there, though it is not run."""
        if not binary.stat().st_size:
            raise CompileError(f"{binary} is empty")
        # TVM's own schedules have races, of which the results are right on a GPU.
        check = "none" if case.endswith("-dlight") else "all"
        functions = {}
        for lowered in self._lowered[case].values():
            for call in _calls(lowered):
                name = str(call.args[0].value)
                functions[name] = _Function(lowered.kernels[name], name, call, check)
        return lambda name, _dynamic: functions[name]

    def allocate(self, nbytes: int) -> Any:
        """Make memory."""
        return np.zeros(nbytes, np.uint8)

    def free(self, memory: Any) -> None:
        """Nothing is left to do."""

    def upload(self, memory: Any, array: np.ndarray) -> None:
        """Copy an array."""
        memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, memory: Any, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Copy an array."""
        return memory.view(dtype).reshape(shape).copy()

    def launch(
        self, function: Any, grid: Sequence[int], threads: Sequence[int], dynamic: int, memories: Sequence[Any]
    ) -> None:
        """Run a kernel, and check that what it is launched with is what the host would launch it with."""
        params, arrays = [], []
        for param, memory in zip(function.kernel.params, memories, strict=True):
            dtype = str(param.ty.element_type)
            arrays.append(memory.view(numpy_type(dtype)))
            params.append(tirx.decl_buffer((arrays[-1].size,), dtype, str(param.name)))
        call, count = function.call, len(params)
        given = [call.args[0], *(param.data for param in params), *call.args[1 + count :]]
        host = tirx.PrimFunc(params, tirx.Evaluate(tvm.ir.Call(call.op, given, attrs=call.attrs, ret_ty=call.ty)))
        run = Emulator(Lowered(function.name, host, {function.name: function.kernel}), self._target)(
            arrays, check=function.check
        )
        if run.report.faults:
            raise CompileError(str(run.report.faults[0]))
        ((_, launch),) = run.launches
        if list(launch.grid) != list(grid) or list(launch.block) != list(threads):
            raise CompileError(f"{function.name}: launched with {grid} x {threads}, not {launch.grid} x {launch.block}")
        for memory, array in zip(memories, run.arrays, strict=True):
            memory[:] = array.reshape(-1).view(np.uint8)

    def synchronize(self) -> None:
        """Everything is done already."""


def _calls(lowered: Lowered) -> list[Any]:
    """List the launches of a function."""
    found: list[Any] = []

    def note(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith("call_ffi_kernel"):
            found.append(call)

    tvm_ffi.structural_walk(lowered.host.body, (tvm.ir.Call, note))
    return found
