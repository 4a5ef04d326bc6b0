"""Kernels that look at computed indices, lengths, counts and steps once, and end a run that holds one which is wrong.

Kernels bound what they read anyway (see :mod:`tvm_ext.passes.bounded_indices`), but an answer that is made of other
elements than those asked for is worse than none.

before: ``y = R.take(table, indices)``
after:  ``y = R.take(table, R.call_tir(check_values, (indices,)))``
"""

from __future__ import annotations

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
    """

    holds: Callable[[Element, Sequence[Any], Sequence[Any]], Any]
    said: str
    extents: Sequence[Any] = ()


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

    def check(values: Any, checked: Any, extents: Sequence[Any]) -> Any:
        faults = tirx.decl_buffer([1], "int32", "faults", scope="local")
        at = [tirx.Var(f"i{axis}", "int64") for axis in range(len(shape))]
        none, zero = tirx.const(0, "int32"), tirx.const(0, "int64")

        def element(*place: Any) -> Any:
            return tirx.BufferLoad(values, list(place)).astype("int64")

        found = tirx.BufferLoad(faults, [zero])
        fault = tirx.Select(requirement.holds(element, at, extents), none, tirx.const(1, "int32"))
        body: Any = tirx.SeqStmt(
            [
                tirx.BufferStore(checked, tirx.BufferLoad(values, at), at),
                tirx.BufferStore(faults, tirx.bitwise_or(found, fault), [zero]),
            ]
        )
        for place, extent in reversed(list(zip(at, values.shape, strict=True))):
            body = tirx.For(place, zero, extent, tirx.ForKind.SERIAL, body)
        refused = tirx.AssertStmt(found == none, StringImm("AssertionError"), [StringImm(message)])
        return tirx.SeqStmt([tirx.AllocBuffer(faults), tirx.BufferStore(faults, none, [zero]), body, refused])

    def copied(source: te.Tensor, extents: list[Any]) -> te.Tensor:
        return te.extern(
            [list(source.shape)],
            [source],
            lambda ins, outs: check(ins[0], outs[0], extents),
            dtype=dtype,
            name="check_values",
        )

    attributes = {VALUE_CHECK: True, "tirx.is_scheduled": True, "op_pattern": OPAQUE}
    return bb.emit_te(
        copied, value, list(requirement.extents), primfunc_name_hint="check_values", primfunc_attrs=attributes
    )
