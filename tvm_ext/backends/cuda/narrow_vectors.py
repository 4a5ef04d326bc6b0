"""Loops over vectors that TVM has no type, comparison or constant of for CUDA are divided, or become ordinary loops.

before: ``for x in T.vectorized(16): gate[x] = gate[x] + state[k] * weights[k, x]``, of float32
after:  ``for x in range(16): ...``
before: ``for x in T.vectorized(8): y[x] = T.Select(x[x] < 0, ...)``, of float16
after:  ``for part in T.unroll(2): for lane in T.vectorized(4): ...``

Kernels that are written with the vectors of a CPU, and that no rule schedules anew, compile so, and so do those whose
values are wider in between than what they load and store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cuda.blocks import TRUTH, VECTOR_BYTES, element_bytes
from tvm_ext.schedules.simd.vector import element_type

COMPARED = 4
"""Elements of the longest vector of truth values."""

_COMPARISONS = (prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE)
PRINTED = ("float16", "bfloat16", "int8", "uint8")
"""Types of which a vector of constants is printed right in any length; bytes with the help of :mod:`.byte_vectors`."""


def narrow_vectors() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NarrowVectors")
    def _narrow(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        narrowed = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _wide(func.body):
                narrowed.update_func(variable, tvm_ffi.structural_mutate(func, [(tirx.For, _loop)]))
        return narrowed

    return _narrow


def _wide(statement: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, [(tirx.For, found.append)])
    return any(_lanes(loop) for loop in found)


def _loop(loop: Any, mutator: Any) -> Any:
    lanes = _lanes(loop)
    loop = mutator.default_mutate(loop)
    if lanes == 0:
        return loop
    if lanes == 1 or int(loop.extent) % lanes:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
    dtype = str(loop.loop_var.ty.dtype)
    part, lane = tirx.Var("part", dtype), tirx.Var("lane", dtype)
    zero, width, parts = (tirx.const(number, dtype) for number in (0, lanes, int(loop.extent) // lanes))
    body = substitute(loop.body, {loop.loop_var: part * width + lane})
    return tirx.For(part, zero, parts, tirx.ForKind.UNROLLED, tirx.For(lane, zero, width, loop.kind, body))


def _lanes(loop: Any) -> int:
    """Count the elements that a loop over a vector can have at a time; 0 where it may stay as it is."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return 0
    if not isinstance(loop.extent, tirx.IntImm):
        return 1
    moved, most = {"int8"}, [int(loop.extent)]
    values: list[Any] = []

    def store(node: tirx.BufferStore) -> None:
        moved.add(str(node.buffer.dtype))
        values.append(node.value)

    tvm_ffi.structural_walk(
        loop.body,
        [(tirx.BufferStore, store), (tvm.ir.TensorLoad, lambda load: moved.add(str(load.source.dtype)))],
    )
    if TRUTH in moved or int(loop.extent) * max(map(element_bytes, moved)) > VECTOR_BYTES:
        return 1
    places: dict[Any, Any] = {}
    tvm_ffi.structural_walk(
        loop.body,
        [(s_tir.SBlockRealize, lambda node: places.update(zip(_variables(node), node.iter_values, strict=True)))],
    )
    for value in values:
        _limit(value, most, lambda load: _side_by_side(load, places, loop.loop_var))
    return most[0] if most[0] < int(loop.extent) else 0


def _limit(value: Any, most: list[int], is_vector: Callable[[Any], bool]) -> None:
    """Lower ``most`` to the elements of a value that TVM prints at a time; indices are computed apart from it."""

    def at_most(lanes: int) -> None:
        most[0] = max(1, min(most[0], lanes))

    def repeated(node: Any) -> None:
        if element_type(node) not in PRINTED:
            at_most(min(COMPARED, VECTOR_BYTES // element_bytes(node.ty.dtype)))

    def comparison(node: Any, mutator: Any) -> Any:
        if not _loads(node):
            return node  # the same for all elements
        at_most(COMPARED)
        return mutator.default_mutate(node)

    def number(node: Any, _mutator: Any) -> Any:
        repeated(node)
        return node

    def load(node: Any, _mutator: Any) -> Any:
        if not is_vector(node):
            at_most(COMPARED)
        return node

    def cast(node: Any, mutator: Any) -> Any:
        at_most(2 * VECTOR_BYTES // element_bytes(node.ty.dtype))
        if not all(is_vector(read) for read in _loads(node)):
            repeated(node)
        return mutator.default_mutate(node)

    tvm_ffi.structural_mutate(
        value,
        [
            (tvm.ir.TensorLoad, load),
            (_COMPARISONS, comparison),
            ((tirx.IntImm, prim.FloatImm), number),
            (prim.Cast, cast),
        ],
    )


def _loads(node: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, found.append)])
    return found


def _variables(realize: Any) -> list[Any]:
    return [axis.var for axis in realize.block.iter_vars]


def _side_by_side(load: Any, places: dict[Any, Any], lane: Any) -> bool:
    """Whether a load surely has another element for each lane; where lanes are divided it may be one for all."""
    if len(load.indices) == 0:
        return False
    last = substitute(load.indices[-1], places)
    found: list[bool] = []
    divided: list[Any] = []
    tvm_ffi.structural_walk(
        last, [(tirx.Var, lambda var: found.append(var.same_as(lane))), (prim.FloorDiv, divided.append)]
    )
    return any(found) and not divided
