"""Put the kernels of a function into the order that needs the least memory, and let them run in place where they may.

With the size of a memory on the chip, the order is the one that moves the least to and from the memory behind it.

Runs when all kernels are made (after scheduling) and before their results get memory (``CallTIRRewrite``). The decision
is a :class:`MemoryPlan`, made on plain data; it is applied by moving bindings, by turning calls into
``call_tir_inplace``, and by marking the concatenations whose operands will be written into the result and the slices
that will stay in what they are taken from.

before: ``a = f(x); b = g(x); c = h(a); d = relu(c); ...`` with ``a`` and ``b`` alive together
after:  ``a = f(x); c = h(a); d = relu_in_place(c); b = g(x); ...``

The method is that of B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks
for Edge Devices", MLSys 2020; see :mod:`tvm_ext.memory`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import tvm
from tvm import relax

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, Order, liveness
from tvm_ext.memory import OrderOptions, OrderPlan, plan_order, plan_traffic_order, verify_order
from tvm_ext.memory.relax.graph import LIVENESS, MemoryGraph, MemoryReader, is_plannable
from tvm_ext.memory.relax.kernel_access import CONCATENATE_ATTRIBUTE, SLICE_ATTRIBUTE, in_place_variant
from tvm_ext.memory.work import SECOND

PLAN_ATTRIBUTE = "tvm_ext.memory_plan"
"""Attribute of a function whose kernels were ordered: the figures of its plan, as JSON."""

VARIANT_ATTRIBUTE = "tvm_ext.variant_of"
"""Attribute of a kernel that writes results over operands: the name of the kernel that does not."""

Method: TypeAlias = Literal["given", "greedy", "optimal"]
EFFORT = SECOND
"""Steps of work, of about a microsecond, for the search of one function's order."""

LITTLE_EFFORT = EFFORT / 4
"""Steps where a compilation is not about memory. Most networks take none: their order is seen to be the best one."""

READ_STEPS = 50.0
"""Of work, for each node of a graph that is read anew."""

MOST_CHOICES = 12
"""Concatenations and slices for which copying is tried as well, largest first."""


