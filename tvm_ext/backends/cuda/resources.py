"""Registers, spills, shared memory and occupancy of kernels, from machine code that is made without a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.backend import ResourceTable
from tvm_ext.backends.cuda.emulator.lowering import LaunchedKernels
from tvm_ext.backends.cuda.toolkit import MISSING, Toolkit, find_toolkit
from tvm_ext.errors import CompileError, first_line
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of

WARP, REGISTERS_AT_ONCE, SHARED_AT_ONCE, RESERVED = 32, 256, 128, 1024
"""Threads of a warp; registers are given out to warps, and shared memory to blocks, in such units; a block takes 1 KiB
more since sm_80 (CUDA's occupancy calculator)."""

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelResources:
    """What a kernel takes of a multiprocessor.

    Attributes
    ----------
    kernel, function : str
        Its name in CUDA sources, and the function of the module that launches it.
    arch : str
        Such as ``"sm_90"``.
    threads : int
        Of a block; 0 where that is only known at run time.
    registers : int
        Of a thread.
    spill_stores, spill_loads, stack : int
        Bytes of a thread.
    static_shared, dynamic_shared : int
        Bytes of a block.
    occupancy : float
        Share of the warps that a multiprocessor can hold which it does hold, with blocks enough.
    limited_by : str
        ``"threads"``, ``"blocks"``, ``"registers"`` or ``"shared memory"``: what keeps a further block out.
    """

    kernel: str
    function: str
    arch: str
    threads: int
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int
    dynamic_shared: int
    occupancy: float
    limited_by: str

    @property
    def spills(self) -> bool:
        """Whether registers are kept in memory."""
        return self.spill_stores > 0 or self.spill_loads > 0


def kernel_resources(
    functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, toolkit: Toolkit
) -> list[KernelResources]:
    """Compile scheduled functions for a CUDA target, and read what their kernels take.

    Parameters
    ----------
    functions : dict of str to PrimFunc
        Whose loops are bound to blocks and threads, by name.
    target : tvm.target.Target
    toolkit : Toolkit

    Returns
    -------
    list of KernelResources
        In the order in which the kernels are launched.

    Raises
    ------
    CompileError
        When TVM, the compiler or the assembler refuses them; the message says which.
    """
    arch = str(target.attrs.get("arch", "sm_80"))
    machine = machine_of(target)
    source, kernels = _source(functions, target)
    said = toolkit.assemble(toolkit.ptx(source, arch), arch) if kernels.kernels else ""
    measured = _parsed(said)
    missing = [name for name in kernels.kernels if name not in measured]
    if missing:
        raise CompileError(f"ptxas for {arch} says nothing of kernel {missing[0]}")
    rows = []
    for name, kernel in kernels.kernels.items():
        registers, stack, stores, loads, static = measured[name]
        threads, dynamic = _threads(kernel), _dynamic(kernel)
        occupancy, limit = occupied(machine, threads, registers, static + dynamic)
        function = kernels.launcher.get(name, name)
        rows.append(
            KernelResources(
                name, function, arch, threads, registers, stores, loads, stack, static, dynamic, occupancy, limit
            )
        )
    return rows


def occupied(machine: GpuMachine, threads: int, registers: int, shared: int) -> tuple[float, str]:
    """Say which share of a multiprocessor's warps blocks of some size occupy, and what limits them.

    Parameters
    ----------
    machine : GpuMachine
    threads : int
        Of a block; for 0, which is not known, the result is 0.
    registers : int
        Of a thread.
    shared : int
        Bytes of a block.
    """
    if not threads:
        return 0.0, "threads"
    warps = -(-threads // WARP)
    most = machine.threads_per_multiprocessor // WARP
    per_warp = -(-max(registers, 1) * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    # Four schedulers share the warps, and the registers, evenly.
    held = machine.registers // 4 // per_warp * 4
    reserved = RESERVED if machine.compute >= 80 else 0
    taken = -(-(shared + reserved) // SHARED_AT_ONCE) * SHARED_AT_ONCE
    limits = {
        "threads": most // warps,
        "blocks": machine.blocks_per_multiprocessor,
        "registers": held // warps,
        "shared memory": machine.shared_per_multiprocessor // taken if taken else machine.blocks_per_multiprocessor,
    }
    limit = min(limits, key=lambda name: limits[name])
    return min(limits[limit] * warps / most, 1.0), limit


def _source(functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> tuple[str, LaunchedKernels]:
    """Print CUDA C++ of functions; with the kernels as the printer had them."""
    kept = LaunchedKernels()
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    try:
        with tvm.transform.PassContext(instruments=[kept.instrument]):
            library = tirx.build(module, target.with_host(host), pipeline="s_tir")
    except Exception as error:
        raise CompileError(f"TVM cannot print kernels for CUDA: {first_line(error)}") from error
    kept.read()
    sources = [part.inspect_source() for part in library.imports if part.kind == "cuda"]
    return "\n".join(sources), kept


def _parsed(said: str) -> dict[str, tuple[int, int, int, int, int]]:
    found, name = {}, ""
    stack = (0, 0, 0)
    for line in said.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
        elif words := _STACK.search(line):
            stack = (int(words[1]), int(words[2]), int(words[3]))
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            found[name] = (int(used[1]), *stack, int(shared[1]) if shared else 0)
            stack = (0, 0, 0)
    return found


def _threads(kernel: tirx.PrimFunc) -> int:
    sizes: dict[str, int] = {}

    def note(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and str(node.node.thread_tag).startswith("threadIdx"):
            sizes[str(node.node.thread_tag)] = int(node.value) if isinstance(node.value, tirx.IntImm) else 0

    tvm_ffi.structural_walk(kernel.body, (tirx.AttrStmt, note))
    product = 1
    for size in sizes.values():
        product *= size
    return product


def _dynamic(kernel: tirx.PrimFunc) -> int:
    total = [0]

    def note(node: tirx.AllocBuffer) -> None:
        if str(node.buffer.scope()) == "shared.dyn":
            kind = tvm.DataType(str(node.buffer.dtype))
            size = kind.bits * kind.lanes // 8
            for extent in node.buffer.shape:
                size *= int(extent)
            total[0] += size

    tvm_ffi.structural_walk(kernel.body, (tirx.AllocBuffer, note))
    return total[0]


def resource_table(functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> ResourceTable:
    """Tell what kernels take, for people; a sentence where no toolkit is installed or it refuses them."""
    toolkit = find_toolkit()
    if toolkit is None:
        return ResourceTable(MISSING)
    try:
        rows = kernel_resources(functions, target, toolkit)
    except CompileError as error:
        return ResourceTable(f"resources of kernels are not known: {error}")
    spilled = len(spilling(rows))
    summary = (
        f"Machine code for {target.attrs.get('arch', 'sm_80')} by ptxas {toolkit.version()}: {len(rows)} kernels, "
        f"{spilled} of which keep registers in memory. Occupancy is the share of a multiprocessor's warps that blocks "
        "of the kernel hold, were there blocks enough."
    )
    columns = (
        "kernel", "#threads a block", "#registers a thread", "#bytes spilled", "#shared bytes a block", "#occupancy",
        "limited by",
    )  # fmt: skip
    return ResourceTable(
        summary,
        columns,
        tuple(
            (
                row.kernel, row.threads, row.registers, row.spill_stores + row.spill_loads,
                row.static_shared + row.dynamic_shared, f"{row.occupancy:.0%}", row.limited_by,
            )
            for row in rows
        ),
    )  # fmt: skip


def spilling(rows: Sequence[KernelResources]) -> list[KernelResources]:
    """List the kernels that keep registers in memory."""
    return [row for row in rows if row.spills]
