"""Computes data-parallel kernels inside the convolutions and products that read them, where that takes less time.

before: ``t = relu_of_sum(x, b); y = conv(t, w)``
after:  ``y = conv_of_relu_of_sum(x, b, w)``, whose schedule computes ``t`` while it pads or packs it

It stands behind FuseOps and FuseTIR, whoever grouped the kernels, so that it sees the module that runs: layouts are
blocked, weights packed, and ends of chains fused. What is gained is asked of the machine model, and whether a kernel
can be made, of the schedule rules: one that its rule would not schedule with a prologue stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.fusion.prologue_plan import Step, plan_prologues, verify_prologues
from tvm_ext.fusion.relax.check import merged_kernel
from tvm_ext.fusion.relax.groups import variables_of
from tvm_ext.fusion.relax.module_effort import is_planned_away
from tvm_ext.graph.origins import with_origins, words_of
from tvm_ext.relax_utils import static_shape
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.prologue import (
    PrologueCost,
    Reader,
    copied_elements,
    pointwise_cost,
    prologue_seconds,
    reader_of,
)
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, ScheduleRule, apply_rules


def fuse_prologues(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass, for CPU targets.

    Parameters
    ----------
    rules : sequence of ScheduleRule
        What schedules the kernels.
    """
    known = _Known()  # a pipeline may try several ways to fuse, with the same kernels

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FusePrologues")
    def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        readers = {
            variable.name_hint: reader_of(func)
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {})
        }
        if not any(readers.values()):
            return mod
        trial = _Trial(mod, rules, tvm.target.Target.current(allow_none=False), readers, known)
        changed = False
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                fused = _fused(func, trial)
                if fused is not None:
                    trial.builder.update_func(variable, fused)
                    changed = True
        return relax.transform.DeadCodeElimination()(trial.builder.finalize()) if changed else mod

    return _fuse


@dataclass(frozen=True)
class _Merged:
    """A kernel with a prologue: its function, and how often an element of the prologue is computed."""

    func: Any
    copied: int


@dataclass(frozen=True)
class _Known:
    """What was found out about kernels, by their structure: what they cost as prologues, and pairs of them merged."""

    costs: dict[int, PrologueCost | None] = field(default_factory=dict)
    merged: dict[Any, _Merged | None] = field(default_factory=dict)


class _Trial:
    """Merges and schedules kernels of a module, each pair once."""

    def __init__(
        self,
        mod: tvm.IRModule,
        rules: Sequence[ScheduleRule],
        target: tvm.target.Target,
        readers: Mapping[str, Reader | None],
        known: _Known,
    ) -> None:
        self.builder = relax.BlockBuilder(mod)
        self._mod, self._rules, self._target = mod, rules, target
        self._machine = machine_of(target)
        self._readers, self._known = readers, known
        self._hashes: dict[str, int] = {}
        self._added: dict[Any, Any] = {}

    def gain(self, first: Any, second: Any) -> tuple[float, float] | None:
        """Seconds that ``second`` takes more with ``first`` inside, and seconds of ``first``; two bindings."""
        reader = self._readers.get(_name(second))
        if reader is None:
            return None
        places = [at for at, field in enumerate(second.value.args[1].fields) if field.same_as(first.var)]
        cost = self._cost(first) if len(places) == 1 and places[0] in reader.inputs else None
        if cost is None or prologue_seconds(cost, cost.elements, reader.copies, self._machine).gain <= 0:
            return None
        merged = self._merged(first, second)
        if merged is None:
            return None
        seconds = prologue_seconds(cost, merged.copied, reader.copies, self._machine)
        return seconds.inside, seconds.alone

    def added(self, first: Any, second: Any) -> Any:
        """Put the merged kernel of two bindings into the module."""
        key = _name(first), _name(second), _places(first, second)
        if key not in self._added:
            merged = self._merged(first, second)
            assert merged is not None
            name = f"{_name(second)}_of_{_name(first)}"[:60]
            self._added[key] = self.builder.add_func(merged.func.without_attr("global_symbol"), name)
        return self._added[key]

    def _merged(self, first: Any, second: Any) -> _Merged | None:
        """Merge two kernels, if the rule of the second one schedules both."""
        key = self._hash(first), self._hash(second), _places(first, second)
        if key not in self._known.merged:
            self._known.merged[key] = self._merge(first, second)
        return self._known.merged[key]

    def _merge(self, first: Any, second: Any) -> _Merged | None:
        func = merged_kernel(self._mod, [first, second], {second.var})
        reader = self._readers[_name(second)]
        if func is None or reader is None:
            return None
        # Rules after the one that has to take it are not asked: they inline at length what was not made for them.
        last = next(number for number, rule in enumerate(self._rules) if rule.name == reader.rule)
        scheduled = apply_rules(func, self._target, self._rules[: last + 1])
        attributes = scheduled.attrs or {}
        if FAULT_ATTRIBUTE in attributes or attributes.get(RULE_ATTRIBUTE) != reader.rule:
            return None
        copied = copied_elements(scheduled, len(set(first.value.args[1].fields)))
        return _Merged(func, copied) if copied else None

    def _cost(self, binding: Any) -> PrologueCost | None:
        key = self._hash(binding)
        if key not in self._known.costs:
            func = self._mod[binding.value.args[0]]
            self._known.costs[key] = None if is_planned_away(func) else pointwise_cost(func, self._machine)
        return self._known.costs[key]

    def _hash(self, binding: Any) -> int:
        name = _name(binding)
        if name not in self._hashes:
            func = self._mod[binding.value.args[0]].without_attr("global_symbol")
            self._hashes[name] = int(tvm_ffi.structural_hash(func))
        return self._hashes[name]


