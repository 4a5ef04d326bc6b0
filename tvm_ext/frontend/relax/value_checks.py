"""Kernels that look at computed indices, lengths, counts and steps once, and end a run that holds one which is wrong.

Kernels bound what they read anyway (see :mod:`tvm_ext.passes.bounded_indices`), but an answer that is made of other
elements than those asked for is worse than none.

before: ``y = R.take(table, indices)``
after:  ``y = R.take(table, R.call_tir(check_values, (indices,)))``
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir.expr import StringImm

from tvm_ext.passes.value_checks import VALUE_CHECK
from tvm_ext.relax_utils import OPAQUE

Element = Callable[..., Any]
"""Gives an element of the value as int64, by its indices."""

Condition = Callable[[Element, Sequence[Any]], Any]
"""Makes, of what gives elements and the indices of one, the condition on it."""

_MANY = 64
"""Elements from which on they are looked at by vectors; open extents are taken for as many."""

_LANES = 16


@dataclass(frozen=True)
class Requirement:
    """What a value has to be.

    Attributes
    ----------
    holds : callable
        Makes, of what gives elements, the indices of one, and ``extents``, the condition on it.
    said : str
        The condition in words, behind "its input 'k' must hold".
    extents : sequence of tvm.tirx.Expr
        What the condition compares with.
    alone : bool
        An element is looked at without its place and its neighbours.
    """

    holds: Callable[[Element, Sequence[Any], Sequence[Any]], Any]
    said: str
    extents: Sequence[Any] = ()
    alone: bool = False


def spelled(extent: Any) -> str:
    """Spell an extent, as short as may be, for a message."""
    found = tvm.sym.Analyzer().simplify(extent)
    if isinstance(found, tirx.IntImm):
        return str(int(found))
    return re.sub(r"(?:T\.int64)?\((-?\w+)\)", r"\1", str(found))


def checked(bb: relax.BlockBuilder, value: relax.Var, requirement: Requirement, message: str) -> Any:
    """Hand a value through a kernel that looks at it.

    Parameters
    ----------
    message : str
        What a run is ended with that holds anything else.
    """
    shape, dtype = list(value.ty.shape), str(value.ty.dtype)
    count = math.prod(int(extent) if isinstance(extent, tirx.IntImm) else _MANY for extent in shape)
    many = requirement.alone and count >= _MANY
    if many and len(shape) > 1:
        value = bb.emit(relax.op.reshape(value, [-1]))
    write = _vectors if many else _one_by_one

    def copied(source: te.Tensor, extents: list[Any]) -> te.Tensor:
        def check(values: Any, checked: Any) -> Any:
            return write(values, checked, lambda element, at: requirement.holds(element, at, extents), message)

        return te.extern(
            [list(source.shape)],
            [source],
            lambda ins, outs: check(ins[0], outs[0]),
            dtype=dtype,
            name="check_values",
        )

    attributes = {VALUE_CHECK: True, "tirx.is_scheduled": True, "op_pattern": OPAQUE}
    result = bb.emit_te(
        copied, value, list(requirement.extents), primfunc_name_hint="check_values", primfunc_attrs=attributes
    )
    return bb.emit(relax.op.reshape(result, shape)) if many and len(shape) > 1 else result


def _one_by_one(values: Any, checked: Any, holds: Condition, message: str) -> Any:
    """Look at each element by its indices."""
    at = [tirx.Var(f"i{axis}", "int64") for axis in range(len(values.shape))]
    faults = tirx.decl_buffer([1], "int32", "faults", scope="local")
    body = _looked_at(values, checked, at, faults, tirx.const(0, "int64"), holds)
    for place, extent in reversed(list(zip(at, values.shape, strict=True))):
        body = tirx.For(place, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, body)
    return _ending(faults, body, message)


def _vectors(values: Any, checked: Any, holds: Condition, message: str) -> Any:
    """Look at the elements of one axis by vectors, and at the rest one by one."""
    zero, lanes = tirx.const(0, "int64"), tirx.const(_LANES, "int64")
    block, lane, last = (tirx.Var(name, "int64") for name in ("block", "lane", "last"))
    faults = tirx.decl_buffer([_LANES], "int32", "faults", scope="local")
    count = values.shape[0]
    whole = tirx.floordiv(count, lanes)
    body = _looked_at(values, checked, [block * lanes + lane], faults, lane, holds)
    body = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, body)
    body = tirx.For(block, zero, whole, tirx.ForKind.SERIAL, body)
    rest = _looked_at(values, checked, [whole * lanes + last], faults, zero, holds)
    rest = tirx.For(last, zero, count - whole * lanes, tirx.ForKind.SERIAL, rest)
    return _ending(faults, tirx.SeqStmt([body, rest]), message)


def _looked_at(values: Any, checked: Any, at: Sequence[Any], faults: Any, fault: Any, holds: Condition) -> Any:
    """Hand an element on, and note whether it is wrong."""

    def element(*place: Any) -> Any:
        return tirx.BufferLoad(values, list(place)).astype("int64")

    wrong = tirx.Select(holds(element, at), tirx.const(0, "int32"), tirx.const(1, "int32"))
    noted = tirx.bitwise_or(tirx.BufferLoad(faults, [fault]), wrong)
    return tirx.SeqStmt(
        [
            tirx.BufferStore(checked, tirx.BufferLoad(values, list(at)), list(at)),
            tirx.BufferStore(faults, noted, [fault]),
        ]
    )


def _ending(faults: Any, body: Any, message: str) -> Any:
    """End a run where a fault was noted."""
    places = [tirx.const(place, "int64") for place in range(int(faults.shape[0]))]
    none = tirx.const(0, "int32")
    found = functools.reduce(tirx.bitwise_or, [tirx.BufferLoad(faults, [place]) for place in places])
    refused = tirx.AssertStmt(found == none, StringImm("AssertionError"), [StringImm(message)])
    begun = [tirx.BufferStore(faults, none, [place]) for place in places]
    return tirx.SeqStmt([tirx.AllocBuffer(faults), *begun, body, refused])
