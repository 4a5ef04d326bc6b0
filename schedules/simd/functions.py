"""Loops that become functions of their own in machine code.

LLVM keeps the constants of one loop in registers throughout all loops of a function, although another loop needs the
registers more: next to an ``exp``, with its ten constants, the accumulators of a matrix product go to the stack.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

FUNCTION_ATTRIBUTE = "tvm_ext.function"
"""Loop annotation: name of the function."""


def mark_function(schedule: Schedule, loop: LoopRV, name: str) -> None:
    """Ask for a loop to be a function of its own when the kernel is lowered; only one that others follow becomes it."""
    schedule.annotate(loop, FUNCTION_ATTRIBUTE, name)


def separate_marked_loops(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Put the marked loops of a kernel without blocks into scopes that TVM compiles to functions, never inlined.

    After such a scope the code generator keeps the debug location of the inner function until the next statement sets
    one, so a loop that is the last of its sequence stays where it is.
    """

    def sequence(statement: Any, mutator: Any) -> Any:
        statement = mutator.default_mutate(statement)
        *parts, last = statement.seq
        return tirx.SeqStmt([*map(_separate, parts), last])

    return tvm_ffi.structural_mutate(func, [(tirx.SeqStmt, sequence)])


def _separate(statement: Any) -> Any:
    name = statement.annotations.get(FUNCTION_ATTRIBUTE) if isinstance(statement, tirx.For) else None
    if name is None:
        return statement
    return tirx.AttrStmt(tirx.const(0), "compute_scope", tvm.ir.StringImm(str(name)), statement)