@dataclass(frozen=True)
class MemoryPlan:
    """The decision for one function.

    Attributes
    ----------
    order : tuple of int
        The nodes of :attr:`graph` in the order they run.
    peak : int
        Bytes of the intermediate tensors alive at once, at most.
    lower_bound : int
        No order of these nodes needs less.
    optimal : bool
        Whether the order is proved to be the best for these nodes.
    stock_peak : int
        Bytes alive at once in the order given, nothing in place and nothing joined.
    in_place : mapping of str to str
        For each tensor that is written over another one: the other.
    joins : mapping of int to tuple of int
        Concatenations that copy nothing, by node: byte offset of each operand.
    slices : mapping of int to tuple of int
        Slices that copy nothing, by node: byte offset of each result.
    seconds, work : float
        Time and steps of the search; the steps are the same on every machine.
    graph : DataflowGraph
        What was planned.
    traffic : tuple of int, optional
        Bytes moved to and from the memory off the chip: in the order given, and in this one.
    """

    order: Order
    peak: int
    lower_bound: int
    optimal: bool
    stock_peak: int
    in_place: Mapping[str, str]
    joins: Mapping[int, tuple[int, ...]]
    slices: Mapping[int, tuple[int, ...]]
    seconds: float
    work: float
    graph: DataflowGraph = field(repr=False)
    traffic: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the figures of the plan: bytes, numbers of kernels, steps of work; the same in every compilation."""
        return {
            "stock_peak": self.stock_peak,
            "peak": self.peak,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "in_place": len(self.in_place),
            "joined": len(self.joins),
            "sliced": len(self.slices),
            "work": round(self.work),
            **({} if self.traffic is None else {"given_traffic": self.traffic[0], "traffic": self.traffic[1]}),
        }


def memory_order(method: Method = "optimal", effort: float = EFFORT, on_chip: int | None = None) -> tvm.transform.Pass:
    """Make the pass; functions with branches or sizes that are not known stay as they are.

    Parameters
    ----------
    method : str
        ``given`` keeps the order of the module, and only runs kernels in place and joins concatenations; ``greedy``
        takes another one where one of a few that need no search has a lower peak.
    effort : float
        Steps of work for the search of one function's order; when they are spent, the best order found counts.
    on_chip : int, optional
        Bytes of a memory on the chip: ``optimal`` then looks for the least traffic, and takes a higher peak for it.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MemoryOrder")
    def _memory_order(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        for global_var, func in mod.functions.items():
            if isinstance(func, relax.Function) and is_plannable(func):
                plan = plan_memory(mod, global_var.name_hint, method, effort, on_chip)
                if plan is not None:
                    mod = apply_plan(mod, global_var, plan)
        return mod

    return _memory_order


def plan_memory(
    mod: tvm.IRModule,
    function: str = "main",
    method: Method = "optimal",
    effort: float = EFFORT,
    on_chip: int | None = None,
) -> MemoryPlan | None:
    """Decide order, places and joins of one function; None when the size of a tensor is not known.

    Joining is not always better: the result takes its place when its first part is written. Nor is slicing: the operand
    keeps its place until the last slice is used. So for the largest ones copying is tried as well, and the plan with
    the smallest peak is taken.
    """
    reader = MemoryReader(mod, function)
    graph = reader.graph
    if len({node.block for node in graph.nodes}) > 1:
        method = "given"  # bindings stay in their blocks
    if any(not isinstance(tensor.nbytes, int) for tensor in graph.tensors.values()):
        return None
    stock_peak = liveness(graph, options=LIVENESS).peak
    copied: frozenset[int] = frozenset()
    best, order = _ordered(reader, method, effort, copied)
    seconds, work = order.seconds, order.work
    for node in sorted([*best.joins, *best.slices], key=lambda index: -_result_bytes(best, index))[:MOST_CHOICES]:
        if work >= effort or (order.optimal and _unavoidable(best, order)):
            break
        other, other_order = _ordered(reader, method, effort - work, copied | {node})
        # At least what it takes to read the graph once more.
        seconds, work = seconds + other_order.seconds, work + other_order.work + READ_STEPS * len(graph)
        if other_order.peak < order.peak:
            best, order, copied = other, other_order, copied | {node}
    graph = best.graph
    chosen, traffic = tuple(order.order), None
    if on_chip is not None and method == "optimal":
        found = plan_traffic_order(graph, on_chip, [order.order], effort=effort)
        chosen, traffic = tuple(found.order), (found.given.total, found.traffic.total)
    alive = liveness(graph, chosen, LIVENESS)
    is_optimal = order.optimal and alive.peak == order.peak
    return MemoryPlan(
        chosen, alive.peak, order.lower_bound, is_optimal, stock_peak, dict(alive.in_place), dict(best.joins),
        dict(best.slices), seconds, work, graph, traffic,
    )  # fmt: skip


def _ordered(
    reader: MemoryReader, method: Method, effort: float, copied: frozenset[int]
) -> tuple[MemoryGraph, OrderPlan]:
    found = reader.marked(copied=copied)
    order = plan_order(found.graph, OrderOptions(method=method, effort=effort, liveness=LIVENESS))
    verify_order(order, found.graph, LIVENESS)
    return found, order


def _result_bytes(found: MemoryGraph, index: int) -> int:
    sizes = (found.graph.tensors[name].nbytes for name in found.graph.nodes[index].outputs)
    return sum(size for size in sizes if isinstance(size, int))


def _unavoidable(found: MemoryGraph, order: OrderPlan) -> bool:
    """Whether nothing joined or sliced is alive at the peak, so that copying instead cannot lower it."""
    alive = liveness(found.graph, order.order, LIVENESS)
    results = {found.graph.storages[found.graph.nodes[index].outputs[0]] for index in (*found.joins, *found.slices)}
    return not results & set(alive.live_at_peak)


# ---- apply


def apply_plan(mod: tvm.IRModule, global_var: Any, plan: MemoryPlan) -> tvm.IRModule:
    """Put the bindings of a function into the order of a plan, run kernels in place and mark joins.

    Raises
    ------
    GraphError
        If the plan is not for this function.
    """
    func = mod[global_var]
    blocks = list(func.body.blocks)
    bindings = [(number, binding) for number, block in enumerate(blocks) for binding in block.bindings]
    if len(bindings) != len(plan.graph) or sorted(plan.order) != list(range(len(bindings))):
        raise GraphError(
            f"function '{global_var.name_hint}': the memory plan is for {len(plan.graph)} bindings, not for "
            f"{len(bindings)}; plan the function as it is"
        )
    kernels = _Variants(mod)
    placed: list[list[Any]] = [[] for _ in blocks]
    for index in plan.order:
        number, binding = bindings[index]
        placed[number].append(_planned_binding(binding, index, plan, kernels))
    rebuilt = [type(block)(items) for block, items in zip(blocks, placed, strict=True)]
    body = relax.SeqExpr(rebuilt, func.body.body)
    new = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    new = new.with_attr(PLAN_ATTRIBUTE, json.dumps(plan.to_json()))
    kernels.builder.update_func(global_var, new)
    return kernels.builder.get()


def _planned_binding(binding: Any, index: int, plan: MemoryPlan, kernels: _Variants) -> Any:
    node, call = plan.graph.nodes[index], binding.value
    for offsets, attribute in ((plan.joins, CONCATENATE_ATTRIBUTE), (plan.slices, SLICE_ATTRIBUTE)):
        if index in offsets:
            dropped = kernels.dropped(call.args[0], attribute, offsets[index])
            return _bind(binding.var, relax.op.call_tir(dropped, call.args[1], _types(call)), kernels)
    overwritten = {}
    for result, name in enumerate(node.outputs):
        source = plan.in_place.get(name)
        if source is not None:
            operands = [plan.graph.storages[operand] for operand in node.operands]
            overwritten[result] = operands.index(source)
    if not overwritten:
        return binding
    kernel = kernels.in_place(call.args[0], len(node.operands), overwritten)
    places = [overwritten.get(result, -1) for result in range(len(node.outputs))]
    return _bind(binding.var, relax.op.call_tir_inplace(kernel, call.args[1], places, _types(call)), kernels)


def _types(call: Any) -> list[Any]:
    return list(call.ty.fields) if isinstance(call.ty, tvm.ir.TupleType) else [call.ty]


def _bind(variable: Any, call: Any, kernels: _Variants) -> Any:
    return relax.VarBinding(variable, kernels.builder.normalize(call))


class _Variants:
    """The variants of a module's kernels that a plan needs, each made once."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.builder = relax.BlockBuilder(mod)
        self._mod = mod
        self._made: dict[Any, Any] = {}

    def in_place(self, global_var: Any, operands: int, overwritten: Mapping[int, int]) -> Any:
        """Give the kernel that writes results over operands."""
        key = (global_var.name_hint, tuple(sorted(overwritten.items())))
        if key not in self._made:
            func = self._mod[global_var]
            # From the last result on, so that the positions of the others stay as they are.
            for result, operand in sorted(overwritten.items(), reverse=True):
                func = in_place_variant(func, operand, operands + result)
            func = func.with_attr(VARIANT_ATTRIBUTE, global_var.name_hint)
            self._made[key] = self.builder.add_func(func, f"{global_var.name_hint}_in_place")
        return self._made[key]

    def dropped(self, global_var: Any, attribute: str, offsets: tuple[int, ...]) -> Any:
        """Give the concatenation or the slice whose calls the arena drops."""
        key = (global_var.name_hint, attribute)
        if key not in self._made:
            func = self._mod[global_var].with_attr(attribute, list(offsets))
            self._made[key] = self.builder.add_func(func, f"{global_var.name_hint}_moves_nothing")
        return self._made[key]
