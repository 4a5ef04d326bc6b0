"""Plan the memory of a function: an order with a low peak, an arena, traffic to memory off the chip. Plain data only.

Examples
--------
>>> from tvm_ext.graph import graph_of_sizes, liveness
>>> from tvm_ext.memory import off_chip_traffic, plan_arena, plan_order, verify_order
>>> graph = graph_of_sizes([[], [0], [0], [0], [1], [2], [3], [4, 5, 6], [7]], [4, 8, 8, 8, 2, 2, 2, 6, 1])
>>> plan = plan_order(graph)
>>> plan.peak, plan.given_peak, plan.optimal
(16, 28, True)
>>> verify_order(plan, graph)
>>> alive = liveness(graph, plan.order)
>>> plan_arena(alive.intervals, alive.sizes, alignment=1, in_place=alive.in_place).size
16
>>> off_chip_traffic(graph, capacity=12).spilled, off_chip_traffic(graph, 12, plan.order).spilled
(52, 20)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_ext.memory.arena import ArenaPlan, plan_arena
    from tvm_ext.memory.budget import BudgetStep
    from tvm_ext.memory.order import OrderOptions, OrderPlan, plan_order
    from tvm_ext.memory.rewriting import Rewriting, RewritingPlan, choose_rewritings, rewritten
    from tvm_ext.memory.traffic import Traffic, off_chip_traffic
    from tvm_ext.memory.traffic_order import TrafficPlan, plan_traffic_order
    from tvm_ext.memory.verify import verify_arena, verify_order
    from tvm_ext.memory.work import SECOND, Work

__all__ = [
    "SECOND",
    "ArenaPlan",
    "BudgetStep",
    "OrderOptions",
    "OrderPlan",
    "Rewriting",
    "RewritingPlan",
    "Traffic",
    "TrafficPlan",
    "Work",
    "choose_rewritings",
    "off_chip_traffic",
    "plan_arena",
    "plan_order",
    "plan_traffic_order",
    "rewritten",
    "verify_arena",
    "verify_order",
]
_MODULES = {
    "arena": ("ArenaPlan", "plan_arena"),
    "budget": ("BudgetStep",),
    "order": ("OrderOptions", "OrderPlan", "plan_order"),
    "rewriting": ("Rewriting", "RewritingPlan", "choose_rewritings", "rewritten"),
    "traffic": ("Traffic", "off_chip_traffic"),
    "traffic_order": ("TrafficPlan", "plan_traffic_order"),
    "verify": ("verify_arena", "verify_order"),
    "work": ("SECOND", "Work"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvm_ext.memory' has no attribute '{name}'")
    return getattr(importlib.import_module(f"tvm_ext.memory.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
