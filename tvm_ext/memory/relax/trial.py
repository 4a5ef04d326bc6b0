"""The peak of memory of a module of operators, found by lowering it to fused kernels on trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import tvm
from tvm import relax

from tvm_ext.memory import OrderOptions, plan_order
from tvm_ext.memory.relax.graph import LIVENESS, memory_graph
from tvm_ext.memory.relax.order import EFFORT as ORDER_EFFORT
from tvm_ext.memory.relax.order import Method
from tvm_ext.memory.relax.scattered_joins import scattered_joins
from tvm_ext.relax_utils import static_shape


def room_for(func: relax.Function, limit: int) -> int:
    """Give what a limit, of intermediate tensors and results, leaves for intermediate tensors; 0 for no limit."""
    results = func.ret_ty.fields if isinstance(func.ret_ty, tvm.ir.TupleType) else [func.ret_ty]
    shapes = [(static_shape(result), result) for result in results if isinstance(result, relax.TensorType)]
    taken = sum(prod(shape) * tvm.DataType(str(result.dtype)).itemsize for shape, result in shapes if shape is not None)
    return max(limit - taken, 1) if limit else 0


def peak_on_trial(
    lowering: Sequence[tvm.transform.Pass], method: Method, function: str = "main"
) -> Callable[[tvm.IRModule], int | None]:
    """Make the function that gives the bytes alive at once in a module; None where sizes are open.

    Parameters
    ----------
    lowering : sequence of Pass
        From operators to fused kernels: what the pipeline does next.
    method : str
        How the order will be chosen.
    """
    lower = tvm.transform.Sequential([*lowering, scattered_joins()], name="tvm_ext.PeakTrial")

    def peak_of(mod: tvm.IRModule) -> int | None:
        graph = memory_graph(lower(mod), function).graph
        if any(not isinstance(tensor.nbytes, int) for tensor in graph.tensors.values()):
            return None
        return plan_order(graph, OrderOptions(method=method, effort=ORDER_EFFORT, liveness=LIVENESS)).peak

    return peak_of
