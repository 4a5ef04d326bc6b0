"""Compiles small graphs kernel by kernel: legalised, fused, offered to some schedule rules, turned into vector code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.backends.cpu.backend import CPU
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, ScheduleRule, apply_schedule_rules

AWKWARD = (1, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129)
"""Extents next to those that vectors divide."""

TARGETS = {
    "native": native_target(),
    "avx2": tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2}),
    "sse4": tvm.target.Target({"kind": "llvm", "mcpu": "nehalem", "num-cores": 2}),
    "generic": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1}),
}
AARCH64 = tvm.target.Target(
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"], "num-cores": 4}
)

Build = Callable[..., relax.Expr]
"""Gets a block builder and one variable an input, and returns the result of the graph."""


@dataclass(frozen=True)
class Compiled:
    """A graph, compiled: its kernels as they were scheduled, which rule took each, and the whole as a function."""

    kernels: dict[str, tirx.PrimFunc]
    rules: dict[str, str]
    executable: Any

    def __call__(self, *inputs: np.ndarray) -> np.ndarray:
        return self.all(*inputs)[0]

    def all(self, *inputs: np.ndarray) -> list[np.ndarray]:
        machine = relax.VirtualMachine(self.executable, tvm.cpu())
        result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
        return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]


def graph(build: Build, inputs: Sequence[tuple[Sequence[Any], str]]) -> tvm.IRModule:
    """Make a module with one dataflow function; ``inputs`` are shapes and data types."""
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, (shape, dtype) in enumerate(inputs)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def lower(module: tvm.IRModule, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> Compiled:
    """Compile a module for a target with these rules only."""
    transform = relax.transform
    with target:
        module = tvm.transform.Sequential(
            [
                transform.DecomposeOpsForInference(),
                transform.LegalizeOps(CPU.legalizations),
                transform.AnnotateTIROpPattern(),
                transform.FuseOps(),
                transform.FuseTIR(),
                apply_schedule_rules(rules),
            ]
        )(module)
        kernels = {
            global_var.name_hint: func
            for global_var, func in module.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        module = tvm.transform.Sequential(
            [
                transform.RewriteDataflowReshape(),
                transform.ToNonDataflow(),
                transform.CallTIRRewrite(),
                vector_code(),
                transform.LowerAllocTensor(),
                transform.KillAfterLastUse(),
                transform.LowerRuntimeBuiltin(),
                transform.ComputePrimValue(),
                transform.VMShapeLower(),
                transform.AttachGlobalSymbol(),
            ]
        )(module)
    library = tvm.compile(module, target, relax_pipeline=tvm.transform.Sequential([]))
    taken = {name: str(func.attrs.get(RULE_ATTRIBUTE, "")) for name, func in kernels.items()}
    return Compiled(kernels, taken, library)


def compile_graph(
    build: Build,
    inputs: Sequence[np.ndarray],
    rules: Sequence[ScheduleRule],
    target: tvm.target.Target | None = None,
) -> Compiled:
    """Compile a graph for inputs like these."""
    specs = [(array.shape, str(array.dtype)) for array in inputs]
    return lower(graph(build, specs), target or TARGETS["native"], rules)


def assembly(func: tirx.PrimFunc, target: tvm.target.Target | None = None) -> str:
    """Compile one scheduled kernel and show its assembly."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = target or TARGETS["native"]
    with target:
        module = vector_code()(module)
    return str(tvm.compile(module, target).mod.inspect_source("asm"))
