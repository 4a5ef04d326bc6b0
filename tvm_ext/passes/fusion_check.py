"""Asks the schedule rules about planned blocks, and cuts up those that they do not do well.

A block is done well when a rule takes the merged kernel, the operator that decides the loops has the schedule that it
has alone, and no intermediate tensor is written out inside. Otherwise it is tried again without the reshapes at its
border, which are views and cost nothing outside; then without what others need as well. At last it is taken apart into
chains in which elements keep their places, and these are put together again as far as the rules do them well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.fusion.block_mapping import block_mapping, is_anchor
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan
from tvm_ext.fusion.planner import plan_of_blocks
from tvm_ext.graph.mapping_types import MappingType
from tvm_ext.passes.fusion_groups import group_function, is_kernel_call, variables_of
from tvm_ext.passes.fusion_latency import BlockLatencies
from tvm_ext.schedules.compute.convolution import KERNEL_ATTRIBUTE
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, ScheduleRule, apply_rules

SCRATCH_BYTES = 64 * 1024
"""What a kernel may keep for itself: it stays in the caches next to a core."""

MARGIN = 1.1
"""How much longer a measured block may take than its parts: measurements vary."""

SLOW_RULES = ("", "cpu.fallback")
"""No rule, and the rule for what has no form: each of its blocks runs through all its data on its own."""

_ALLOCATE = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


@dataclass(frozen=True)
class Scheduled:
    """How the rules did a kernel: which one took it, whether one failed, and the bytes it keeps for itself."""

    rule: str
    failed: bool
    nbytes: int


class BlockCheck:
    """Tells which blocks of a module the rules do well.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels.
    rules : sequence of ScheduleRule
    target : tvm.target.Target
    latencies : BlockLatencies, optional
        Measured times: a block with a combination that the table makes depend on them is cut up where that is faster.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        rules: Sequence[ScheduleRule],
        target: tvm.target.Target,
        latencies: BlockLatencies | None = None,
    ) -> None:
        self._mod, self._rules, self._target, self._latencies = mod, rules, target, latencies
        self._known: dict[Any, Scheduled | None] = {}

    def settle(self, plan: FusionPlan, graph: OperatorGraph, func: Any) -> FusionPlan:
        """Cut up the blocks of a plan that the rules do not do well.

        Parameters
        ----------
        plan : FusionPlan
        graph : OperatorGraph
            Of ``func``; its operators know their nodes.
        func : relax.Function
            The function as it was planned.
        """
        bindings = [binding for block in func.body.blocks for binding in block.bindings]
        uses = Counter(variable for binding in bindings for variable in variables_of(binding))
        uses.update(relax.analysis.free_vars(func.body.body))
        blocks: list[Collection[int]] = []
        for block in plan.blocks:
            if len(block.operators) < 2:
                blocks.append(block.operators)
                continue
            members = {index: bindings[graph.operators[index].node] for index in block.operators}
            if not all(map(is_kernel_call, members.values())):
                blocks.append(block.operators)
                continue
            blocks += self._parts(graph, members, uses)
        settled = plan_of_blocks(graph, blocks)
        return settled if settled is not None else plan

    def _parts(self, graph: OperatorGraph, members: dict[int, Any], uses: Counter[Any]) -> list[set[int]]:
        """Give the first way to cut up a block of which the rules do every part well."""

        def is_well_done(part: Collection[int]) -> bool:
            return self._is_well_done(graph, part, members, uses)

        for parts in _ways(graph, members):
            if can_be_ordered(graph, parts) and all(map(is_well_done, parts)):
                return [piece for part in parts for piece in self._faster(graph, part, members, uses)]
        return _put_together(graph, chains(graph, members), is_well_done)

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
            return None if kernel is None else apply_rules(kernel, self._target, self._rules)

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
        slow_alone = any(alone[index] is None or alone[index].rule in SLOW_RULES for index in reductions or part)  # type: ignore[union-attr]
        return whole.rule not in SLOW_RULES or slow_alone

    def _scheduled(self, part: Collection[int], bindings: dict[int, Any], uses: Counter[Any]) -> Scheduled | None:
        """Schedule the kernel of some operators; None when they cannot be merged."""
        calls = [bindings[index] for index in sorted(part)]
        read_by_others = _read_by_others(calls, uses)
        key = _signature(calls, read_by_others)
        if key not in self._known:
            self._known[key] = self._schedule(calls, read_by_others)
        return self._known[key]

    def _schedule(self, calls: Sequence[Any], read_by_others: Collection[Any]) -> Scheduled | None:
        kernel = merged_kernel(self._mod, calls, read_by_others)
        if kernel is None:
            return None
        func = apply_rules(kernel, self._target, self._rules)
        attributes = func.attrs or {}
        return Scheduled(str(attributes.get(RULE_ATTRIBUTE, "")), FAULT_ATTRIBUTE in attributes, allocated_bytes(func))


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


