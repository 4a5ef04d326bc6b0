"""Decide which rewritings make the best order need less memory, and apply those.

Two kinds are on offer: to take a concatenation apart (:mod:`tvm_ext.memory.relax.partial_convolution`), and to keep
concatenations out of fused kernels, so that operands can be written into the result
(:mod:`tvm_ext.memory.relax.isolate_concatenations`). Each choice is judged by what comes out: the module is lowered to
kernels on trial, and their order planned. A choice that does not lower the peak is not made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import tvm
from tvm import relax

from tvm_ext.graph import DataflowGraph
from tvm_ext.memory import OrderOptions, choose_rewritings, plan_order
from tvm_ext.memory.relax.graph import LIVENESS, is_plannable, memory_graph
from tvm_ext.memory.relax.isolate_concatenations import ISOLATE_ATTRIBUTE
from tvm_ext.memory.relax.order import EFFORT as ORDER_EFFORT
from tvm_ext.memory.relax.order import Method
from tvm_ext.memory.relax.partial_convolution import concatenations, partial_convolutions
from tvm_ext.memory.work import SECOND

EFFORT = 10 * SECOND
"""Steps of work, of about a microsecond, after which no further choice is tried."""

EFFORT_TO_CONFIRM = 2 * SECOND
"""Of each of the two last orders: with the choice, and with none."""

NODE_STEPS = 3000.0
"""Of work, for each kernel of a module that is lowered on trial."""

_ISOLATE = "keep concatenations out of fused kernels"


def memory_rewriting(
    lowering: Sequence[tvm.transform.Pass],
    method: Method = "optimal",
    *,
    partial: bool = True,
    effort: float = EFFORT,
    function: str = "main",
) -> tvm.transform.Pass:
    """Make the pass; it works on operators, before layout and legalisation.

    Parameters
    ----------
    lowering : sequence of Pass
        From operators to fused kernels: what the pipeline does next.
    method : str
        How the order will be chosen.
    partial : bool
        Offer to take concatenations apart, which changes results by rounding.
    effort : float
        Steps of work after which no further choice is tried.
    function : str
        The Relax function to rewrite.
    """
    lower = tvm.transform.Sequential(list(lowering), name="tvm_ext.MemoryTrial")

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MemoryRewriting")
    def _memory_rewriting(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        func = next((f for variable, f in mod.functions_items() if variable.name_hint == function), None)
        if not isinstance(func, relax.Function) or not is_plannable(func) or not _concatenates(func):
            return mod
        names = [_ISOLATE, *(concatenations(func) if partial else ())]

        @cache
        def build(chosen: frozenset[str]) -> DataflowGraph:
            return memory_graph(lower(_rewritten(mod, chosen, function)), function).graph

        if any(not isinstance(tensor.nbytes, int) for tensor in build(frozenset()).tensors.values()):
            return mod
        options = OrderOptions(method=method, effort=ORDER_EFFORT, liveness=LIVENESS)
        found = choose_rewritings(names, build, options, effort=effort, node_steps=NODE_STEPS)
        chosen = frozenset(found.chosen)
        # A search that was given up may have flattered a choice.
        options = replace(options, effort=EFFORT_TO_CONFIRM)
        if chosen and plan_order(build(chosen), options).peak < plan_order(build(frozenset()), options).peak:
            return _rewritten(mod, chosen, function)
        return mod

    return _memory_rewriting


def _concatenates(func: relax.Function) -> bool:
    values = (binding.value for block in func.body.blocks for binding in block.bindings)
    return any(getattr(getattr(value, "op", None), "name", "") == "relax.concat" for value in values)


def _rewritten(mod: tvm.IRModule, chosen: frozenset[str], function: str) -> tvm.IRModule:
    if _ISOLATE in chosen:
        global_var = mod.get_global_var(function)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        updated.update_func(global_var, mod[global_var].with_attr(ISOLATE_ATTRIBUTE, True))
        mod = updated
    return partial_convolutions(chosen - {_ISOLATE}, function)(mod)
