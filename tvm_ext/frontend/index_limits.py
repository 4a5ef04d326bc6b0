"""Finds the integers that an input may hold because the model looks something up with them.

``embedding = take(table, ids)`` with a table of 30522 rows: ``ids`` are at least 0 and below 30522. Kernels limit an
index that is outside, so that nothing foreign is read, but the answer is none; with the limits in the description of
the input, a run refuses it. Only values that reach the look-up unchanged are followed, in ``main`` itself: what a
branch or a loop does may never happen. A function that importers make themselves says by an attribute which of its
operands have limits, such as the lengths of sequences in a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from tvm_ext.tensor_spec import TensorSpec

_UNCHANGED = frozenset(
    f"relax.{name}"
    for name in ("astype", "broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
)
"""Operators whose result holds all values of their first operand and no others; casts to the larger integers."""

OPERAND_LIMITS = "tvm_ext.operand_limits"
"""Attribute of a TIR function: [operand, lowest value, highest value] for each operand that has limits."""

_ALONG_AN_AXIS = frozenset(("relax.take", "relax.gather_elements", "relax.scatter_elements"))


Limits = tuple[int, int] | None
"""Lowest and highest value; None where any will do."""


def index_limits(mod: tvm.IRModule) -> tuple[Limits, ...]:
    """Find what integers the inputs of a model may hold.

    Parameters
    ----------
    mod : tvm.IRModule
        As an importer makes it, before indices are clipped: every index of ``take`` and its like is in range.

    Returns
    -------
    tuple of (int, int) or None
        For each parameter of ``main``.
    """
    limits = _Finder(mod).limits()
    return tuple(limits.get(param) for param in mod["main"].params)


def with_limits(inputs: Sequence[TensorSpec], limits: Sequence[Limits]) -> tuple[TensorSpec, ...]:
    """Add to the inputs of a model what integers they may hold."""
    return tuple(replace(spec, limits=limit) for spec, limit in zip(inputs, limits, strict=True))


def unchanged_source(bb: relax.BlockBuilder, var: relax.Var) -> relax.Var:
    """Give the variable whose integers another one holds, all of them as they are; the variable itself otherwise."""
    while True:
        value = bb.lookup_binding(var)
        if _name(value) not in _UNCHANGED or not isinstance(value.args[0], relax.Var):
            return var
        if not _is_whole_number(value.args[0]) or not _holds_all(var, value.args[0]):
            return var
        var = value.args[0]


class _Finder:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions, main = mod.functions, mod["main"]
        self._values: dict[Any, Any] = {
            binding.var: binding.value
            for block in main.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }
        # Of what variable these are the values, and whether a negative one counts from the end.
        self._sources: dict[Any, tuple[Any, bool]] = {
            param: (param, False) for param in main.params if _is_whole_number(param)
        }
        self._limits: dict[Any, tuple[int, int]] = {}

    def limits(self) -> dict[Any, tuple[int, int]]:
        """Lowest and highest value of each parameter that is an index."""
        for var, value in self._values.items():
            name = _name(value)
            if name in _UNCHANGED and value.args[0] in self._sources and _holds_all(var, value.args[0]):
                self._sources[var] = self._sources[value.args[0]]
            elif name == "relax.where":
                wrapped = self._counted_from_the_end(value)
                if wrapped is not None:
                    self._sources[var] = (wrapped, True)
            elif name in _ALONG_AN_AXIS and value.args[1] in self._sources:
                self._look_up(value, name)
            elif name == "relax.call_tir":
                self._hand_over(value)
        return self._limits

    def _counted_from_the_end(self, choice: relax.Call) -> Any:
        """Return the parameter ``x`` of ``where(x < 0, x + extent, x)``."""
        condition, moved, plain = choice.args
        source, wrapped = self._sources.get(plain, (None, False))
        less, added = self._values.get(condition), self._values.get(moved)
        if source is None or wrapped or less is None or added is None:
            return None
        if _name(less) != "relax.less" or _name(added) != "relax.add":
            return None
        zero = less.args[1]
        if not isinstance(zero, tvm.ir.GenericConst) or zero.value.numpy().any():
            return None
        return source if less.args[0].same_as(plain) and plain in tuple(added.args) else None

    def _look_up(self, call: relax.Call, name: str) -> None:
        extents = call.args[0].ty.shape
        if name == "relax.take" and str(call.attrs.mode) == "wrap":
            return
        axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
        if not isinstance(extents, relax.ShapeExpr) or not isinstance(extents.values[axis], tvm.tirx.IntImm):
            return
        extent = int(extents.values[axis])
        source, wrapped = self._sources[call.args[1]]
        wrapped = wrapped or name == "relax.scatter_elements"  # it counts from the end itself
        if extent > 0:  # nothing can be looked up in an empty tensor, and with no index nothing is
            self._limit(source, -extent if wrapped else 0, extent - 1)

    def _hand_over(self, call: relax.Call) -> None:
        for operand, low, high in (self._functions[call.args[0]].attrs or {}).get(OPERAND_LIMITS, ()):
            source, wrapped = self._sources.get(call.args[1][int(operand)], (None, False))
            if source is not None and not wrapped:
                self._limit(source, int(low), int(high))

    def _limit(self, source: Any, low: int, high: int) -> None:
        lowest, highest = self._limits.get(source, (low, high))
        self._limits[source] = (max(lowest, low), min(highest, high))


def _name(value: Any) -> str | None:
    return str(value.op.name) if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else None


def _holds_all(after: Any, before: Any) -> bool:
    """Whether a value keeps the integers of another; nobody counts on an index that wraps around 32 bits."""
    same = str(after.ty.dtype) == str(before.ty.dtype)
    return _is_whole_number(after) and (same or str(after.ty.dtype) in ("int32", "int64"))


def _is_whole_number(var: Any) -> bool:
    return isinstance(var.ty, relax.TensorType) and str(var.ty.dtype).startswith(("int", "uint"))
