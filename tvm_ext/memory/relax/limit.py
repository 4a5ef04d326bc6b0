"""Refuse a module that takes more memory than there is; and what is known of its memory, as plain data."""

from __future__ import annotations

import json
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


def memory_limit(limit: int, in_patches: bool = True) -> tvm.transform.Pass:
    """Make the pass that refuses modules whose intermediate tensors and results take more than ``limit`` bytes.

    Parameters
    ----------
    limit : int
        Bytes.
    in_patches : bool
        Whether stages were allowed to run in patches and groups; the message says so where they were not.

    Raises
    ------
    MemoryLimitError
        When the pass runs on such a module; the message names the memory it takes, and the least it could.
    """
    allowed = "" if in_patches else "; patches='auto' may need less than 'off', for more arithmetic"

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
                f"results){_why(mod)}{allowed}"
            )
        return mod

    return _memory_limit


def _why(mod: tvm.IRModule) -> str:
    decisions = [decision for decision in memory_decisions(mod).values() if "peak" in decision]
    if not decisions:
        return "; memory='optimal' may need less"
    work = prod(note["arithmetic"] for decision in decisions for note in decision.get("patches", ()))
    if work > 1:
        return (
            f"; that is with stages in patches, for {work:.2f} times the arithmetic; make the input smaller, or raise "
            "the limit"
        )
    if all(decision["optimal"] for decision in decisions):
        return "; no order of these kernels needs less, so make the input smaller, or raise the limit"
    bound = max(decision["lower_bound"] for decision in decisions)
    return (
        f"; no order needs less than {bytes_text(bound)} for intermediate tensors; make the input smaller, or raise "
        "the limit"
    )
