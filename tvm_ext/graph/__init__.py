"""Read-only dataflow view of a Relax function, shared by all graph passes.

Everything but :func:`from_relax` is plain data and never imports TVM.

Examples
--------
>>> graph = from_relax(mod)                             # doctest: +SKIP
>>> print(to_text(graph))                               # doctest: +SKIP
>>> peak_bytes(graph, depth_first_order(graph))         # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_ext.graph.dataflow import DataflowGraph, Node, Order, Tensor, graph_of_sizes
    from tvm_ext.graph.flops import Flops
    from tvm_ext.graph.lifetimes import Liveness, LivenessOptions, liveness, peak_bytes
    from tvm_ext.graph.operator_table import operator_flops
    from tvm_ext.graph.orders import (
        breadth_first_order,
        check_order,
        count_topological_orders,
        depth_first_order,
        given_order,
        is_topological_order,
        random_order,
        topological_orders,
    )
    from tvm_ext.graph.paths import ancestors, count_all_paths, count_paths, descendants, is_convex, path_outside
    from tvm_ext.graph.printing import to_dot, to_text
    from tvm_ext.graph.relax_module import from_relax
    from tvm_ext.graph.symbolic import Dim, Symbolic, symbol
    from tvm_ext.graph.tir_flops import prim_func_flops

__all__ = [
    "DataflowGraph",
    "Dim",
    "Flops",
    "Liveness",
    "LivenessOptions",
    "Node",
    "Order",
    "Symbolic",
    "Tensor",
    "ancestors",
    "breadth_first_order",
    "check_order",
    "count_all_paths",
    "count_paths",
    "count_topological_orders",
    "depth_first_order",
    "descendants",
    "from_relax",
    "given_order",
    "graph_of_sizes",
    "is_convex",
    "is_topological_order",
    "liveness",
    "operator_flops",
    "path_outside",
    "peak_bytes",
    "prim_func_flops",
    "random_order",
    "symbol",
    "to_dot",
    "to_text",
    "topological_orders",
]
_MODULES = {
    "dataflow": ("DataflowGraph", "Node", "Order", "Tensor", "graph_of_sizes"),
    "flops": ("Flops",),
    "relax_module": ("from_relax",),
    "lifetimes": ("Liveness", "LivenessOptions", "liveness", "peak_bytes"),
    "operator_table": ("operator_flops",),
    "orders": (
        "breadth_first_order",
        "check_order",
        "count_topological_orders",
        "depth_first_order",
        "given_order",
        "is_topological_order",
        "random_order",
        "topological_orders",
    ),
    "paths": ("ancestors", "count_all_paths", "count_paths", "descendants", "is_convex", "path_outside"),
    "printing": ("to_dot", "to_text"),
    "symbolic": ("Dim", "Symbolic", "symbol"),
    "tir_flops": ("prim_func_flops",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvm_ext.graph' has no attribute '{name}'")
    return getattr(importlib.import_module(f"tvm_ext.graph.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
