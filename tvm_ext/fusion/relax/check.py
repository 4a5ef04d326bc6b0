"""Asks the schedule rules about planned blocks, and cuts up those that they do not do well.

A block is done well when a rule takes the merged kernel, the operator that decides the loops has the schedule that it
has alone, and no intermediate tensor is written out inside. Otherwise it is tried again without the reshapes at its
border, which are views and cost nothing outside; then without what others need as well. At last it is taken apart into
chains in which elements keep their places, and these are put together again as far as the rules do them well. Then
operators move between all blocks once more, as far as the rules go along: a piece may suit another neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.fusion.block_mapping import block_mapping, is_anchor
from tvm_ext.fusion.cuts import can_be_ordered, chains, put_together, ways_to_cut
from tvm_ext.fusion.limits import BlockLimits
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks, removable_operators
from tvm_ext.fusion.refinement import refine_plan
from tvm_ext.fusion.relax.groups import group_function, is_kernel_call, variables_of
from tvm_ext.fusion.relax.latency import BlockLatencies
from tvm_ext.fusion.relax.trials import Scheduled, TrialSchedules
from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE

SCRATCH_BYTES = 64 * 1024
"""What a kernel may keep for itself: it stays in the caches next to a core."""

MARGIN = 1.1
"""How much longer a measured block may take than its parts: measurements vary."""

SLOW_RULES = ("", "cpu.fallback")
"""No rule, and the rule for what has no form: each of its blocks runs through all its data on its own."""


class BlockCheck:
    """Tells which blocks of a module the rules do well.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels.
    trials : TrialSchedules
        What the schedule rules make of kernels.
    target : tvm.target.Target
    latencies : BlockLatencies, optional
        Measured times: a block with a combination that the table makes depend on them is cut up where that is faster.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        trials: TrialSchedules,
        target: tvm.target.Target,
        latencies: BlockLatencies | None = None,
    ) -> None:
        self._mod, self._trials, self._target, self._latencies = mod, trials, target, latencies
        self._known: dict[Any, Scheduled | None] = {}

    def settle(
        self,
        plan: FusionPlan,
        graph: OperatorGraph,
        func: Any,
        limits: BlockLimits | None = None,
        given: Collection[Collection[int]] = (),
    ) -> FusionPlan:
        """Cut up the blocks of a plan that the rules do not do well, and join the pieces with their neighbours.

        Parameters
        ----------
        plan : FusionPlan
        graph : OperatorGraph
            Of ``func``; its operators know their nodes.
        func : relax.Function
            The function as it was planned.
        limits : BlockLimits, optional
            Of the blocks, as they were planned.
        given : collection of collections of int
            Blocks that would be kernels anyway, of which the rules need not be asked.
        """
        calls, uses = _calls(graph, func)
        known = set(map(frozenset, given))
        blocks: list[Collection[int]] = []
        for block in plan.blocks:
            if (
                len(block.operators) < 2
                or frozenset(block.operators) in known
                or not all(is_kernel_call(calls[index]) for index in block.operators)
            ):
                blocks.append(block.operators)
                continue
            blocks += self._parts(graph, {index: calls[index] for index in block.operators}, uses)
        settled = plan_of_blocks(graph, blocks)
        if settled is None:
            return plan

        def accepts(part: Collection[int]) -> bool:
            if len(part) == 1 or frozenset(part) in known:
                return True
            return (
                all(is_kernel_call(calls[index]) for index in part)
                and self._is_well_done(graph, part, calls, uses)
                and len(self._faster(graph, set(part), calls, uses)) == 1
            )

        return refine_plan(settled, graph, limits or BlockLimits(graph), accepts)

    def measured(self, graph: OperatorGraph, func: Any) -> Callable[[Collection[int]], float | None]:
        """Give what tells the measured seconds of a block of a function, or measures them; None where it cannot."""
        calls, uses = _calls(graph, func)

        def seconds(part: Collection[int]) -> float | None:
            if self._latencies is None or not all(is_kernel_call(calls[index]) for index in part):
                return None
            return self._seconds(graph, part, calls, uses)

        return seconds

    def _parts(self, graph: OperatorGraph, members: dict[int, Any], uses: Counter[Any]) -> list[set[int]]:
        """Give the first way to cut up a block of which the rules do every part well."""

        def is_well_done(part: Collection[int]) -> bool:
            return self._is_well_done(graph, part, members, uses)

        for parts in ways_to_cut(graph, members):
            if can_be_ordered(graph, parts) and all(map(is_well_done, parts)):
                return [piece for part in parts for piece in self._faster(graph, part, members, uses)]
        return put_together(graph, chains(graph, members), is_well_done)

    def _faster(
        self, graph: OperatorGraph, part: set[int], bindings: dict[int, Any], uses: Counter[Any]
    ) -> list[set[int]]:
        """Give a block as it is, or in chains where measurements say that these take less time."""
        found = block_mapping(graph, part)
        pieces = chains(graph, part)
        if self._latencies is None or found is None or not found.is_yellow or len(pieces) < 2:
            return [part]
        whole = self._seconds(graph, part, bindings, uses)
        if whole is None:
            return [part]
        total = 0.0
        for piece in pieces:
            seconds = self._seconds(graph, piece, bindings, uses)
            if seconds is None:
                return [part]
            total += seconds
        return pieces if whole > MARGIN * total and can_be_ordered(graph, pieces) else [part]

    def _seconds(
        self, graph: OperatorGraph, part: Collection[int], bindings: dict[int, Any], uses: Counter[Any]
    ) -> float | None:
        def scheduled() -> Any:
            calls = [bindings[index] for index in sorted(part)]
            kernel = merged_kernel(self._mod, calls, _read_by_others(calls, uses))
            return None if kernel is None else self._trials.scheduled(kernel, self._target).kernel

        assert self._latencies is not None
        return self._latencies.seconds(graph, part, scheduled)

    def _is_well_done(
        self, graph: OperatorGraph, part: Collection[int], bindings: dict[int, Any], uses: Counter[Any]
    ) -> bool:
        if len(part) == 1:
            return True
        whole = self._scheduled(part, bindings, uses)
        if whole is None or whole.failed:
            return False
        alone = {index: self._scheduled([index], bindings, uses) for index in part}
        anchors = [index for index in part if graph.operators[index].tail is not None]
        if any(alone[index] is None or whole.rule != alone[index].rule for index in anchors):  # type: ignore[union-attr]
            return False
        kept = max((found.nbytes for found in alone.values() if found is not None), default=0)
        if whole.nbytes > kept + SCRATCH_BYTES:
            return False
        reductions = [index for index in part if is_anchor(graph.operators[index])]
        alone_rules = {found.rule for found in alone.values() if found is not None}
        if whole.rule == "cpu.elementwise" and "cpu.transpose" in alone_rules:
            return False  # tiles are lost when a transposition meets another
        if whole.rule == "cpu.transpose" and len(part) - len(removable_operators(graph, part)) > 1:
            return False  # what is transposed would be loaded and moved anew for each result
        slow_alone = any(alone[index] is None or alone[index].rule in SLOW_RULES for index in reductions or part)  # type: ignore[union-attr]
        return whole.rule not in SLOW_RULES or slow_alone

    def _scheduled(self, part: Collection[int], bindings: dict[int, Any], uses: Counter[Any]) -> Scheduled | None:
        """Schedule the kernel of some operators; None when they cannot be merged."""
        calls = [bindings[index] for index in sorted(part)]
        read_by_others = _read_by_others(calls, uses)
        key = signature(calls, read_by_others)
        if key not in self._known:
            self._known[key] = self._schedule(calls, read_by_others)
        return self._known[key]

    def _schedule(self, calls: Sequence[Any], read_by_others: Collection[Any]) -> Scheduled | None:
        kernel = merged_kernel(self._mod, calls, read_by_others)
        return None if kernel is None else self._trials.scheduled(kernel, self._target)


