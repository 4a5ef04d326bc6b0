"""Runs a scheduled CUDA function on numpy arrays, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx

from tvm_ext.backends.cuda.emulator.expressions import Expressions, operation
from tvm_ext.backends.cuda.emulator.findings import Report
from tvm_ext.backends.cuda.emulator.lanes import Lanes, Launch, launch_of
from tvm_ext.backends.cuda.emulator.lowering import Lowered, lower
from tvm_ext.backends.cuda.emulator.memory import Global, numpy_type
from tvm_ext.backends.cuda.emulator.races import Checker
from tvm_ext.backends.cuda.emulator.statements import Statements, Step
from tvm_ext.backends.cuda.emulator.tensor_cores import INTRINSICS
from tvm_ext.errors import CompileError, InputError

LANES = 1 << 15
"""Threads that run in step, at most, unless a block has more: so much that numpy's calls cost little, and arrays of
registers stay in the caches."""

BLOCK_THREADS, GRID = 1024, (2**31 - 1, 65535, 65535)
_SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB a block may have


@dataclass(frozen=True)
class Emulation:
    """What a run gave.

    Attributes
    ----------
    arrays : list of arrays
        All arguments in order, those that the function writes with what it wrote.
    report : Report
    launches : list of (str, Launch)
        Kernels that ran, in order.
    """

    arrays: list[NDArray[Any]]
    report: Report
    launches: list[tuple[str, Launch]]


@dataclass(frozen=True)
class _Kernel:
    """A translated kernel."""

    name: str
    params: Sequence[Any]
    code: Statements
    run: Step
    slots: Mapping[int, int]  # parameter -> slot of its number, or of its memory


class Emulator:
    """A function, lowered and translated once, to run on any arrays.

    Parameters
    ----------
    func : PrimFunc
        Scheduled for a CUDA target: its loops are bound to blocks and threads.
    target : tvm.target.Target
    separate_shared, async_copies : bool
        As for :func:`~tvm_ext.backends.cuda.emulator.lowering.lower`.

    Raises
    ------
    CompileError
        When TVM refuses the function, or it holds something that the emulator does not know; the message names it.
    TargetError
        For another target than a CUDA one.
    """

    def __init__(
        self,
        func: tvm.tirx.PrimFunc | Lowered,
        target: tvm.target.Target,
        *,
        separate_shared: bool = False,
        async_copies: bool = False,
    ) -> None:
        options = {"separate_shared": separate_shared, "async_copies": async_copies}
        self.lowered = func if isinstance(func, Lowered) else lower(func, target, **options)
        self._arch = str(target.attrs.get("arch", ""))
        self._kernels = {name: _translate(name, kernel) for name, kernel in self.lowered.kernels.items()}

    def __call__(self, arrays: Sequence[NDArray[Any]], *, check: str = "all", lanes: int = LANES) -> Emulation:
        """Run on arrays, one for each argument; inputs are not changed.

        Parameters
        ----------
        arrays : sequence of arrays
            Of the shapes and types of the arguments; of results, what is in them before.
        check : str
            ``"all"`` checks every access; ``"some"`` those of the first and last blocks of each launch; ``"none"``
            computes values only, and still refuses what is out of bounds.
        lanes : int
            Threads to run in step.

        Raises
        ------
        InputError
            When arrays do not fit the arguments.
        CompileError
            When a launch exceeds a limit of the device, or, with ``check="none"``, an index a memory.
        """
        if check not in ("all", "some", "none"):
            raise InputError(f"check is 'all', 'some' or 'none'; got {check!r}")
        host = _Host(self.lowered, self._kernels, self._arch, check, lanes)
        return host.run(arrays)


def emulate(
    func: tvm.tirx.PrimFunc, arrays: Sequence[NDArray[Any]], target: tvm.target.Target, *, check: str = "all"
) -> Emulation:
    """Run a function scheduled for CUDA on arrays; see :class:`Emulator`."""
    return Emulator(func, target)(arrays, check=check)


def _translate(name: str, kernel: tirx.PrimFunc) -> _Kernel:
    code = Statements(name, INTRINSICS)
    slots = {}
    for number, param in enumerate(kernel.params):
        if isinstance(param.ty, tvm.ir.PointerType):
            slots[number] = code.memory(param)
        else:
            slots[number] = code.variable(param)
    return _Kernel(name, list(kernel.params), code, code.step(kernel.body), slots)


class _Host:
    """Runs the host's part: allocates, and launches kernels one after the other."""

    def __init__(self, lowered: Lowered, kernels: Mapping[str, _Kernel], arch: str, check: str, lanes: int) -> None:
        self._lowered, self._kernels, self._arch, self._check, self._most = lowered, kernels, arch, check, lanes
        self._memory: dict[Any, Global] = {}
        self._numbers: dict[Any, Any] = {}
        self._report, self._launches = Report(), list[tuple[str, Launch]]()

    def run(self, arrays: Sequence[NDArray[Any]]) -> Emulation:
        params = list(self._lowered.host.params)
        if len(arrays) != len(params):
            raise InputError(f"{self._lowered.name} takes {len(params)} arrays; got {len(arrays)}")
        given = [(param, np.asarray(array)) for param, array in zip(params, arrays, strict=True)]
        for param, array in given:  # an extent may be an expression of numbers that come later
            self._numbers_of(param, array)
        kept = [self._bound(param, array) for param, array in given]
        with np.errstate(all="ignore"):
            self._statement(self._lowered.host.body)
        return Emulation(kept, self._report, self._launches)

    def _numbers_of(self, param: Any, array: NDArray[Any]) -> None:
        if not hasattr(param, "shape"):  # a number, such as an extent
            self._numbers[param] = array.item()
            return
        for extent, size in zip(param.shape, array.shape, strict=False):
            if isinstance(extent, tvm.ir.Var):
                self._numbers.setdefault(extent, size)

    def _bound(self, param: Any, array: NDArray[Any]) -> NDArray[Any]:
        if not hasattr(param, "shape"):
            return array
        expected = numpy_type(str(param.dtype))
        if array.dtype != expected or array.ndim != len(param.shape):
            raise InputError(
                f"argument {param.name} of {self._lowered.name} is {param.dtype} of {len(param.shape)} dimensions; "
                f"got {array.dtype} of {array.ndim}"
            )
        for extent, size in zip(param.shape, array.shape, strict=True):
            known = int(extent) if isinstance(extent, tirx.IntImm) else self._number(extent)
            if known != size:
                raise InputError(
                    f"argument {param.name} of {self._lowered.name} has the shape {tuple(param.shape)}; "
                    f"got {array.shape}"
                )
        if isinstance(param.elem_offset, tvm.ir.Var):  # TVM's kernels for GPUs take tensors that begin anywhere
            self._numbers[param.elem_offset] = 0
        own = np.array(array, order="C")
        self._memory[param] = Global(own)
        return own

    def _number(self, e: Any) -> Any:
        code = Expressions(self._lowered.name)
        values = []
        for variable, value in self._numbers.items():
            code.variable(variable)
            values.append(value)
        return code.value(e)(Lanes(Launch((1, 1, 1), (1, 1, 1)), 0, 1, values, []))

    def _statement(self, s: Any) -> None:
        kind = type(s)
        if kind is tirx.SeqStmt:
            for inner in s.seq:
                self._statement(inner)
        elif kind is tirx.Bind:
            self._numbers[s.var] = self._number(s.value)
        elif kind is tirx.DeclBuffer:
            self._memory[s.buffer] = self._place(s.data)
        elif kind is tirx.AllocBuffer:
            if str(s.buffer.scope()) == "local":
                raise CompileError(
                    f"function {self._lowered.name} declares {s.buffer.name} of its threads outside their kernel: no "
                    "GPU can write to that"
                )
            # TVM makes its elements vectors where all kernels read and write it in such.
            sizes = [int(self._number(extent)) for extent in s.buffer.shape] + [tvm.DataType(str(s.buffer.dtype)).lanes]
            dtype = numpy_type(str(s.buffer.dtype))
            raw = np.full(int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize, 0xFF, np.uint8)
            self._memory[s.buffer] = Global(raw)
        elif kind is tirx.AttrStmt:
            self._statement(s.body)
        elif kind is tirx.IfThenElse:
            case = s.then_case if self._number(s.condition) else s.else_case
            if case is not None:
                self._statement(case)
        elif kind is tirx.For and s.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED):
            self._loop(s)
        elif kind is tirx.Evaluate and isinstance(s.value, tvm.ir.Call):
            self._call(s.value)
        elif kind not in (tirx.Evaluate, tirx.AssertStmt):
            raise CompileError(f"function {self._lowered.name} has work outside its kernels: a {kind.__name__}")

    def _loop(self, s: Any) -> None:
        """Run a loop around launches, as TVM's scans and sorts have them."""
        start, extent = int(self._number(s.min)), int(self._number(s.extent))
        for number in range(start, start + extent):
            self._numbers[s.loop_var] = number
            self._statement(s.body)

    def _place(self, e: Any) -> Global:
        if isinstance(e, tvm.ir.Var):
            return self._memory[e]
        if operation(e) in ("buffer_data", "address_of"):
            source = e.args[0]
            return self._memory[source if isinstance(source, tvm.ir.Var) else source.source]
        raise CompileError(f"function {self._lowered.name} hands a kernel a pointer made by {operation(e)}")

    def _call(self, call: Any) -> None:
        name = operation(call)
        if name != "call_ffi_kernel":
            raise CompileError(f"function {self._lowered.name} calls {name} outside its kernels")
        kernel = self._kernels[str(call.args[0].value)]
        given = list(call.args[1 : 1 + len(kernel.params)])
        slots: list[Any] = [None] * kernel.code.slots
        memories: list[Any] = [None] * len(kernel.code.memories)
        for number, (param, argument) in enumerate(zip(kernel.params, given, strict=True)):
            if isinstance(param.ty, tvm.ir.PointerType):
                memories[kernel.slots[number]] = self._place(argument)
            else:
                slots[kernel.slots[number]] = self._number(argument)
        single = Lanes(Launch((1, 1, 1), (1, 1, 1)), 0, 1, slots, memories)
        launch = launch_of(self._extents(call, kernel, single))
        self._refuse_limits(kernel, launch)
        self._launches.append((kernel.name, launch))
        self._launch(kernel, launch, slots, memories)

    def _extents(self, call: Any, kernel: _Kernel, single: Lanes) -> dict[str, int]:
        """Give the extents of a launch: those that the host says, as a kernel may have its own names for them."""
        tags = (self._lowered.kernels[kernel.name].attrs or {}).get("tirx.kernel_launch_params")
        if tags is None:
            return {tag: int(kernel.code.value(extent)(single)) for tag, extent in kernel.code.extents.items()}
        given = zip(map(str, tags), call.args[1 + len(kernel.params) :], strict=False)
        return {tag: int(self._number(extent)) for tag, extent in given if "Idx." in tag}

    def _refuse_limits(self, kernel: _Kernel, launch: Launch) -> None:
        if launch.threads > BLOCK_THREADS:
            raise CompileError(
                f"kernel {kernel.name} has {launch.threads} threads in a block, of {BLOCK_THREADS} that CUDA allows; "
                "bind fewer iterations to threads"
            )
        if not launch.blocks:
            raise CompileError(f"kernel {kernel.name} is launched with no blocks, which CUDA refuses")
        for axis, (extent, most) in enumerate(zip(launch.grid, GRID, strict=True)):
            if extent > most:
                raise CompileError(f"kernel {kernel.name} has {extent} blocks in {'xyz'[axis]}, of {most}")

    def _refuse_shared(self, kernel: _Kernel, memories: Sequence[Any]) -> None:
        used = sum(memory.nbytes for memory in memories if memory is not None and memory.scope.startswith("shared"))
        digits = "".join(filter(str.isdigit, self._arch))
        limit = _SHARED.get(int(digits or 0), 227) * 1024
        if used > limit:
            raise CompileError(
                f"kernel {kernel.name} uses {used} bytes of shared memory in a block, of {limit} that "
                f"{self._arch or 'CUDA'} has; make its tiles smaller"
            )

    def _launch(self, kernel: _Kernel, launch: Launch, slots: list[Any], memories: list[Any]) -> None:
        if not launch.threads:
            return
        written = {id(memories[slot]) for slot in kernel.code.stored if memories[slot] is not None}
        checker = Checker(kernel.name, self._report, kernel.code.narrowest, written)
        chunk = max(1, self._most // launch.threads)
        last = (launch.blocks - 1) // chunk * chunk
        self._report.blocks += launch.blocks
        for first in range(0, launch.blocks, chunk):
            count = min(chunk, launch.blocks - first)
            checked = self._check == "all" or (self._check == "some" and first in (0, last))
            lanes = Lanes(launch, first, count, list(slots), list(memories), checker if checked else None)
            if checked:
                checker.begin(lanes)
                self._report.checked_blocks += count
            kernel.run(lanes)
            if any(lanes.products):
                raise CompileError(f"kernel {kernel.name} ends with products of warpgroups that nothing waits for")
            if not first:
                self._refuse_shared(kernel, lanes.storages)