def can_be_ordered(graph: OperatorGraph, parts: Sequence[Collection[int]]) -> bool:
    """Whether the parts of a block can run one after the other."""
    home = {index: number for number, part in enumerate(parts) for index in part}
    waiting = set(range(len(parts)))
    while waiting:
        ready = {
            number
            for number in waiting
            if all(
                home.get(source, number) == number or home[source] not in waiting
                for index in parts[number]
                for source in graph.predecessors[index]
            )
        }
        if not ready:
            return False
        waiting -= ready
    return True


def _ways(graph: OperatorGraph, members: Collection[int]) -> Iterator[list[set[int]]]:
    """Yield ways to cut up a block, from the coarsest to the finest."""
    yield [set(members)]
    views = _without_views(graph, set(members))
    written = _without_written(graph, views)
    for inner in (views, written):
        if 0 < len(inner) < len(members):
            rest = set(members) - inner
            yield [inner, *({index} for index in rest)]
            if len(rest) > 1:
                yield [inner, *chains(graph, rest)]


def _put_together(
    graph: OperatorGraph, units: Sequence[set[int]], is_well_done: Callable[[Collection[int]], bool]
) -> list[set[int]]:
    """Join chains of a block, in the order in which they run, with those that they read."""
    parts: list[set[int]] = []
    for unit in sorted(units, key=max):
        if not is_well_done(unit):
            parts += [{index} for index in unit]
            continue
        read = {source for index in unit for source in graph.predecessors[index]} - unit
        before = [part for part in parts if part & read]
        joined = next(
            (
                chosen
                for chosen in ([before, *([part] for part in before)] if len(before) > 1 else [before])
                if chosen and _may_be_joined(graph, [*chosen, unit], parts) and is_well_done(set().union(unit, *chosen))
            ),
            [],
        )
        parts = [*(part for part in parts if part not in joined), unit.union(*joined)]
    return parts


def _may_be_joined(graph: OperatorGraph, chosen: Sequence[set[int]], parts: Sequence[set[int]]) -> bool:
    whole = set().union(*chosen)
    others = [part for part in parts if not part & whole]
    return block_mapping(graph, whole) is not None and can_be_ordered(graph, [*others, whole])


def _without_views(graph: OperatorGraph, members: set[int]) -> set[int]:
    """Leave out reshapes that begin or end a block: what they read, or what they give, is in memory anyway."""
    inner = set(members)
    changed = True
    while changed:
        changed = False
        for index in sorted(inner):
            operator = graph.operators[index]
            if operator.mapping is not MappingType.REORGANIZE or operator.is_disjoint_window:
                continue
            begins = not any(source in inner for source in graph.predecessors[index])
            ends = not any(reader in inner for reader in graph.successors[index])
            if begins or ends:
                inner.discard(index)
                changed = True
    return inner


def _without_written(graph: OperatorGraph, members: set[int]) -> set[int]:
    """Leave out what others need as well, with what it is computed from: the rest has one result."""
    inner = set(members)
    for index in sorted(members, reverse=True):
        outside = any(reader not in members for reader in graph.successors[index]) or graph.operators[index].is_output
        if outside and any(reader in inner for reader in graph.successors[index]):
            pending = [index]
            while pending:
                leaving = pending.pop()
                if leaving in inner:
                    inner.discard(leaving)
                    pending += [source for source in graph.predecessors[leaving] if source in inner]
    return inner


def chains(graph: OperatorGraph, members: Collection[int]) -> list[set[int]]:
    """Cut a block into trees in which elements keep their places and every inner result has one reader."""
    part_of: dict[int, set[int]] = {}
    for index in sorted(members):
        part = {index}
        operator = graph.operators[index]
        for edge in operator.edges:
            source = graph.operators[edge.source]
            if edge.source not in part_of or source.is_output or graph.successors[edge.source] != (index,):
                continue
            keeps_places = edge.mapping is MappingType.ONE_TO_ONE and operator.mapping is MappingType.ONE_TO_ONE
            joined = part | part_of[edge.source]
            if keeps_places and block_mapping(graph, joined) is not None:
                part = joined
        part_of.update(dict.fromkeys(part, part))
    return list({id(part): part for part in part_of.values()}.values())


def _read_by_others(calls: Sequence[Any], uses: Counter[Any]) -> set[Any]:
    """Find the results of some calls that something else reads."""
    inside = Counter(variable for binding in calls for variable in variables_of(binding))
    return {
        call.var for call in calls if uses[call.var] > inside[call.var] or not isinstance(call.var, relax.DataflowVar)
    }


def _signature(calls: Sequence[Any], read_by_others: Collection[Any]) -> tuple[Any, ...]:
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


def allocated_bytes(func: Any) -> int:
    """Count the bytes that a kernel allocates, after each tensor has shrunk to what is in use at once."""
    total = [0]

    def note(block: Any) -> None:
        for buffer in block.alloc_buffers:
            if all(isinstance(extent, tirx.IntImm) for extent in buffer.ty.shape):
                bits = tvm.DataType(str(buffer.ty.dtype)).bits
                total[0] += prod(int(extent) for extent in buffer.ty.shape) * bits // 8

    lowered = _ALLOCATE(tvm.IRModule({"main": func}))["main"]
    tvm_ffi.structural_walk(lowered.body, (s_tir.SBlock, note))
    return total[0]
