"""Warns of kernels that no schedule rule took and that have much to do: one thread computes them element by element.

Kernels with open extents are named with these: no tiles can be chosen for what is only known at run time.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import warn
from tvm_ext.graph.origins import nodes_of_kernels, with_nodes
from tvm_ext.graph.tir_flops import SizeReader, parameter_shapes
from tvm_ext.schedules.cpu.open_extents import OpenExtents
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE

SMALLEST_WORK = 1 << 17
"""Elements computed one by one from which on a kernel is worth a word: about a tenth of a millisecond."""

OPEN_EXTENT = 64
"""What an open extent counts as."""

_LISTED = 8
_CALLS = tuple(tvm.ir.Op.get(f"relax.call_tir{kind}") for kind in ("", "_inplace", "_with_grad"))
_KINDS = (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED)


def warn_of_unscheduled(mod: tvm.IRModule) -> None:
    """Warn of kernels that no rule took, of kernels with open extents among them, and of rules that failed, once each.

    Kernels that their author has shared out among threads or vectors are not looked at, and neither are those that are
    handed to a function of TVM's runtime, such as a cache of keys and values: these are its own.

    Parameters
    ----------
    mod : tvm.IRModule
        After the schedule rules; kernels are called by ``call_tir``.
    """
    slow, opened, faults = [], [], []
    called = _called_kernels(mod)
    for variable, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or variable not in called:
            continue
        attributes = func.attrs or {}
        if FAULT_ATTRIBUTE in attributes:
            faults.append(f"{variable.name_hint} ({attributes[FAULT_ATTRIBUTE]})")
        if attributes.get(RULE_ATTRIBUTE) == OpenExtents.name:
            if (work := _work(func.body, 1)) >= SMALLEST_WORK:
                opened.append((work, variable.name_hint, open_extents(func)))
            continue
        if RULE_ATTRIBUTE in attributes or "tirx.is_scheduled" in attributes:
            continue
        if (work := serial_work(func)) >= SMALLEST_WORK:
            if extents := open_extents(func):
                opened.append((work, variable.name_hint, extents))
            else:
                slow.append((work, variable.name_hint))
    slow.sort(key=lambda row: (-row[0], row[1]))
    opened.sort(key=lambda row: (-row[0], row[1]))
    nodes = nodes_of_kernels(mod) if slow or opened else {}
    if opened:
        names = [f"{with_nodes(name, nodes.get(name, ()))} with {', '.join(found)} open" for _, name, found in opened]
        more = f" and {len(opened) - _LISTED} more" if len(opened) > _LISTED else ""
        warn(
            f"one thread computes {'this kernel' if len(opened) == 1 else f'these {len(opened)} kernels'}, without "
            f"tiles, as extents are only known at run time: {'; '.join(names[:_LISTED])}{more}; compile the model "
            "for known shapes; only a batch of independent images may stay open at no cost (docs/compilation.md)"
        )
    if slow:
        listed = [with_nodes(name, nodes.get(name, ())) for _, name in slow[:_LISTED]]
        more = f" and {len(slow) - _LISTED} more" if len(slow) > _LISTED else ""
        warn(
            f"no schedule rule takes {'this kernel' if len(slow) == 1 else f'these {len(slow)} kernels'}, which one "
            f"thread computes element by element: {'; '.join(listed)}{more}; if `tvm-ext bench` shows that this takes "
            "long, express it by other operators, or add a rule for it (docs/adding_a_schedule_rule.md)"
        )
    if faults:
        listed = sorted(faults)[:_LISTED]
        warn(
            f"a schedule rule failed, and another one, or none, took the kernel: {'; '.join(listed)}; the results are "
            "right, please report it"
        )


def _called_kernels(mod: tvm.IRModule) -> set[tvm.ir.GlobalVar]:
    """List what ``call_tir`` calls."""
    found: set[tvm.ir.GlobalVar] = set()

    def call(node: Any) -> None:
        if node.op in _CALLS:
            found.add(node.args[0])

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, [(tvm.ir.Call, call)])
    return found


def open_extents(func: tirx.PrimFunc) -> list[str]:
    """Spell the extents of a kernel's tensors that are only known at run time."""
    sizes = SizeReader()
    shapes = parameter_shapes(func, sizes)
    return sorted({str(size) for shape in shapes for size in shape if not isinstance(size, int)})


def serial_work(func: tirx.PrimFunc) -> int:
    """Count the statements that a kernel executes if its loops are all serial, else 0; see :data:`OPEN_EXTENT`."""
    parallel = [False]

    def loop(node: Any) -> None:
        parallel[0] = (
            parallel[0] or node.kind in _KINDS or any(str(key).startswith("tvm_ext") for key in node.annotations)
        )

    tvm_ffi.structural_walk(func.body, [(tirx.For, loop)])
    return 0 if parallel[0] else _work(func.body, 1)


def _work(statement: Any, times: int) -> int:
    """Count the statements that are executed outside of loops that are shared out among threads."""
    if isinstance(statement, tirx.For):
        if statement.kind == tirx.ForKind.PARALLEL:
            return 0
        extent = statement.extent
        return _work(statement.body, times * (int(extent) if isinstance(extent, tirx.IntImm) else OPEN_EXTENT))
    if isinstance(statement, tirx.SeqStmt):
        return sum(_work(part, times) for part in statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        other = 0 if statement.else_case is None else _work(statement.else_case, times)
        return max(_work(statement.then_case, times), other)
    if isinstance(statement, tvm.s_tir.SBlockRealize):
        return _work(statement.block.body, times)
    if isinstance(statement, tirx.BufferStore):
        return times
    body = getattr(statement, "body", None)
    return 0 if body is None else _work(body, times)
