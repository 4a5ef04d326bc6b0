"""Refuse a module that takes more memory than there is; and what is known of its memory, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.errors import MemoryLimitError
from tvm_ext.graph.units import bytes_text
from tvm_ext.memory.relax.arena import NOTE_ATTRIBUTE
from tvm_ext.memory.relax.feature_groups import GROUPS_ATTRIBUTE
from tvm_ext.memory.relax.order import PLAN_ATTRIBUTE
from tvm_ext.memory.relax.patches import PATCHES_ATTRIBUTE
from tvm_ext.memory.relax.sliced_convolutions import SLICES_ATTRIBUTE
from tvm_ext.statistics import module_statistics


def memory_decisions(mod: tvm.IRModule) -> dict[str, dict[str, Any]]:
    """Collect what was planned, by function: figures of the :class:`~tvm_ext.memory.relax.order.MemoryPlan`, notes."""
    found: dict[str, dict[str, Any]] = {}
    for global_var, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs:
            decision: dict[str, Any] = {}
            if PLAN_ATTRIBUTE in func.attrs:
                decision |= json.loads(str(func.attrs[PLAN_ATTRIBUTE]))
            if PATCHES_ATTRIBUTE in func.attrs:
                decision["patches"] = json.loads(str(func.attrs[PATCHES_ATTRIBUTE]))
            if GROUPS_ATTRIBUTE in func.attrs:
                decision["groups"] = json.loads(str(func.attrs[GROUPS_ATTRIBUTE]))
            if SLICES_ATTRIBUTE in func.attrs:
                decision["sliced_convolutions"] = json.loads(str(func.attrs[SLICES_ATTRIBUTE]))
            if NOTE_ATTRIBUTE in func.attrs:
                decision["note"] = str(func.attrs[NOTE_ATTRIBUTE])
            if decision:
                found[global_var.name_hint] = decision
    return found


def memory_limit(limit: int, in_patches: bool = True, is_optimal: bool = True) -> tvm.transform.Pass:
    """Make the pass that refuses modules whose intermediate tensors and results take more than ``limit`` bytes.

    Parameters
    ----------
    limit : int
        Bytes.
    in_patches : bool
        Whether stages were allowed to run in patches and groups; the message says so where they were not.
    is_optimal : bool
        Whether the order with the least peak was looked for; the message says so where it was not.

    Raises
    ------
    MemoryLimitError
        When the pass runs on such a module; the message names the memory it takes, and the least it could.
    """
    allowed = "" if is_optimal else "; memory='optimal' may need less"
    allowed += "" if in_patches else "; patches='auto' may need less than 'off', for more arithmetic"

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MemoryLimit")
    def _memory_limit(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        taken = module_statistics(mod)
        needed = taken.planned_bytes + taken.output_bytes
        if taken.dynamic_allocations:
            raise MemoryLimitError(
                f"memory limit {bytes_text(limit)}: {taken.dynamic_allocations} tensors have sizes that are only known "
                "at run time; give every input a shape (--input-shape)"
            )
        if needed > limit:
            raise MemoryLimitError(
                f"memory limit {bytes_text(limit)}: the best reachable peak is {bytes_text(needed)} "
                f"({bytes_text(taken.planned_bytes)} for intermediate tensors, {bytes_text(taken.output_bytes)} for "
                f"results){_why(mod, needed)}{allowed}"
            )
        return mod

    return _memory_limit


def _why(mod: tvm.IRModule, needed: int) -> str:
    decisions = [decision for decision in memory_decisions(mod).values() if "peak" in decision]
    remedy = f"make the input smaller, or raise the limit to {needed}B"
    if not decisions:
        return f"; {remedy}"
    costs = _costs(decisions)
    if costs:
        return f"; that is with {' and '.join(costs)}; {remedy}"
    if all(decision["optimal"] for decision in decisions):
        return f"; no order of these kernels needs less, so {remedy}"
    bound = max(decision["lower_bound"] for decision in decisions)
    return f"; no order needs less than {bytes_text(bound)} for intermediate tensors; {remedy}"


def _costs(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was done for less memory, and what it takes."""
    costs = []
    patches = [note for decision in decisions for note in decision.get("patches", ())]
    if patches:
        costs.append(f"stages in patches, for {prod(note['arithmetic'] for note in patches):.2f} times the arithmetic")
    groups = [decision["groups"] for decision in decisions if "groups" in decision]
    if groups:
        calls = sum(note["more_calls"] for note in groups)
        most = max(count for note in groups for count in note["groups"])
        costs.append(f"hidden features or heads in up to {most} groups, for {calls} more calls of products")
    return costs
