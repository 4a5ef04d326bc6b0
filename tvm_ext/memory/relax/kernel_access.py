"""What memory planning has to know of a kernel, read off its body: where it may run in place, what it only moves.

A kernel may write its result over an operand when every element of that operand is read only to compute the element of
the result at the same place, and every element of the result is stored once. Both are proved on the scheduled kernel:
all loads of the operand stand in the one store of the result, with the indices of that store, and the block of that
store has data-parallel axes only, and runs once for each element. Nothing else is trusted, in particular not the
names of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, SBlockRealize

from tvm_ext.passes.value_checks import is_value_check

CONCATENATE_ATTRIBUTE = "tvm_ext.joins_parts"
"""Attribute of a concatenation whose operands are already where the result is: the arena drops its calls."""

SLICE_ATTRIBUTE = "tvm_ext.takes_parts"
"""Attribute of a slice whose results are where they lie in its operand: the arena drops its calls."""


@dataclass(frozen=True)
class Joined:
    """What a concatenation does.

    Attributes
    ----------
    axis : int
        Along which operands follow one another.
    starts : tuple of int
        Where on that axis each operand begins.
    """

    axis: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class KernelAccess:
    """How a kernel touches its parameters; positions count all parameters, results last.

    Attributes
    ----------
    results : tuple of int
        Parameters that the kernel writes.
    in_place : tuple of (int, int)
        An operand, and the result that may be written over it.
    parts : tuple of int
        For a concatenation whose operands lie one after the other in the result: the byte offset of each operand;
        empty for every other kernel.
    slices : tuple of int
        For a kernel of one operand whose results are stretches of it: the byte offset of each result; empty for every
        other kernel.
    joined : Joined, optional
        Of every concatenation, also where its operands lie scattered in the result.
    """

    results: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    parts: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()
    joined: Joined | None = None


@dataclass(frozen=True, eq=False)
class _Store:
    """A store, with the block around it and whether that runs once for each point of its axes."""

    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    block: Any
    runs_once: bool


def kernel_access(func: tirx.PrimFunc) -> KernelAccess:
    """Read how a kernel made of blocks touches its parameters; nothing is claimed of other kernels.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        With results as its last parameters, scheduled or not.
    """
    found = _accesses(func)
    results = tuple(sorted(found.stores))
    if found.opaque or not results or results != tuple(range(results[0], len(func.params))):
        return KernelAccess(results)
    analyzer = tvm.sym.Analyzer()
    in_place = tuple(
        (operand, result)
        for result in results
        for operand in range(results[0])
        if _runs_in_place(func, operand, result, found, analyzer)
    )
    if is_value_check(func):  # which looks like a copy, and would be left out as one
        return KernelAccess(results, in_place)
    joined = _joined(func, found.stores[results[0]], analyzer) if len(results) == 1 else None
    slices = _slices(func, found, analyzer) if results[0] == 1 else ()
    return KernelAccess(results, in_place, _parts(func, joined), slices, joined)


@dataclass(frozen=True)
class _Accesses:
    """Stores to parameters and loads from them, by position; ``opaque`` when parameters are used in any other way."""

    stores: dict[int, list[_Store]]
    loads: dict[int, list[tuple[Any, _Store | None]]]
    opaque: bool


def _accesses(func: tirx.PrimFunc) -> _Accesses:
    position = {param: index for index, param in enumerate(func.params) if tirx.is_buffer_var(param)}
    stores: dict[int, list[_Store]] = {}
    loads: dict[int, list[tuple[Any, _Store | None]]] = {}
    understood = mentions = 0

    def realized(realize: Any, loops: Sequence[Any]) -> None:
        found = realize.block
        runs_once = _runs_once(realize, loops)

        def store(statement: Any) -> None:
            nonlocal understood
            entry = _Store(statement.buffer, tuple(statement.indices), statement.value, found, runs_once)
            if statement.buffer in position:
                understood += 1
                stores.setdefault(position[statement.buffer], []).append(entry)

            def load(expression: Any) -> None:
                nonlocal understood
                if expression.source in position:
                    understood += 1
                    loads.setdefault(position[expression.source], []).append((expression, entry))

            tvm_ffi.structural_walk(statement.value, [(tvm.ir.TensorLoad, load)])

        def region(declared: Any) -> None:
            nonlocal understood
            understood += declared.source in position

        tvm_ffi.structural_walk([*found.reads, *found.writes], [(tvm.ir.TensorRegion, region)])
        # A block around others is met once for each of its statements, by the blocks inside.
        if not _holds_block(found.body):
            tvm_ffi.structural_walk(found.body, [(tirx.BufferStore, store)])
            if found.init is not None:
                tvm_ffi.structural_walk(found.init, [(tirx.BufferStore, store)])

    def mention(variable: Any) -> None:
        nonlocal mentions
        mentions += variable in position

    _visit_blocks(func.body, realized)
    tvm_ffi.structural_walk(func.body, [(tvm.ir.Var, mention)])
    return _Accesses(stores, loads, understood != mentions)


def _visit_blocks(body: Any, visit: Callable[[Any, Sequence[Any]], None]) -> None:
    """Call ``visit`` with every block and the loops around it, outermost first."""
    loops: list[Any] = []

    def loop(statement: Any, mutator: Any) -> Any:
        loops.append(statement)
        mutator.default_mutate(statement)
        loops.pop()
        return statement

    def realized(statement: Any, mutator: Any) -> Any:
        visit(statement, tuple(loops))
        mutator.default_mutate(statement)
        return statement

    tvm_ffi.structural_mutate(body, [(tirx.For, loop), (SBlockRealize, realized)])


def _runs_once(realize: Any, loops: Sequence[Any]) -> bool:
    """Whether a block runs at most once for each point of its axes."""
    if not all(isinstance(loop.extent, prim.IntImm) for loop in loops):
        return False
    walked = [loop for loop in loops if int(loop.extent) != 1]
    axes = realize.block.iter_vars
    if not all(isinstance(axis.dom.extent, prim.IntImm) for axis in axes):
        return False
    if prod(int(loop.extent) for loop in walked) == prod(int(axis.dom.extent) for axis in axes):
        return True  # as every point is reached
    # More iterations than points, the predicate leaving some out: each axis has loops of its own that divide it.
    taken: set[Any] = set()
    for value in realize.iter_values:
        *coefficients, _ = tvm.sym.detect_linear_equation(value, [loop.loop_var for loop in walked]) or [None]
        steps = []
        for loop, coefficient in zip(walked, coefficients, strict=False):
            if not isinstance(coefficient, prim.IntImm):
                return False
            if int(coefficient):
                if loop.loop_var in taken:
                    return False
                taken.add(loop.loop_var)
                steps.append((int(coefficient), int(loop.extent)))
        reach = 1
        for step, extent in sorted(steps):
            if step < reach:
                return False
            reach = step * extent
    return len(taken) == len(walked)


def _holds_block(statement: Any) -> bool:
    found = tvm_ffi.structural_walk(statement, [(SBlock, lambda block: tvm_ffi.VisitInterrupt(True))])
    return found is not None


def _runs_in_place(func: tirx.PrimFunc, operand: int, result: int, found: _Accesses, analyzer: Any) -> bool:
    if operand not in found.loads or operand in found.stores or result in found.loads:
        return False
    source, target = func.params[operand].ty, func.params[result].ty
    shape = _static(source.shape)
    if shape is None or shape != _static(target.shape) or str(source.dtype) != str(target.dtype):
        return False
    if len(found.stores[result]) != 1 or not _stores_once(found.stores[result][0]):
        return False
    (store,) = found.stores[result]
    return all(
        reader is store and _same_place(load.indices, store.indices, shape, analyzer)
        for load, reader in found.loads[operand]
    )


def _stores_once(store: _Store) -> bool:
    """Whether a block stores no element twice: its axes are data-parallel, and each is one of the indices."""
    if store.block.init is not None or not store.runs_once:
        return False
    if not all(int(axis.iter_type) == tirx.IterVar.DataPar for axis in store.block.iter_vars):
        return False
    axes = [axis.var for axis in store.block.iter_vars]
    used = [index for index in store.indices if isinstance(index, tvm.ir.Var)]
    others = [index for index in store.indices if not isinstance(index, tvm.ir.Var | prim.IntImm)]
    idle = [axis for axis in store.block.iter_vars if not any(axis.var.same_as(index) for index in used)]
    distinct = all(sum(axis.same_as(index) for index in used) <= 1 for axis in axes)
    return not others and distinct and all(_is_one(axis.dom.extent) for axis in idle)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, prim.IntImm) and int(extent) == 1


def _same_place(left: Sequence[Any], right: Sequence[Any], shape: Sequence[int], analyzer: Any) -> bool:
    if len(left) != len(right):
        return False
    pairs = zip(left, right, shape, strict=True)
    return all(extent == 1 or analyzer.can_prove_equal(a, b) for a, b, extent in pairs)


def _static(shape: Sequence[Any]) -> tuple[int, ...] | None:
    if not all(isinstance(extent, int | prim.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _joined(func: tirx.PrimFunc, stores: list[_Store], analyzer: Any) -> Joined | None:
    """Tell what a concatenation joins, and along which axis; None of any other kernel.

    Every operand is loaded once, shifted along one axis, and the ranges of the operands cover that axis exactly. As no
    load is out of bounds, each element then comes from the one operand whose range it is in.
    """
    result = len(func.params) - 1
    shape = _static(func.params[result].ty.shape)
    if shape is None or len(stores) != 1 or not _stores_once(stores[0]):
        return None
    (store,) = stores
    loads = _selected(store.value)
    if loads is None or len(loads) != result:
        return None
    by_source = {load.source: load for load in loads}
    axis, ranges = None, []
    for param in func.params[:-1]:
        load = by_source.get(param)
        extents = _static(param.ty.shape) if tirx.is_buffer_var(param) else None
        if load is None or extents is None or len(extents) != len(shape):
            return None
        if str(param.ty.dtype) != str(func.params[result].ty.dtype):
            return None
        if axis is None:
            shorter = [number for number, pair in enumerate(zip(extents, shape, strict=True)) if pair[0] != pair[1]]
            axis = shorter[0] if shorter else next((number for number, extent in enumerate(shape) if extent != 1), None)
        if axis is None:
            return None
        for number, (index, place) in enumerate(zip(load.indices, store.indices, strict=True)):
            if number != axis and shape[number] != 1 and not analyzer.can_prove_equal(index, place):
                return None
        shift = analyzer.simplify(store.indices[axis] - load.indices[axis])
        if (
            not isinstance(shift, prim.IntImm)
            or extents[:axis] + extents[axis + 1 :] != shape[:axis] + shape[axis + 1 :]
        ):
            return None
        ranges.append((int(shift), int(shift) + extents[axis]))
    bounds = sorted(ranges)
    if axis is None or bounds[0][0] != 0 or bounds[-1][1] != shape[axis]:
        return None
    if any(end != begin for (_, end), (begin, _) in pairwise(bounds)):
        return None
    return Joined(axis, tuple(begin for begin, _ in ranges))


def _parts(func: tirx.PrimFunc, joined: Joined | None) -> tuple[int, ...]:
    """Byte offsets of the operands of a concatenation that lie one after the other in the result, or nothing."""
    result = func.params[-1].ty
    shape = _static(result.shape)
    if joined is None or shape is None or any(extent != 1 for extent in shape[: joined.axis]):
        return ()
    dtype = tvm.DataType(str(result.dtype))
    bytes_per_step = prod(shape[joined.axis + 1 :]) * (dtype.bits * dtype.lanes // 8)
    return tuple(begin * bytes_per_step for begin in joined.starts)


def _slices(func: tirx.PrimFunc, found: _Accesses, analyzer: Any) -> tuple[int, ...]:
    """Byte offsets of results that are stretches of the operand along its outermost axis that is not 1, or nothing."""
    shape = _static(func.params[0].ty.shape) if tirx.is_buffer_var(func.params[0]) else None
    axis = next((number for number, extent in enumerate(shape or ()) if extent != 1), None)
    if shape is None or axis is None:
        return ()
    dtype = tvm.DataType(str(func.params[0].ty.dtype))
    bytes_per_step = prod(shape[axis + 1 :]) * (dtype.bits * dtype.lanes // 8)
    offsets = []
    for result in range(1, len(func.params)):
        extents = _static(func.params[result].ty.shape)
        stores = found.stores[result]
        if extents is None or len(extents) != len(shape) or len(stores) != 1 or not _stores_once(stores[0]):
            return ()
        (store,) = stores
        load = store.value
        if not isinstance(load, tvm.ir.TensorLoad) or not load.source.same_as(func.params[0]):
            return ()
        same = extents[:axis] + extents[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
        for number, (index, place) in enumerate(zip(load.indices, store.indices, strict=True)):
            same = same and (number == axis or shape[number] == 1 or analyzer.can_prove_equal(index, place))
        shift = analyzer.simplify(load.indices[axis] - store.indices[axis])
        if not same or not isinstance(shift, prim.IntImm) or str(func.params[result].ty.dtype) != str(dtype):
            return ()
        if extents == shape:
            return ()  # a copy of the whole: whoever asks for that means it
        if not isinstance(shift, prim.IntImm) or not 0 <= int(shift) <= shape[axis] - extents[axis]:
            return ()  # a kernel that writes into a part of its result
        offsets.append(int(shift) * bytes_per_step)
    return tuple(offsets)


def _selected(value: Any) -> list[Any] | None:
    """List the loads that a nest of choices selects from; None when it does anything else."""
    if isinstance(value, tvm.ir.TensorLoad):
        return [value]
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "prim.if_then_else":
        left, right = _selected(value.args[1]), _selected(value.args[2])
        return None if left is None or right is None else [*left, *right]
    return None


def in_place_variant(func: tirx.PrimFunc, operand: int, result: int) -> tirx.PrimFunc:
    """Make the kernel that writes a result over an operand: one parameter stands for both, in the operand's place.

    The kernel is correct as it stands: it does not rely on two parameters sharing memory, which a kernel compiled with
    ``tirx.noalias`` must not meet.

    before: ``k(a, b, c)`` with ``c[i] = a[i] + b[i]``
    after:  ``k(c, b)`` with ``c[i] = c[i] + b[i]``
    """
    old, new = func.params[operand], func.params[result]
    body = tvm_ffi.structural_mutate(
        func.body, ((tvm.ir.Var, lambda variable, mutator: new if variable.same_as(old) else variable),)
    )
    params = [new if index == operand else param for index, param in enumerate(func.params) if index != result]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)
