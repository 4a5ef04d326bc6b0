"""Runs a kernel of open extents in the calling thread where there is too little to do for several.

before: ``for task in parallel(tasks(n)): ...``
after:  ``if work(n) < enough: for task in serial(tasks(n)): ...`` and ``else: for task in parallel(tasks(n)): ...``

How much there is to do is only known at run time. It is told, as a number of operations of vectors, by the extents of
the blocks that a kernel consisted of before it was scheduled, and written around its parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.tirx import IntImm

from tvm_ext.passes.kernel_extents import extents_of_calls
from tvm_ext.relax_utils import LOWER, STEP_OPERATIONS, UPPER, substitute
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE, operations_worth_a_fork
from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.kernel.operations import operations_of
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, new_schedule

UNDECIDED = 4
"""A kernel whose smallest work is less than one part in so many of what is worth a fork is written in both ways.

Code that is there twice is compiled twice.
"""


def with_work(schedule_pass: tvm.transform.Pass, times: int = 1) -> tvm.transform.Pass:
    """Make a pass that schedules kernels, and notes around open parallel loops how much there is to do.

    Nothing is noted where a fork pays for all extents that there may be, or nearly so.

    Parameters
    ----------
    times : int
        Kernels of known extents that a rule divides among threads run on one if their work is less than so many times
        what is worth a fork; 1 leaves that to the rules.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WithWork")
    def _with_work(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = machine_of()
        scheduled = schedule_pass(mod)
        if machine.cores == 1:
            return scheduled
        enough = operations_worth_a_fork(machine)
        updated = tvm.IRModule(scheduled.functions, attrs=scheduled.attrs, global_infos=scheduled.global_infos)
        smallest, largest = _extents(mod, LOWER), _extents(mod, UPPER)
        for global_var, func in scheduled.functions.items():
            before = mod.functions.get(global_var)
            if times > 1 and _is_small(func, before, machine, times * enough):
                updated.update_func(global_var, _on_one_thread(func))
                continue
            work = _work(func, before, machine)
            if work is None:
                continue
            if max(_numbers(work, largest.get(global_var)), default=enough) < enough:
                updated.update_func(global_var, _changed(func, lambda loop: _with_kind(loop, tirx.ForKind.SERIAL)))
            elif min(_numbers(work, smallest.get(global_var, [{}]), least=1), default=0) * UNDECIDED < enough:
                updated.update_func(global_var, _changed(func, partial(_noted, work=work)))
        return updated

    return _with_work


def _work(func: Any, before: Any, machine: Machine) -> Any:
    """Estimate the work of a kernel that may not be worth its fork; None for all others."""
    if not isinstance(func, tirx.PrimFunc):
        return None
    if STEP_OPERATIONS in (func.attrs or {}):
        steps, sequences, *_ = func.params[0].ty.shape
        return _product([steps, sequences]) * tirx.const(int(func.attrs[STEP_OPERATIONS]), "int64")
    if not _took(func, before) or not _has_open_loop(func):
        return None
    work = operations(before, machine)
    return work if _is_known(func, work) else None


def _is_small(func: Any, before: Any, machine: Machine, enough: int) -> bool:
    """Whether the work of a kernel that a rule took is known and less than enough."""
    if not _took(func, before):
        return False
    work = operations(before, machine)
    return isinstance(work, IntImm) and int(work) < enough


def _on_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the parallel loops of a kernel serial."""

    def loop(node: Any, mutator: Any) -> Any:
        found = mutator.default_mutate(node)
        return _with_kind(found, tirx.ForKind.SERIAL) if node.kind == tirx.ForKind.PARALLEL else found

    return tvm_ffi.structural_mutate(func, [(tirx.For, loop)])


def _took(func: Any, before: Any) -> bool:
    """Whether a schedule rule took a kernel, and was the first to do so."""
    return (
        RULE_ATTRIBUTE in (func.attrs or {})
        and isinstance(before, tirx.PrimFunc)
        and RULE_ATTRIBUTE not in (before.attrs or {})
    )


def _is_known(func: tirx.PrimFunc, work: Any) -> bool:
    """Whether an expression is made of what a kernel is given, and of no loop's variable."""
    shapes = [extent for tensor in filter(tirx.is_buffer_var, func.params) for extent in tensor.ty.shape]
    return _variables([work]).keys() <= _variables([*shapes, *func.params]).keys()


def _extents(mod: tvm.IRModule, attribute: str) -> dict[Any, list[dict[Any, Any]]]:
    """Give the smallest or largest extents of the kernels, by variable or name, for each call of a kernel."""

    def limits(function: relax.Function) -> dict[str, int]:
        given = (function.attrs or {}).get(attribute) or {}
        return {str(name): max(int(bound), 1) for name, bound in given.items()}

    return extents_of_calls(mod, limits)


def as_run_with(func: tirx.PrimFunc, known: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """Write a scheduled kernel of open extents for those of one run only.

    Parameters
    ----------
    func : PrimFunc
    known : PrimFunc
        The kernel with these extents, before it was scheduled.
    """
    work = operations(known, machine)
    if machine.cores == 1 or not isinstance(work, IntImm) or int(work) >= operations_worth_a_fork(machine):
        return func
    return _changed(func, lambda loop: _with_kind(loop, tirx.ForKind.SERIAL))


def _numbers(work: Any, calls: Iterable[dict[Any, Any]] | None, least: int | None = None) -> list[int]:
    """Give the work of each call; nothing where that of one is not known and ``least`` is not given in its place.

    An extent of 0 is no smallest one: there is no work, and code for that extent alone would be divided by it.
    """
    numbers = []
    for extents in calls or ():
        known = {var: extents.get(var, extents.get(var.name, var)) for var in _variables([work])}
        try:
            value = substitute(work, known)
            if least is not None:
                value = substitute(value, {var: tirx.const(least, var.ty.dtype) for var in _variables([value])})
            value = tvm.sym.Analyzer().simplify(value)
        except tvm.error.InternalError:  # extents that cannot be: another one is divided by zero then
            return []
        if not isinstance(value, tirx.IntImm):
            return []
        numbers.append(int(value))
    return numbers


def operations(func: tirx.PrimFunc, machine: Machine) -> Any:
    """Estimate the operations of vectors in a kernel as it is before it is scheduled: an expression of its extents.

    Functions, and bytes from memory, count as the operations that a core does meanwhile.
    """
    schedule = new_schedule(func)
    total = tirx.const(0, "int64")
    for block in top_blocks(schedule):
        functions, plain = operations_of(schedule, block)
        # Sums of products are computed at the rate of products.
        each = machine.operation_seconds if is_spatial(schedule, block) else 1 / machine.flops
        seconds = functions * machine.function_seconds + plain * each
        total = total + _product(axis.dom.extent for axis in schedule.get(block).iter_vars) * _whole(seconds, machine)
    for tensor in filter(tirx.is_buffer_var, func.params):
        nbytes = tvm.DataType(tensor.ty.dtype).bits / 8
        total = total + _product(tensor.ty.shape) * _whole(nbytes / machine.stream_bandwidth, machine)
    return tvm.sym.Analyzer().simplify(total)


def _whole(seconds: float, machine: Machine) -> Any:
    return tirx.const(max(1, round(seconds * machine.flops)), "int64")


def _product(extents: Iterable[Any]) -> Any:
    return prod((tirx.Cast("int64", extent) for extent in extents), start=tirx.const(1, "int64"))


def _has_open_loop(func: tirx.PrimFunc) -> bool:
    def loop(node: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if _is_open(node) else None

    return tvm_ffi.structural_walk(func.body, [(tirx.For, loop)]) is not None


def _is_open(node: Any) -> bool:
    return node.kind == tirx.ForKind.PARALLEL and not isinstance(node.extent, IntImm)


def _noted(loop: Any, work: Any) -> Any:
    return tirx.AttrStmt(tirx.const(0, "int32"), WORK_ATTRIBUTE, work, loop)


def _with_kind(loop: Any, kind: Any) -> Any:
    """Give a loop another kind."""
    return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)


def _changed(func: tirx.PrimFunc, change: Callable[[Any], Any]) -> tirx.PrimFunc:
    """Change the parallel loops of a kernel whose work is not told by their extents."""
    any_extent = STEP_OPERATIONS in (func.attrs or {})

    def loop(node: Any, mutator: Any) -> Any:
        is_meant = node.kind == tirx.ForKind.PARALLEL if any_extent else _is_open(node)
        return change(node) if is_meant else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(func, [(tirx.For, loop)])


def serial_when_small() -> tvm.transform.Pass:
    """Make the pass that runs parallel loops in one thread where the noted work is not worth a fork."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.SerialWhenSmall")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        target = tvm.target.Target.current(allow_none=True)
        if target is None or not _parallel_loops(func):
            return func
        machine = machine_of(target)
        if machine.cores == 1:
            return _replaced(func, lambda node: node.body)
        # A loop of one iteration is its body by now.
        func = _replaced(func, lambda node: node if isinstance(node.body, tirx.For) else node.body)
        serial = iter(_serial_loops(func))
        enough = tirx.const(operations_worth_a_fork(machine), "int64")
        return _replaced(func, lambda node: tirx.IfThenElse(node.value < enough, next(serial), node.body))

    return _rewrite


def _parallel_loops(func: tirx.PrimFunc) -> list[Any]:
    """List the loops around which it is noted how much there is to do."""
    found: list[Any] = []

    def attribute(node: Any) -> None:
        if node.attr_key == WORK_ATTRIBUTE:
            found.append(node.body)

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, attribute)])
    return found


def _replaced(func: tirx.PrimFunc, change: Callable[[Any], Any]) -> tirx.PrimFunc:
    def attribute(node: Any, mutator: Any) -> Any:
        return change(node) if node.attr_key == WORK_ATTRIBUTE else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(func, [(tirx.AttrStmt, attribute)])


def _serial_loops(func: tirx.PrimFunc) -> list[Any]:
    """Make a serial copy of each of these loops, in which everything that it defines is defined anew."""
    extents = [extent for tensor in filter(tirx.is_buffer_var, func.params) for extent in tensor.ty.shape]
    outside = _variables([*extents, _replaced(func, lambda node: tirx.Evaluate(0))])
    copy = s_tir.renew_defs(func)
    pairs = zip(_variables([func]), _variables([copy]), strict=True)
    originals = {new: old for old, new in pairs if old in outside}

    def original(var: Any, _mutator: Any) -> Any:
        if var not in originals and tirx.is_buffer_var(var):  # its type has extents
            originals[var] = tvm.ir.Var(var.name, tvm_ffi.structural_mutate(var.ty, [(tvm.ir.Var, original)]))
        return originals.get(var, var)

    loops = []
    for loop in _parallel_loops(copy):
        loops.append(tvm_ffi.structural_mutate(_with_kind(loop, tirx.ForKind.SERIAL), [(tvm.ir.Var, original)]))
    return loops


def _variables(nodes: Iterable[Any]) -> dict[Any, None]:
    """List the variables of functions and expressions, each once, in the order in which they are met."""
    found: dict[Any, None] = {}
    for node in nodes:
        tvm_ffi.structural_walk(node, [(tvm.ir.Var, lambda var: found.setdefault(var))])
    return found