def _name(binding: Any) -> str:
    return str(binding.value.args[0].name_hint)


def _places(first: Any, second: Any) -> tuple[Any, ...]:
    """Describe which operands of two bindings are the same."""
    outside: dict[Any, int] = {}
    return tuple(
        tuple(-1 if field.same_as(first.var) else outside.setdefault(field, len(outside)) for field in fields)
        for fields in (first.value.args[1].fields, second.value.args[1].fields)
    )


def _fused(func: Any, trial: _Trial) -> Any:
    """Give a function with prologues inside; None where there are none."""
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    calls = [binding for binding in bindings if is_step(binding)]
    place = {binding.var: number for number, binding in enumerate(calls)}
    uses = Counter(variable for binding in bindings for variable in set(variables_of(binding)))
    uses.update(relax.analysis.free_vars(func.body.body))
    reads = [
        tuple(dict.fromkeys(place[field] for field in binding.value.args[1].fields if field in place))
        for binding in calls
    ]
    readers = Counter(source for sources in reads for source in sources)
    steps = [
        Step(
            _name(binding),
            reads[number],
            not isinstance(binding.var, relax.DataflowVar) or uses[binding.var] > readers[number],
        )
        for number, binding in enumerate(calls)
    ]
    plan = plan_prologues(steps, lambda step, reader: trial.gain(calls[step], calls[reader]))
    if not plan:
        return None
    verify_prologues(plan, steps)
    changed = {
        calls[reader].var: (calls[prologue.step], calls[reader]) for prologue in plan for reader in prologue.readers
    }
    blocks = []
    for block in func.body.blocks:
        new = [_with_prologue(*changed[item.var], trial) if item.var in changed else item for item in block.bindings]
        blocks.append(relax.DataflowBlock(new) if isinstance(block, relax.DataflowBlock) else block)
    body = relax.SeqExpr(blocks, func.body.body)
    fused = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    return with_origins(fused, {var: words_of(first.var) + words_of(var) for var, (first, _) in changed.items()})


def _with_prologue(first: Any, second: Any, trial: _Trial) -> Any:
    """Bind the result of the second kernel to a call that computes the first one inside."""
    operands: dict[Any, None] = {}
    for binding in (first, second):
        operands.update((field, None) for field in binding.value.args[1].fields if not field.same_as(first.var))
    call = second.value
    merged = relax.Call(call.op, [trial.added(first, second), relax.Tuple(list(operands))], call.attrs, call.ty_args)
    return relax.VarBinding(second.var, trial.builder.normalize(merged))


def is_step(binding: Any) -> bool:
    """Whether a binding calls a kernel of static sizes and one result."""
    call = getattr(binding, "value", None)
    return (
        isinstance(call, relax.Call)
        and getattr(call.op, "name", "") == "relax.call_tir"
        and len(call.args) == 2
        and isinstance(call.args[1], relax.Tuple)
        and static_shape(binding.var) is not None
    )
