"""What tells calls of Relax operators apart: the operator, its attributes, and the types of what it is given."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax


def signature_of(call: relax.Call) -> Hashable | None:
    """Give a key that calls share which do the same with variables of the same types; None if that cannot be said.

    Symbolic extents are the same variables in such calls, and constants the same objects, as long as the calls live.
    """
    variables: list[Any] = []
    attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)
    try:
        what = call.op.name if isinstance(call.op, tvm.ir.Op) else _form(call.op, variables)
        types = tuple(tvm_ffi.StructuralKey(ty) for ty in (call.ty, *call.ty_args))
        return what, attributes, tuple(_form(argument, variables) for argument in call.args), types
    except _UnknownFormError:
        return None


class _UnknownFormError(Exception):
    """A call takes something that this module has no form of."""


def _form(argument: Any, variables: list[Any]) -> Hashable:
    """Give the form of an argument; a variable is its type, and which of the call's variables it is."""
    if isinstance(argument, tvm.ir.Tuple):
        return "tuple", tuple(_form(item, variables) for item in argument.fields)
    if isinstance(argument, tvm.ir.GlobalVar):
        return "function", str(argument.name_hint)
    if isinstance(argument, tvm.ir.Var) and not isinstance(argument.ty, tvm.ir.PrimType):
        place = next((number for number, item in enumerate(variables) if item.same_as(argument)), len(variables))
        if place == len(variables):
            variables.append(argument)
        return "variable", place, tvm_ffi.StructuralKey(argument.ty)
    if isinstance(argument, tvm.ir.GenericConst):
        return "constant", hash(argument)
    if isinstance(argument, relax.ShapeExpr | tvm.ir.StringImm) or isinstance(argument.ty, tvm.ir.PrimType):
        return "value", tvm_ffi.StructuralKey(argument)
    raise _UnknownFormError
