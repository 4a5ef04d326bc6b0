"""Truth values of vectors, as masks: signed integers, all bits of which are set where something holds.

They are as wide as what was compared, and widened or narrowed to what they choose among.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.helpers import Helpers
from tvm_ext.backends.c.types import CType, ctype
from tvm_ext.errors import CompileError
from tvm_ext.schedules.simd.vector import operation

BINARY = {
    prim.Add: "+", prim.Sub: "-", prim.Mul: "*", prim.Div: "/", prim.Mod: "%", prim.BitwiseAnd: "&",
    prim.BitwiseOr: "|", prim.BitwiseXor: "^", prim.LShift: "<<", prim.RShift: ">>",
}  # fmt: skip
COMPARISONS = {prim.EQ: "==", prim.NE: "!=", prim.LT: "<", prim.LE: "<=", prim.GT: ">", prim.GE: ">="}
LOGIC = {prim.And: "&", prim.Or: "|"}


def type_of(expression: Any) -> CType:
    """Read the type of an expression."""
    return ctype(str(expression.ty.dtype))


class Masks(ABC):
    """The half of :class:`~tvm_ext.backends.c.expressions.Expressions` that writes masks."""

    helpers: Helpers
    names: dict[Any, str]
    masks: dict[Any, int]

    @abstractmethod
    def text(self, e: Any) -> str:
        """Write a value."""

    @abstractmethod
    def refuse(self, what: str) -> CompileError:
        """Make the error of what cannot be written."""

    @abstractmethod
    def bytes_of(self, e: Any) -> str:
        """Write a load, call or shuffle of truth values: bytes that are 0 or 1."""

    @abstractmethod
    def let(self, e: Any, rest: Callable[[Any], str]) -> str:
        """Write a value that is named, and what uses the name."""

    def mask_bits(self, e: Any) -> int:
        """Bits of the lanes that a truth value of vectors is computed in."""
        kind = type(e)
        if kind in COMPARISONS:
            return type_of(e.a).bits if type_of(e.a).element != "bool" else self.mask_bits(e.a)
        if kind in LOGIC or kind in (prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor):
            return self.mask_bits(e.a if not isinstance(e.a, prim.Broadcast) else e.b)
        if kind in (prim.Not, prim.BitwiseNot):
            return self.mask_bits(e.a)
        if kind is prim.Select:
            return self.mask_bits(e.true_value if not isinstance(e.true_value, prim.Broadcast) else e.false_value)
        if isinstance(e, tvm.ir.Var):
            return self.masks[e]
        if kind is prim.Cast:
            return type_of(e.value).bits
        if kind is prim.Let:
            return self.mask_bits(e.body) if e.body.same_as(e.var) is False else self.mask_bits(e.value)
        if kind is tvm.ir.Call and operation(e) in ("reinterpret", "likely", "isnan", "isinf", "isfinite"):
            return self.mask_bits(e.args[0]) if type_of(e.args[0]).element == "bool" else type_of(e.args[0]).bits
        return 32 if kind is prim.Broadcast else 8

    def mask(self, e: Any, bits: int) -> str:
        """Write a truth value of vectors as integers of so many bits, all of them set or none."""
        found = self.mask_bits(e)
        lanes = type_of(e).lanes
        wanted = CType(f"int{bits}", lanes)
        self.helpers.type(wanted)
        text = self._mask(e, CType(f"int{found}", lanes))
        return text if found == bits else f"__builtin_convertvector({text}, {wanted.name})"

    def _mask(self, e: Any, kind: CType) -> str:
        node = type(e)
        name = self.helpers.type(kind)
        if node in COMPARISONS:
            if type_of(e.a).element == "bool":
                return f"({self.mask(e.a, kind.bits)} {COMPARISONS[node]} {self.mask(e.b, kind.bits)})"
            return f"({name})({self.text(e.a)} {COMPARISONS[node]} {self.text(e.b)})"
        if node in LOGIC or node in (prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor):
            sign = LOGIC.get(node) or BINARY[node]
            return f"({self.mask(e.a, kind.bits)} {sign} {self.mask(e.b, kind.bits)})"
        if node in (prim.Not, prim.BitwiseNot):
            return f"(~{self.mask(e.a, kind.bits)})"
        if node is prim.Select:
            a, b = self.mask(e.true_value, kind.bits), self.mask(e.false_value, kind.bits)
            if type_of(e.condition).lanes == 1:
                return f"({self.text(e.condition)} ? {a} : {b})"
            return f"{self.helpers.select(kind)}({self.mask(e.condition, kind.bits)}, {a}, {b})"
        if node is prim.Broadcast:
            return f"{self.helpers.splat(kind)}(-({kind.scalar}){self.text(e.value)})"
        if isinstance(e, tvm.ir.Var):
            return self.names[e]
        if node is prim.Cast:
            return f"({name})({self.text(e.value)} != 0)"
        if node is prim.Let:
            return self.let(e, lambda body: self._mask(body, kind))
        if node is tvm.ir.Call:
            called = operation(e)
            if called in ("reinterpret", "likely"):
                return self.mask(e.args[0], kind.bits)
            if called == "if_then_else":
                return (
                    f"({self.text(e.args[0])} ? {self.mask(e.args[1], kind.bits)} : {self.mask(e.args[2], kind.bits)})"
                )
            if called == "isnan":
                return self._repeated(e.args[0], lambda x: f"({name})({x} != {x})")
            if called == "isinf":
                return f"({name})({self.helpers.magnitude(type_of(e.args[0]))}({self.text(e.args[0])}) == INFINITY)"
            if called == "isfinite":
                return f"({name})({self.helpers.magnitude(type_of(e.args[0]))}({self.text(e.args[0])}) < INFINITY)"
        if node is tvm.ir.TensorLoad or node is tvm.ir.Call or node is prim.Shuffle:
            return f"({name})({self.bytes_of(e)} != 0)"
        raise self.refuse(f"a truth value {node.__name__}")

    def _repeated(self, e: Any, use: Callable[[str], str]) -> str:
        """Write what uses a value more than once."""
        if isinstance(e, tvm.ir.Var):
            return use(self.text(e))
        kind = type_of(e)
        return f"__extension__ ({{ const {self.helpers.type(kind)} x_ = {self.text(e)}; {use('x_')}; }})"

    def as_bytes(self, e: Any, result: CType) -> str:
        """Write a truth value of vectors as bytes that are 0 or 1, as memory holds them."""
        name = self.helpers.type(CType("uint8", result.lanes))
        return f"(({name})({self.mask(e, 8)} & 1))"
