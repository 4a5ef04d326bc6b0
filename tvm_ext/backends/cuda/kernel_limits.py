"""Refuses kernels that a GPU of the target's architecture could not start: too many threads, too much shared memory.

A rule of this package does not make such kernels; a tuned schedule, or a kernel that somebody wrote, may be one. The
driver would only say "invalid argument" when it is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.blocks import element_bytes
from tvm_ext.schedules.cuda.machine import MOST_GRID, MOST_THREADS, STATIC_SHARED, GpuMachine, machine_of


@dataclass(frozen=True)
class KernelUse:
    """What a scheduled kernel asks for.

    Attributes
    ----------
    threads : tuple of int
        Of a block, along x, y and z.
    blocks : tuple of int or None
        Of the grid, along x, y and z; None where that is only known at run time.
    static_shared, dynamic_shared : int
        Bytes of shared memory, at most: buffers that are never alive together may share it.
    """

    threads: tuple[int, int, int]
    blocks: tuple[int | None, int | None, int | None]
    static_shared: int
    dynamic_shared: int


def check_kernels() -> tvm.transform.Pass:
    """Make the pass that refuses kernels over a limit, with a ``CompileError`` that says which limit and what to do."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.CheckKernels")
    def _check(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = machine_of(tvm.target.Target.current(allow_none=False))
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                reason = refusal(kernel_use(func), machine)
                if reason:
                    raise CompileError(f"kernel {variable.name_hint} {reason}")
        return mod

    return _check


def refusal(use: KernelUse, machine: GpuMachine) -> str:
    """Say which limit a kernel is over and what to do; ``""`` if none."""
    arch = f"sm_{machine.compute}"
    threads = prod(use.threads)
    if threads > MOST_THREADS or use.threads[2] > 64:
        return (
            f"has {' x '.join(map(str, use.threads))} threads in a block, {arch} starts {MOST_THREADS} at most, 64 of "
            "them along z; give it a smaller tile, or leave its schedule to the rules"
        )
    for axis, blocks, most in zip("xyz", use.blocks, MOST_GRID, strict=True):
        if blocks is not None and blocks > most:
            return f"has {blocks} blocks along {axis}, {most} are the most; let each block do more, or use another axis"
    if use.static_shared > STATIC_SHARED:
        return (
            f"declares {use.static_shared} bytes of static shared memory, {STATIC_SHARED} are the most; give it the "
            'scope "shared.dyn", or a smaller tile'
        )
    if use.static_shared + use.dynamic_shared > machine.shared_per_block:
        return (
            f"takes {use.static_shared + use.dynamic_shared} bytes of shared memory, a block on {arch} has "
            f"{machine.shared_per_block}; give it a smaller tile or fewer stages"
        )
    return ""


def kernel_use(func: tirx.PrimFunc) -> KernelUse:
    """Count what a scheduled kernel asks for.

    Of several kernels in one function the most of each counts, and shared memory together.
    """
    extents: dict[str, int | None] = {}

    def loop(node: tirx.For) -> None:
        if node.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(node.thread_binding.thread_tag)
            size = int(node.extent) if isinstance(node.extent, tirx.IntImm) else None
            earlier = extents.get(tag, 1)
            extents[tag] = None if size is None or earlier is None else max(earlier, size)

    tvm_ffi.structural_walk(func.body, [(tirx.For, loop)])
    static, dynamic = _shared(func)
    threads = tuple(extents.get(f"threadIdx.{axis}", 1) or 1 for axis in "xyz")
    blocks = tuple(extents.get(f"blockIdx.{axis}", 1) for axis in "xyz")
    return KernelUse(threads, blocks, static, dynamic)  # type: ignore[arg-type]


def _shared(func: tirx.PrimFunc) -> tuple[int, int]:
    """Count the bytes of shared buffers once they have the sizes that one block needs."""
    found = {"shared": 0, "shared.dyn": 0}
    present = [False]

    def count(buffer: Any) -> None:
        scope = str(buffer.scope())
        if scope in found:
            present[0] = True
            sizes = [int(size) if isinstance(size, tirx.IntImm) else 1 for size in buffer.shape]
            found[scope] += prod(sizes) * element_bytes(buffer.dtype)

    def block(node: s_tir.SBlock) -> None:
        for buffer in node.alloc_buffers:
            count(buffer)

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, block)])
    if not present[0]:
        return 0, 0
    transform = s_tir.transform
    passes = [
        transform.LowerCrossThreadReduction(), transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(), transform.ConvertBlocksToOpaque(),
        transform.LiftThreadBinding(), transform.ManifestSharedMemoryLocalStage(),
        transform.CompactBufferAllocation(), transform.LowerMatchBuffer(), transform.InjectSoftwarePipeline(),
    ]  # fmt: skip
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    module = tirx.transform.BindTarget(tvm.target.Target.current(allow_none=False))(module)
    lowered = tvm.transform.Sequential(passes)(module)["main"]
    found.update({"shared": 0, "shared.dyn": 0})
    tvm_ffi.structural_walk(lowered.body, [(s_tir.SBlock, block)])
    return found["shared"], found["shared.dyn"]
