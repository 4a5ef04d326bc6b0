"""What a compilation decided, counted: kernels, kernel calls, planned bytes. Works for any Relax pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import relax

WORKSPACE_ATTRIBUTE = "tvm_ext.workspace_bytes"
"""Attribute of a kernel that allocates the intermediate tensors of others, which it calls: how many bytes at once."""


@dataclass(frozen=True)
class ModuleStatistics:
    """Counts over a Relax module after memory planning.

    Attributes
    ----------
    kernels : int
        Distinct kernels (PrimFuncs) that are called.
    kernel_calls : int
        Call sites of kernels.
    planned_bytes : int
        Bytes of all storages that the plan reserves for intermediate tensors, in kernels that call others, too.
    output_bytes : int
        Bytes of tensors allocated outside the plan because they are returned.
    dynamic_allocations : int
        Allocations whose size is only known at run time; they are in neither sum.
    """

    kernels: int
    kernel_calls: int
    planned_bytes: int
    output_bytes: int
    dynamic_allocations: int


def module_statistics(mod: tvm.IRModule) -> ModuleStatistics:
    """Count kernels and planned bytes of a module in which allocations are explicit (after memory planning)."""
    called: set[str] = set()
    calls = planned = output = dynamic = 0

    def visit(expr: relax.Expr) -> None:
        nonlocal calls, planned, output, dynamic
        if not isinstance(expr, relax.Call):
            return
        operator = expr.op
        if isinstance(operator, tvm.ir.GlobalVar):
            kernel = mod.functions.get(operator)
            if isinstance(kernel, tvm.tirx.PrimFunc):
                planned += 0 if operator.name_hint in called else int((kernel.attrs or {}).get(WORKSPACE_ATTRIBUTE, 0))
                called.add(operator.name_hint)
                calls += 1
        elif isinstance(operator, tvm.ir.Op) and operator.name == "relax.memory.alloc_storage":
            size = _static_bytes(expr.args[0], None)
            planned, dynamic = planned + (size or 0), dynamic + (size is None)
        elif isinstance(operator, tvm.ir.Op) and operator.name == "relax.builtin.alloc_tensor":
            size = _static_bytes(expr.args[0], str(expr.args[1].value))
            output, dynamic = output + (size or 0), dynamic + (size is None)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return ModuleStatistics(len(called), calls, planned, output, dynamic)


def _static_bytes(shape: relax.Expr, dtype: str | None) -> int | None:
    """Bytes of a shape expression (``dtype`` None: the shape counts bytes already); None when it is not static."""
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
        return None
    width = 8 if dtype is None else tvm.DataType(dtype).bits * tvm.DataType(dtype).lanes
    return (prod(int(dim) for dim in shape) * width + 7) // 8


@tvm.ir.instrument.pass_instrument
class StatisticsInstrument:
    """A pass instrument that takes the statistics right after memory planning, in whatever pipeline runs.

    Examples
    --------
    >>> instrument = StatisticsInstrument()
    >>> with tvm.transform.PassContext(instruments=[instrument]):
    ...     executable = tvm.compile(mod, target)
    >>> instrument.statistics.kernels
    """

    PLANNING = ("StaticPlanBlockMemory", "tvm_ext.Arena")

    def __init__(self) -> None:
        self.statistics: ModuleStatistics | None = None

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        """Count when ``info`` names a memory planner."""
        if info.name in self.PLANNING:
            self.statistics = module_statistics(mod)
