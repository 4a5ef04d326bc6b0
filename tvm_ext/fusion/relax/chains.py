"""Merges chains of kernels into one kernel for a schedule rule: each reads what the one before makes, and nobody else.

It stands behind FuseOps and FuseTIR, so that what follows an operator element by element is in its kernel. Whether the
merged kernel can be made is asked of the schedule rule: what another rule takes stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.fusion.relax.check import merged_kernel, signature
from tvm_ext.fusion.relax.groups import variables_of
from tvm_ext.fusion.relax.prologues import is_step
from tvm_ext.graph.origins import with_origins, words_of
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, ScheduleRule, apply_rules

LONGEST_NAME = 60

Test = Callable[[Any], bool]
"""Says of a kernel whether it is what a chain begins or goes on with."""


def merge_chains(
    name: str, takers: Collection[str], rules: Sequence[ScheduleRule], begins: Test, goes_on: Test, longest: int
) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    name : str
        Of the pass.
    takers : collection of str
        The names of the rules, one of which has to take a merged kernel.
    rules : sequence of ScheduleRule
        What schedules the kernels.
    begins, goes_on : callable
        Which kernels a chain begins with, and which may follow.
    longest : int
        Kernels of a chain.
    """

    @tvm.transform.module_pass(opt_level=0, name=name)
    def _merge(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = {
            variable.name_hint: func
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {})
        }
        first = {kernel for kernel, func in kernels.items() if begins(func)}
        if not first:
            return mod
        later = {kernel for kernel, func in kernels.items() if kernel not in first and goes_on(func)}
        merger, changed = _Merger(mod, takers, rules), False
        for variable, func in mod.functions_items():
            if later and isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                merged = _merged(func, merger, first, later, longest)
                if merged is not None:
                    merger.builder.update_func(variable, merged)
                    changed = True
        return relax.transform.DeadCodeElimination()(merger.builder.finalize()) if changed else mod

    return _merge


class _Merger:
    """Makes kernels of chains, each once."""

    def __init__(self, mod: tvm.IRModule, takers: Collection[str], rules: Sequence[ScheduleRule]) -> None:
        self.builder = relax.BlockBuilder(mod)
        self._mod, self._takers, self._rules = mod, takers, rules
        self._known: dict[Any, Any] = {}

    def kernel(self, chain: Sequence[Any]) -> Any:
        """Give the kernel of a chain of bindings; None where no such rule takes it."""
        key = signature(chain, {chain[-1].var})
        if key not in self._known:
            func = self._make(chain)
            name = "_".join(kernel_name(binding) for binding in chain)[:LONGEST_NAME]
            self._known[key] = None if func is None else self.builder.add_func(func, name)
        return self._known[key]

    def _make(self, chain: Sequence[Any]) -> Any:
        merged = merged_kernel(self._mod, chain, {chain[-1].var})
        if merged is None:
            return None
        if merged.attrs and "global_symbol" in merged.attrs:
            merged = merged.without_attr("global_symbol")
        attributes = apply_rules(merged, tvm.target.Target.current(allow_none=False), self._rules).attrs or {}
        is_taken = FAULT_ATTRIBUTE not in attributes and attributes.get(RULE_ATTRIBUTE) in self._takers
        return merged if is_taken else None


def _merged(func: Any, merger: _Merger, first: set[str], later: set[str], longest: int) -> Any:
    """Give a function whose chains are one kernel each; None where there are none."""
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    calls = [binding for binding in bindings if is_step(binding)]
    uses = Counter(variable for binding in bindings for variable in variables_of(binding))
    uses.update(relax.analysis.free_vars(func.body.body))
    readers = {variable: binding for binding in calls for variable in variables_of(binding)}
    found: dict[Any, tuple[list[Any], Any]] = {}
    taken: set[Any] = set()  # a sum of two averages follows both, and is in one chain
    for binding in calls:
        chain = [binding]
        while kernel_name(binding) in first and len(chain) < longest:
            made = chain[-1].var
            reader = readers.get(made) if uses[made] == 1 and isinstance(made, relax.DataflowVar) else None
            if reader is None or kernel_name(reader) not in later or reader.var in taken:
                break
            chain.append(reader)
        while len(chain) > 1:
            kernel = merger.kernel(chain)
            if kernel is not None:
                found[chain[-1].var] = chain, kernel
                taken.update(item.var for item in chain)
                break
            chain.pop()
    if not found:
        return None
    gone = {binding.var for chain, _ in found.values() for binding in chain[:-1]}
    blocks = []
    for block in func.body.blocks:
        new = [
            _call(*found[binding.var], merger.builder) if binding.var in found else binding
            for binding in block.bindings
            if binding.var not in gone
        ]
        blocks.append(relax.DataflowBlock(new) if isinstance(block, relax.DataflowBlock) else relax.BindingBlock(new))
    body = relax.SeqExpr(blocks, func.body.body)
    merged = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    words = {last: tuple(word for item in chain for word in words_of(item.var)) for last, (chain, _) in found.items()}
    return with_origins(merged, words)


def _call(chain: Sequence[Any], kernel: Any, builder: Any) -> Any:
    """Bind the result of a chain to the call of its kernel."""
    inside = {binding.var for binding in chain}
    operands = dict.fromkeys(
        field for binding in chain for field in binding.value.args[1].fields if field not in inside
    )
    last = chain[-1]
    call = relax.Call(last.value.op, [kernel, relax.Tuple(list(operands))], last.value.attrs, last.value.ty_args)
    return relax.VarBinding(last.var, builder.normalize(call))


def kernel_name(binding: Any) -> str:
    """Name the kernel that a binding calls."""
    return str(binding.value.args[0].name_hint)
