"""Converters of what Python computes of open extents: ``max(n, 1)``, ``n / 4``, ``int(n * 1.5)``, ``n ** -0.5``.

Integers are expressions of extents. A number that is none is kept as a quotient of two of them and a power, until a
tensor is computed with it or it becomes an integer again, exactly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import torch
import tvm
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import argument, extent_of, number_tensor
from tvm_ext.frontend.torch.assumptions import bounded

_LARGEST = 1 << 31
"""Numerators and denominators are smaller, so that products with extents are integers of 64 bits."""


@dataclass(frozen=True)
class Quotient:
    """A number that is computed from extents: ``(numerator / denominator) ** power``."""

    numerator: Any
    denominator: Any
    power: float = 1.0

    def tensor(self, emit: Callable[[Any], Any], dtype: str) -> Any:
        """Give it as a scalar tensor, computed in double precision as Python does."""
        above, below = (number_tensor(emit, value, "float64") for value in (self.numerator, self.denominator))
        value = above if _is_one(self.denominator) else emit(relax.op.divide(above, below))
        if self.power == 0.5:
            value = emit(relax.op.sqrt(value))
        elif self.power != 1:
            value = emit(relax.op.power(value, relax.const(self.power, "float64")))
        return value if dtype == "float64" else emit(relax.op.astype(value, dtype))


def _dtype(node: Node) -> str:
    dtype: torch.dtype = node.meta["val"].dtype
    return str(dtype).removeprefix("torch.")


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 1


def _quotient(importer: Any, value: Any) -> Quotient:
    found = importer.env[value] if isinstance(value, Node) else value
    if isinstance(found, Quotient):
        return found
    if isinstance(found, float):
        exact = Fraction(found)
        if max(abs(exact.numerator), exact.denominator) >= _LARGEST:
            raise NotImplementedError(f"it computes with {found} and an extent, of which no integer can be told")
        return Quotient(tirx.const(exact.numerator, "int64"), tirx.const(exact.denominator, "int64"))
    return Quotient(extent_of(importer, value), tirx.const(1, "int64"))


def _plain(value: Quotient) -> Quotient:
    if value.power != 1:
        raise NotImplementedError("it computes with a root of an extent")
    return value


def as_float(importer: Any, node: Node) -> Any:
    """``float(n)``."""
    return _quotient(importer, node.args[0])


def divide(importer: Any, node: Node) -> Any:
    """``n / m``."""
    left, right = (_quotient(importer, value) for value in node.args)
    if right.power != 1 or left.power != 1:
        if _is_one(left.numerator) and _is_one(left.denominator):
            return Quotient(right.numerator, right.denominator, -right.power)
        raise NotImplementedError("it computes with a root of an extent")
    return Quotient(left.numerator * right.denominator, left.denominator * right.numerator)


def root(importer: Any, node: Node) -> Any:
    """``math.sqrt(n)``."""
    value = _plain(_quotient(importer, node.args[0]))
    return Quotient(value.numerator, value.denominator, 0.5)


def power(importer: Any, node: Node) -> Any:
    """``n ** p`` with a number for ``p``."""
    base, exponent = node.args
    if isinstance(exponent, Node):
        raise NotImplementedError("its exponent is not known")
    held = importer.env[base] if isinstance(base, Node) else base
    if isinstance(exponent, int) and exponent >= 0 and not isinstance(held, Quotient):
        return math.prod([extent_of(importer, base)] * exponent, start=tirx.const(1, "int64"))
    value = _plain(_quotient(importer, base))
    return Quotient(value.numerator, value.denominator, float(exponent))


def rounded(way: str, importer: Any, node: Node) -> Any:
    """``int(q)``, ``math.floor(q)`` and ``math.ceil(q)``, exactly."""
    value = importer.env[node.args[0]]
    if not isinstance(value, Quotient):
        return value
    value = _plain(value)
    if way == "ceil":
        return -tirx.floordiv(-value.numerator, value.denominator)
    is_cut = way == "trunc" and not bounded(value.numerator, least=importer.least).can_prove(value.numerator >= 0)
    return (tirx.truncdiv if is_cut else tirx.floordiv)(value.numerator, value.denominator)


def size(importer: Any, node: Node) -> Any:
    """``x.size(i)``: a number also where torch has ``n // (n // 5)``, of ``n`` in groups of five."""
    extent = importer.env[node.args[0]].ty.shape[argument(node, 1, "dim")]
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def elements(importer: Any, node: Node) -> Any:
    """``x.numel()``, as torch writes it where a batch normalisation is trained."""
    return math.prod(importer.env[node.args[0]].ty.shape, start=tirx.const(1, "int64"))


def total(importer: Any, node: Node) -> Any:
    """``torch.sym_sum``, as torch writes a sum of three integers or more."""
    return reduce(operator.add, (extent_of(importer, value) for value in node.args[0]))


def extreme(choose: Callable[[Any, Any], Any], importer: Any, node: Node) -> Any:
    """``max(n, m)`` and ``min(n, m)``."""
    return choose(*(extent_of(importer, value) for value in node.args))


def of_quotients(symbol: str, stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Compute a sum, difference or product of which an operand is no integer."""
    held = [importer.env[value] if isinstance(value, Node) else value for value in node.args]
    if not any(isinstance(value, Quotient | float) for value in held):
        return stock(node)
    left, right = (_plain(_quotient(importer, value)) for value in node.args)
    if symbol == "*":
        return Quotient(left.numerator * right.numerator, left.denominator * right.denominator)
    change = operator.add if symbol == "+" else operator.sub
    above = change(left.numerator * right.denominator, right.numerator * left.denominator)
    return Quotient(above, left.denominator * right.denominator)


def filled(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.full(shape, n)``, of a number that is none of the program's."""
    value = node.args[1]
    held = importer.env[value] if isinstance(value, Node) else value
    if not isinstance(held, Quotient):
        return stock(node)
    importer.env[value] = held.tensor(importer.block_builder.emit, _dtype(node))
    try:
        return stock(node)
    finally:
        importer.env[value] = held


def scalar_tensor(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.tensor(n)``."""
    held = importer.env[node.args[0]] if isinstance(node.args[0], Node) else None
    emit, dtype = importer.block_builder.emit, _dtype(node)
    if isinstance(held, Quotient):
        return held.tensor(emit, dtype)
    return number_tensor(emit, held, dtype) if held is not None and tvm.ir.is_prim_expr(held) else stock(node)


EXTENT_NUMBERS: Mapping[str, Callable[[Any, Node], Any]] = {
    "ceil": partial(rounded, "ceil"),
    "floor": partial(rounded, "floor"),
    "pow": power,
    "pow_by_natural": power,
    "sym_float": as_float,
    "sym_max": partial(extreme, tirx.max),
    "sym_min": partial(extreme, tirx.min),
    "sym_numel.default": elements,
    "sym_size.int": size,
    "sym_sum": total,
    "_sym_sqrt": root,
    "sym_sqrt": root,
    "truediv": divide,
    "trunc": partial(rounded, "trunc"),
}
"""By name of Python's or torch's function."""

REFINED_EXTENT_NUMBERS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "add": partial(of_quotients, "+"),
    "full.default": filled,
    "mul": partial(of_quotients, "*"),
    "scalar_tensor.default": scalar_tensor,
    "sub": partial(of_quotients, "-"),
}
"""Those that leave to TVM's converter what it does right."""
