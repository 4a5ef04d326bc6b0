"""Decides how many threads a compiled part has that runs between operators of PyTorch.

PyTorch and TVM have a pool of threads each. Those of PyTorch's (OpenMP) keep spinning for some milliseconds after an
operator has ended, each on a core. A kernel that waits for a thread of TVM's on such a core waits until the operating
system takes the core away from the spinning one, which costs more than a short part takes on one core.
"""

from __future__ import annotations

from typing import Any

import tvm
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import flop_registry

from tvm_ext.backends.registry import backend_of
from tvm_ext.schedules.cpu.machine import Machine

SPINNING_SECONDS = 10e-3
"""How long threads of OpenMP may spin: 300,000 times the processor's instruction for it (libgomp's default)."""


def target_beside_torch(module: GraphModule, target: tvm.target.Target) -> tvm.target.Target:
    """Give the target for a part of a graph: one core of it where the part takes less than :data:`SPINNING_SECONDS`.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The part, its nodes with ``val`` in their meta. With open extents it keeps all cores.
    target : tvm.target.Target
        Where the graph is to run.
    """
    machine = backend_of(target).machine
    described = None if machine is None else machine(target)
    operations = _operations(module)
    if not isinstance(described, Machine) or operations is None or operations > SPINNING_SECONDS * described.flops:
        return target
    return tvm.target.Target({**target.export(), "num-cores": 1})


def _operations(module: GraphModule) -> int | None:
    """Count the multiplications and additions of products and convolutions; None if extents are open."""
    total = 0
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.overloadpacket in flop_registry:
            count = flop_registry[node.target.overloadpacket]
            operations = count(*_values(node.args), **_values(node.kwargs), out_val=node.meta["val"])
            if not isinstance(operations, int):
                return None
            total += operations
    return total


def _values(arguments: Any) -> Any:
    return map_aggregate(arguments, lambda value: value.meta["val"] if isinstance(value, Node) else value)
