"""Arithmetic of two operands as C text.

A product that is added to something becomes a fused multiply-add, as in machine code of the ordinary build; C11 leaves
it to options of the compiler whether it may do so itself.

Integers of tensors wrap around, as in machine code. In C a signed number that overflows is undefined, so that they are
added, multiplied and shifted as unsigned ones. Indices do not overflow, and stay signed: compilers then know more.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.masks import BINARY, Masks
from tvm_ext.backends.c.types import CType

_OF_TWO = frozenset({*BINARY, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max})
_WRAPPING = (prim.Add, prim.Sub, prim.Mul, prim.LShift)


class Arithmetic(Masks):
    """The part of :class:`~tvm_ext.backends.c.expressions.Expressions` that writes arithmetic."""

    analyzer: Any
    data: set[Any]

    @abstractmethod
    def c_call(self, function: str, result: CType, operands: Any) -> str:
        """Write a call of C's library."""

    def is_data(self, e: Any) -> bool:
        """Whether a value depends on what tensors hold; indices are what loops count."""
        if isinstance(e, tvm.ir.Var):
            return e in self.data
        if type(e) in _OF_TWO:
            return self.is_data(e.a) or self.is_data(e.b)
        if isinstance(e, prim.Cast | prim.Broadcast):
            return self.is_data(e.value)
        return self.is_data(e.base) if isinstance(e, prim.Ramp) else not isinstance(e, prim.IntImm)

    def binary(self, e: Any, kind: type, result: CType) -> str:
        """Write an operation of two operands."""
        if result.is_float:
            if kind is prim.Add and (isinstance(e.a, prim.Mul) or isinstance(e.b, prim.Mul)):
                product, rest = (e.a, e.b) if isinstance(e.a, prim.Mul) else (e.b, e.a)
                return self._fused(result, product, self.text(rest))
            if kind is prim.Sub and isinstance(e.a, prim.Mul):
                return self._fused(result, e.a, f"-{self.text(e.b)}")
            if kind is prim.Sub and isinstance(e.b, prim.Mul):
                return self._fused(result, e.b, self.text(e.a), "-")
            if kind is prim.Mod:
                function = {"float32": "fmodf", "float64": "fmod"}[result.element]
                return self.c_call(function, result, (e.a, e.b))
        elif kind in (prim.FloorDiv, prim.FloorMod):
            return self._floor(e, kind is prim.FloorMod, result)
        elif kind in _WRAPPING and result.element != "bool" and (result.lanes > 1 or self.is_data(e)):
            unsigned = self.helpers.type(result.unsigned)
            wrapped = f"(({unsigned}){self.text(e.a)} {BINARY[kind]} ({unsigned}){self.text(e.b)})"
            return f"(({self.helpers.type(result)}){wrapped})"
        text = f"({self.text(e.a)} {BINARY[kind]} {self.text(e.b)})"
        # C computes in int with what is narrower.
        return (
            f"(({result.name}){text})"
            if result.lanes == 1 and (result.bits < 32 or result.element == "float16")
            else text
        )

    def _fused(self, result: CType, product: Any, rest: str, sign: str = "") -> str:
        return f"{self.helpers.fused(result)}({sign}{self.text(product.a)}, {self.text(product.b)}, {rest})"

    def _floor(self, e: Any, modulo: bool, result: CType) -> str:
        a, b = self.text(e.a), self.text(e.b)
        positive = result.element.startswith("uint") or (
            self._proved(e.a >= 0, result) and self._proved(e.b > 0, result)
        )
        if positive:
            return f"({a} {'%' if modulo else '/'} {b})"
        if result.lanes == 1:
            return f"{self.helpers.floor_division(result, modulo)}({a}, {b})"
        scalar = self.helpers.floor_division(result.wide(1), modulo)
        return f"{self.helpers.lanewise(scalar, result, 2)}({a}, {b})"

    def _proved(self, condition: Any, result: CType) -> bool:
        return result.lanes == 1 and bool(self.analyzer.can_prove(condition))
