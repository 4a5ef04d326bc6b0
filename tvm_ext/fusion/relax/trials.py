"""Schedules kernels on trial, equal ones once: fusion asks about the same kernels again and again.

A pipeline fuses a module several times, with concatenations apart and without; blocks repeat in a network; and each
piece of a block that is cut up is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, ScheduleRule, apply_rules

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
    kernel: Any


class TrialSchedules:
    """What schedule rules make of kernels.

    Parameters
    ----------
    rules : sequence of ScheduleRule
    """

    def __init__(self, rules: Sequence[ScheduleRule]) -> None:
        self._rules = rules
        self._known: dict[tuple[str, int], Scheduled] = {}

    def scheduled(self, kernel: Any, target: tvm.target.Target) -> Scheduled:
        """Schedule a kernel, whose name does not count."""
        if kernel.attrs and "global_symbol" in kernel.attrs:
            kernel = kernel.without_attr("global_symbol")
        key = str(target), int(tvm_ffi.structural_hash(kernel))
        if key not in self._known:
            func = apply_rules(kernel, target, self._rules)
            attributes = func.attrs or {}
            failed = FAULT_ATTRIBUTE in attributes
            self._known[key] = Scheduled(str(attributes.get(RULE_ATTRIBUTE, "")), failed, allocated_bytes(func), func)
        return self._known[key]


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
