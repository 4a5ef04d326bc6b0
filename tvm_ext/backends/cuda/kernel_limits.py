"""Kernels that a GPU of the target's architecture could not start: too many threads, too much shared memory.

The schedule of such a kernel is given up and the next one is tried, whether it came from a database, a rule of this
package or one of TVM's. A kernel that somebody wrote has no other: it is refused, as the driver would only say "invalid
argument" when it is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.backends.cuda.host_part import host_fault
from tvm_ext.errors import CompileError
from tvm_ext.graph.origins import nodes_of_kernels
from tvm_ext.schedules.cuda.blocks import element_bytes
from tvm_ext.schedules.cuda.machine import MOST_GRID, MOST_THREADS, STATIC_SHARED, GpuMachine, machine_of
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE


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


def over_a_limit(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Say which limit of the target a scheduled kernel is over and what to do; ``""`` if none."""
    return refusal(kernel_use(func, target), machine_of(target))


def within_limits(schedule: tvm.transform.Pass, lowers: bool = False) -> tvm.transform.Pass:
    """Make the pass that schedules kernels as ``schedule`` does, except those that come out over a limit.

    With ``lowers`` those as well that TVM cannot lower then.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WithinLimits")
    def _within(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        scheduled = schedule(
            tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        )  # passes of DLight change what they are given
        kept = tvm.IRModule(scheduled.functions, attrs=scheduled.attrs, global_infos=scheduled.global_infos)
        by_name = {variable.name_hint: (variable, func) for variable, func in scheduled.functions_items()}
        for variable, before in mod.functions_items():
            if not isinstance(before, tirx.PrimFunc) or _is_scheduled(before):
                continue
            own, after = by_name.get(variable.name_hint, (variable, None))
            if after is None or not _is_scheduled(after):
                continue
            if reason := over_a_limit(after, target) or (host_fault(after, target) if lowers else ""):
                earlier = str(before.attrs[FAULT_ATTRIBUTE]) + "; " if FAULT_ATTRIBUTE in (before.attrs or {}) else ""
                kept.update_func(own, before.with_attr(FAULT_ATTRIBUTE, f"{earlier}a kernel that {reason}"))
        return kept

    return _within


def check_kernels() -> tvm.transform.Pass:
    """Make the pass that refuses kernels that no GPU runs, with a ``CompileError`` that says why and what to do.

    Those are kernels over a limit, and among those that no rule scheduled such as leave work to the host.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.CheckKernels")
    def _check(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                if reason := over_a_limit(func, target):
                    raise CompileError(f"kernel {variable.name_hint} {reason}")
                if RULE_ATTRIBUTE not in (func.attrs or {}) and (reason := host_fault(func, target)):
                    nodes = ", ".join(nodes_of_kernels(mod).get(variable.name_hint, ()))
                    raise CompileError(
                        f"kernel {variable.name_hint}{f' ({nodes})' if nodes else ''} {reason}; express it by other "
                        "operators, or divide the model there and compile that part for a CPU"
                    )
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


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    return bool(func.attrs) and "tirx.is_scheduled" in func.attrs


def kernel_use(func: tirx.PrimFunc, target: tvm.target.Target) -> KernelUse:
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
    static, dynamic = _shared(func, target)
    threads = tuple(extents.get(f"threadIdx.{axis}", 1) or 1 for axis in "xyz")
    blocks = tuple(extents.get(f"blockIdx.{axis}", 1) for axis in "xyz")
    return KernelUse(threads, blocks, static, dynamic)  # type: ignore[arg-type]


def _shared(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[int, int]:
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
    with target:
        lowered = tvm.transform.Sequential([tirx.transform.BindTarget(target), *passes])(module)["main"]
    found.update({"shared": 0, "shared.dyn": 0})
    tvm_ffi.structural_walk(lowered.body, [(s_tir.SBlock, block)])
    return found["shared"], found["shared.dyn"]