def _calls(graph: OperatorGraph, func: Any) -> tuple[dict[int, Any], Counter[Any]]:
    """Give the bindings of operators, and how often each variable of a function is read."""
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    uses = Counter(variable for binding in bindings for variable in variables_of(binding))
    uses.update(relax.analysis.free_vars(func.body.body))
    return {index: bindings[operator.node] for index, operator in enumerate(graph.operators)}, uses


def merged_kernel(mod: tvm.IRModule, calls: Sequence[Any], read_by_others: Collection[Any]) -> Any:
    """Merge kernels that call one another into one.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels.
    calls : sequence of relax.VarBinding
        Calls of kernels, in an order in which they can run.
    read_by_others : collection of relax.Var
        Those of their results that are results of the whole.

    Returns
    -------
    tvm.tirx.PrimFunc or None
        None when TVM cannot merge them.
    """
    names = {call.value.args[0].name_hint: call.value.args[0] for call in calls}
    if len(calls) == 1:
        return mod[next(iter(names.values()))]
    builder = relax.BlockBuilder()
    renamed = {name: builder.add_func(mod[variable], name) for name, variable in names.items()}
    fresh = [
        relax.VarBinding(
            call.var,
            relax.Call(
                call.value.op,
                [renamed[call.value.args[0].name_hint], call.value.args[1]],
                call.value.attrs,
                call.value.ty_args,
            ),
        )
        for call in calls
    ]
    group = group_function(builder, fresh, read_by_others)
    arguments = [relax.Var(f"x{number}", argument.ty) for number, argument in enumerate(group.arguments)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(builder.add_func(group.function, "fused"), arguments))
        builder.emit_func_output(result)
    merged = relax.transform.FuseTIR()(builder.get())
    found = [func for _, func in merged.functions_items() if isinstance(func, tirx.PrimFunc)]
    return found[0] if len(found) == 1 else None


def annotated_kernels(func: Any) -> set[str]:
    """List what the blocks of a kernel are annotated as computing, such as ``conv`` or ``matmul``."""
    found: set[str] = set()

    def note(block: Any) -> None:
        if KERNEL_ATTRIBUTE in block.annotations:
            found.add(str(block.annotations[KERNEL_ATTRIBUTE]))

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, note))
    return found


def _read_by_others(calls: Sequence[Any], uses: Counter[Any]) -> set[Any]:
    """Find the results of some calls that something else reads."""
    inside = Counter(variable for binding in calls for variable in variables_of(binding))
    return {
        call.var for call in calls if uses[call.var] > inside[call.var] or not isinstance(call.var, relax.DataflowVar)
    }


def signature(calls: Sequence[Any], read_by_others: Collection[Any]) -> tuple[Any, ...]:
    """Describe some calls so that equal kernels come out for equal descriptions."""
    number = {binding.var: position for position, binding in enumerate(calls)}
    outside: dict[Any, int] = {}
    described = []
    for binding in calls:
        fields = binding.value.args[1].fields
        operands = tuple(
            number[field] if field in number else (outside.setdefault(field, len(outside)), "outside")
            for field in fields
        )
        described.append((binding.value.args[0].name_hint, operands, binding.var in read_by_others))
    return tuple(described)
