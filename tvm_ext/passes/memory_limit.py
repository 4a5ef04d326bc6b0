"""Refuse a module that takes more memory than there is; and what is known of its memory, as plain data."""

from __future__ import annotations

import json
import re
from typing import Any

import tvm
from tvm import relax

from tvm_ext.errors import MemoryLimitError, OptionError
from tvm_ext.graph.units import bytes_text
from tvm_ext.passes.arena import NOTE_ATTRIBUTE
from tvm_ext.passes.memory_order import PLAN_ATTRIBUTE
from tvm_ext.statistics import module_statistics

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}

LARGEST_SIZE = 1 << 63
"""Bytes that TVM's integers cannot count."""


def parse_bytes(text: str | int, name: str = "memory limit") -> int:
    """Read a size: a number of bytes, or one with a unit.

    ``KB`` is 1000 bytes and ``KiB`` 1024; capital and small letters are the same. ``name`` is what a message calls it.

    Raises
    ------
    OptionError
        If it is no size.

    Examples
    --------
    >>> parse_bytes("256KB"), parse_bytes("1.5 MiB"), parse_bytes(4096)
    (256000, 1572864, 4096)
    """
    # An integer is compared first: Python does not spell one of thousands of digits.
    if isinstance(text, int) and abs(text) >= LARGEST_SIZE:
        raise OptionError(f"{name}: no machine has 8 EiB or more, expected a size such as 262144, 256KB or 1.5MiB")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match is not None else 0.0
    if size >= LARGEST_SIZE:  # infinite, even, where there are hundreds of digits
        raise OptionError(f"{name}: no machine has 8 EiB or more, expected a size such as 262144, 256KB or 1.5MiB")
    if size < 1:
        raise OptionError(f"{name} {text!r} is no size, expected one such as 262144, 256KB or 1.5MiB")
    return int(size)


def memory_decisions(mod: tvm.IRModule) -> dict[str, dict[str, Any]]:
    """Collect what was planned, by function: figures of the :class:`~tvm_ext.passes.memory_order.MemoryPlan`, notes."""
    found: dict[str, dict[str, Any]] = {}
    for global_var, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs:
            decision: dict[str, Any] = {}
            if PLAN_ATTRIBUTE in func.attrs:
                decision |= json.loads(str(func.attrs[PLAN_ATTRIBUTE]))
            if NOTE_ATTRIBUTE in func.attrs:
                decision["note"] = str(func.attrs[NOTE_ATTRIBUTE])
            if decision:
                found[global_var.name_hint] = decision
    return found


def memory_limit(limit: int) -> tvm.transform.Pass:
    """Make the pass that refuses modules whose intermediate tensors and results take more than ``limit`` bytes.

    Raises
    ------
    MemoryLimitError
        When the pass runs on such a module; the message names the memory it takes, and the least it could.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MemoryLimit")
    def _memory_limit(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        taken = module_statistics(mod)
        needed = taken.planned_bytes + taken.output_bytes
        if needed > limit:
            raise MemoryLimitError(
                f"memory limit {bytes_text(limit)}: the best reachable peak is {bytes_text(needed)} "
                f"({bytes_text(taken.planned_bytes)} for intermediate tensors, {bytes_text(taken.output_bytes)} for "
                f"results){_why(mod)}"
            )
        if taken.dynamic_allocations:
            raise MemoryLimitError(
                f"memory limit {bytes_text(limit)}: {taken.dynamic_allocations} tensors have sizes that are only known "
                "at run time; give every input a shape (--input-shape)"
            )
        return mod

    return _memory_limit


def _why(mod: tvm.IRModule) -> str:
    decisions = [decision for decision in memory_decisions(mod).values() if "peak" in decision]
    if not decisions:
        return "; memory='optimal' may need less"
    if all(decision["optimal"] for decision in decisions):
        return "; no order of these kernels needs less, so make the input smaller, or raise the limit"
    bound = max(decision["lower_bound"] for decision in decisions)
    return (
        f"; no order needs less than {bytes_text(bound)} for intermediate tensors; make the input smaller, or raise "
        "the limit"
    )
