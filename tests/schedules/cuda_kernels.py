"""Kernels for CUDA without a GPU: what is scheduled is run on the CPU, its threads one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.schedules.kernels import Build, Compiled, graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, ScheduleRule, apply_schedule_rules

CUDA = {
    name: tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})
    for name, arch in (("sm_75", "sm_75"), ("sm_80", "sm_80"), ("sm_90", "sm_90"))
}
LLVM = tvm.target.Target({"kind": "llvm"})


def serial_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let threads run one after another.

    Right for kernels before they are lowered: every loop over threads is then complete before the next statement, as
    if there were a barrier behind it.
    """

    def serial(loop: tirx.For, mutator: Any) -> tirx.For:
        loop = mutator.default_mutate(loop)
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    def no_barrier(statement: tirx.Evaluate, _mutator: Any) -> tirx.Evaluate:
        is_barrier = getattr(getattr(statement.value, "op", None), "name", "").endswith("tvm_storage_sync")
        return tirx.Evaluate(0) if is_barrier else statement

    return tvm_ffi.structural_mutate(func, [(tirx.For, serial), (tirx.Evaluate, no_barrier)])


def schedule_graph(
    build: Build,
    inputs: Sequence[np.ndarray],
    rules: Sequence[ScheduleRule],
    target: str = "sm_90",
    before: Sequence[tvm.transform.Pass] = (),
) -> tvm.IRModule:
    """Legalise, fuse and schedule a graph for inputs like these."""
    specs = [(array.shape, str(array.dtype)) for array in inputs]
    passes = [
        *before,
        relax.transform.DecomposeOpsForInference(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        apply_schedule_rules(rules),
    ]
    with CUDA[target]:
        return tvm.transform.Sequential(passes)(graph(build, specs))


def kernels_of(module: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """List the kernels of a module."""
    return {name.name_hint: func for name, func in module.functions_items() if isinstance(func, tirx.PrimFunc)}


def run_serially(
    build: Build, inputs: Sequence[np.ndarray], rules: Sequence[ScheduleRule], target: str = "sm_90"
) -> Compiled:
    """Schedule a graph for CUDA, and compile what came out for the CPU, threads one after another."""
    module = schedule_graph(build, inputs, rules, target)
    kernels = kernels_of(module)
    taken = {name: str(func.attrs.get(RULE_ATTRIBUTE, "")) for name, func in kernels.items()}
    for variable, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(variable, serial_threads(func))
    return Compiled(kernels, taken, tvm.compile(module, LLVM, relax_pipeline=_lower()))


def assert_emulated(
    before: tirx.PrimFunc, scheduled: tirx.PrimFunc, arrays: Sequence[np.ndarray], tolerance: float = 1e-4
) -> None:
    """Run a scheduled kernel in the emulator: no fault, and what LLVM computes of the kernel before its schedule."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(tvm.IRModule({"main": before.with_attr("global_symbol", "main")}), LLVM)["main"](*tensors)
    run = Emulator(scheduled.with_attr("global_symbol", "main"), CUDA["sm_90"])(list(arrays))
    assert not run.report.faults, str(run.report)
    for got, wanted in zip(run.arrays, tensors, strict=True):
        np.testing.assert_allclose(
            got.astype("float64"), wanted.numpy().astype("float64"), rtol=tolerance, atol=tolerance
        )


def _lower() -> tvm.transform.Pass:
    transform = relax.transform
    return tvm.transform.Sequential(
        [
            transform.RewriteDataflowReshape(),
            transform.ToNonDataflow(),
            transform.CallTIRRewrite(),
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )


def cuda_source(module: tvm.IRModule, target: str = "sm_90") -> str:
    """Generate CUDA C++ for the kernels of a scheduled module."""
    kernels = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels_of(module).items()})
    host = tvm.compile(kernels, CUDA[target]).mod
    return str(host.imports[0].inspect_source())


Thread = Callable[[Any], int]


def thread_extents(func: tirx.PrimFunc) -> dict[str, int]:
    """Extents of the threads of a scheduled kernel, the largest of each name."""
    found: dict[str, int] = {}

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(loop.thread_binding.thread_tag)
            found[tag] = max(found.get(tag, 0), int(loop.extent))

    tvm_ffi.structural_walk(func.body, [(tirx.For, visit)])
    return found
