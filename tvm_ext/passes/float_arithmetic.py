"""Keeps arithmetic on floats as IEEE 754 has it, where TVM takes for granted that every value is a finite number.

before: ``x - x``, ``(x + y) - y``        TVM's simplifier makes them ``0`` and ``x``, also where x is NaN or infinite
after:  ``x + x * -1``, ``(x + y) + y * -1``        the same to the bit, and LLVM makes a subtraction of it again
before: ``x * y - x * y``        compiled as a fused multiply-add, whose rest is a rounding of the product
after:  ``abs(x * y) <= largest ? 0 : nan``
before: ``x / (inside ? y : 0)``        divided by the literal where loops are split, which TVM refuses
after:  ``x / (inside ? y : reinterpret(bits of 0))``
before: ``bool(x)``        compiled, in vectors, as a conversion to an integer of which one bit is kept: False for 0.5
after:  ``x != 0 or isnan(x)``        as TVM compiles ``!=`` so that it is false for NaN
before: ``p == q`` of booleans        compiled, in vectors, as a comparison of floats, which LLVM refuses
after:  ``int8(p) == int8(q)``
before: ``not x < y``        simplified to ``y <= x``, which is false, too, if either is NaN
after:  ``y <= x or isnan(x) or isnan(y)``
before: ``x < y or y <= x``        simplified to true, also if either is NaN
after:  ``not isnan(x) and not isnan(y)``
before: ``x < x + 1``, ``x - (x + 1)`` of unsigned integers        TVM's simplifier fails at the difference, ``0 - 1``
after:  ``~(x + 1) < ~x``, ``x + ~(x + 1) + 1``        LLVM makes a comparison or subtraction of them again
before: ``max(x, 0)``        compiled as ``x > 0 ? x : 0``, which turns NaN into 0
after:  ``max(0, x)``        compiled as ``0 > x ? 0 : x``, the same instruction, and NaN stays
before: ``max(x, y)``
after:  ``isnan(x) ? nan : max(x, y)``        (of ``isnan(x) ? x : x > y ? x : y`` LLVM makes one choice)

A NaN that a relu swallows is an error that nobody sees; numpy, PyTorch and onnxruntime hand it on.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import constant_like, element_type

_OPPOSITE = {
    prim.LT: prim.GE, prim.LE: prim.GT, prim.GT: prim.LE, prim.GE: prim.LT, prim.EQ: prim.NE, prim.NE: prim.EQ,
}  # fmt: skip


_RELATIONS = {
    prim.LT: frozenset("<"), prim.LE: frozenset("<="), prim.GT: frozenset(">"), prim.GE: frozenset(">="),
    prim.EQ: frozenset("="), prim.NE: frozenset("<>"),
}  # fmt: skip
"""Of two numbers; none holds if either is NaN. TVM compiles ``!=`` so, too."""

_MIRRORED = {"<": ">", "=": "=", ">": "<"}


def protect_cancellations() -> tvm.transform.Pass:
    """Make the pass that hides differences which TVM's simplifier would cancel; it runs before the kernels are lowered.

    Comparisons of a value with itself, which are how NaN is looked for, become ``isnan``, conversions to bool
    comparisons with 0, negated comparisons what they mean, and booleans are compared as bytes.
    """

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.ProtectCancellations")
    def _protect(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        rules = [
            ((prim.Max, prim.Min), _same),
            (prim.Sub, _difference),
            (prim.Div, _quotient),
            (prim.Not, _negation),
            (prim.Or, _alternatives),
            ((prim.EQ, prim.NE), _comparison),
            ((prim.LT, prim.LE, prim.GT, prim.GE), _order),
            (prim.Cast, _truth),
        ]
        return tvm_ffi.structural_mutate(func, rules)

    return _protect


def propagate_nan(*, numbers_win: bool = False) -> tvm.transform.Pass:
    """Make the pass after which the larger and the smaller of two floats are NaN where one of them is.

    It runs when loops are vector code: what looks for maxima to vectorise knows them by their plain form.

    Parameters
    ----------
    numbers_win : bool
        Whether the target's instruction gives the other operand for a NaN in either place, as Hexagon's does.
    """
    rule = _checked_extreme if numbers_win else _extreme

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.PropagateNaN")
    def _propagate(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return tvm_ffi.structural_mutate(func, [((prim.Max, prim.Min), rule)])

    return _propagate


def _difference(expression: Any, mutator: Any) -> Any:
    expression = mutator.default_mutate(expression)
    if _may_cancel(expression):
        return expression.a + tirx.bitwise_not(expression.b) + constant_like(1, expression)
    if not is_float(expression):
        return expression
    whole, part = expression.a, expression.b
    if not _is_cheap(whole) and tvm_ffi.structural_equal(whole, part):
        is_finite = prim.LE(tirx.abs(whole), constant_like(float(tirx.max_value(element_type(whole)).value), whole))
        return prim.Select(is_finite, constant_like(0.0, whole), constant_like(math.nan, whole))
    terms = (whole, whole.a, whole.b) if isinstance(whole, prim.Add) else (whole,)
    if not any(tvm_ffi.structural_equal(term, part) for term in terms):
        return expression
    return prim.Add(whole, prim.Mul(part, constant_like(-1.0, part)))


def _order(expression: Any, mutator: Any) -> Any:
    expression = mutator.default_mutate(expression)
    if not _may_cancel(expression):
        return expression
    return type(expression)(tirx.bitwise_not(expression.b), tirx.bitwise_not(expression.a))


def _may_cancel(expression: Any) -> bool:
    """Whether an unsigned difference, or that of what is compared, is one of sums of which terms may be the same."""
    operands = (expression.a, expression.b)
    is_unsigned = element_type(operands[0]).startswith("uint")
    if not is_unsigned or any(isinstance(operand, prim.IntImm | prim.Broadcast) for operand in operands):
        return False
    return any(isinstance(operand, prim.Add | prim.Sub | prim.Mul) for operand in operands)


def _quotient(expression: Any, mutator: Any) -> Any:
    """Hide the zeros that a divisor may be chosen to be; one that it always is has been put in memory."""
    expression = mutator.default_mutate(expression)
    if not is_float(expression) or isinstance(expression.b, prim.FloatImm | prim.Broadcast):
        return expression

    def literal(value: Any, _mutator: Any) -> Any:
        dtype = element_type(value)
        if value.value != 0:
            return value
        bits = f"int{dtype.removeprefix('float')}"
        negative = tirx.reinterpret(dtype, tirx.min_value(bits))  # TVM cannot compile one of 0
        return negative if math.copysign(1, value.value) < 0 else negative * tirx.const(-1.0, dtype)

    return prim.Div(expression.a, tvm_ffi.structural_mutate(expression.b, [(prim.FloatImm, literal)]))


def _same(expression: Any, mutator: Any) -> Any:
    """Take the larger of a value and itself for the value, as TVM does later: then its difference to itself is seen."""
    expression = mutator.default_mutate(expression)
    return expression.a if tvm_ffi.structural_equal(expression.a, expression.b) else expression


def _comparison(expression: Any, mutator: Any) -> Any:
    expression = mutator.default_mutate(expression)
    if element_type(expression.a) == "bool":
        return type(expression)(*(prim.Cast("int8", operand) for operand in (expression.a, expression.b)))
    if not is_float(expression.a):
        return expression
    if tvm_ffi.structural_equal(expression.a, expression.b):
        unordered = tirx.isnan(expression.a)
        return unordered if isinstance(expression, prim.NE) else tirx.Not(unordered)
    return _unequal(expression.a, expression.b) if isinstance(expression, prim.NE) else expression


def _negation(expression: Any, mutator: Any) -> Any:
    negated = expression.a
    if isinstance(negated, prim.And | prim.Or):  # TVM takes them apart, too
        parts = [_negation(prim.Not(part), mutator) for part in (negated.a, negated.b)]
        return _joined(prim.Or(*parts)) if isinstance(negated, prim.And) else prim.And(*parts)
    if type(negated) not in _OPPOSITE or not is_float(negated.a):
        return mutator.default_mutate(expression)
    first, second = (mutator.mutate(operand) for operand in (negated.a, negated.b))
    if tvm_ffi.structural_equal(first, second) and isinstance(negated, prim.EQ | prim.NE):
        unordered = tirx.isnan(first)
        return tirx.Not(unordered) if isinstance(negated, prim.NE) else unordered
    opposite = _OPPOSITE[type(negated)](first, second)
    return opposite if isinstance(negated, prim.NE) else _or_unordered(opposite, first, second)


def _alternatives(expression: Any, mutator: Any) -> Any:
    return _joined(mutator.default_mutate(expression))


def _joined(expression: Any) -> Any:
    """Make one comparison of those of the same two floats, one of which has to hold."""
    found: list[tuple[Any, Any, frozenset[str]]] = []
    rest: list[Any] = []
    for part in _disjuncts(expression):
        relation = _RELATIONS.get(type(part))
        if relation is None or not is_float(part.a):
            rest.append(part)
            continue
        first, second = part.a, part.b
        for place, (one, other, known) in enumerate(found):
            if tvm_ffi.structural_equal(first, one) and tvm_ffi.structural_equal(second, other):
                found[place] = one, other, known | relation
                break
            if tvm_ffi.structural_equal(first, other) and tvm_ffi.structural_equal(second, one):
                found[place] = one, other, known | {_MIRRORED[sign] for sign in relation}
                break
        else:
            found.append((first, second, relation))
    if len(found) + len(rest) == len(_disjuncts(expression)):
        return expression
    for first, second, relation in found:
        rest.append(_compared(first, second, relation))
    return functools.reduce(prim.Or, rest)


def _disjuncts(expression: Any) -> list[Any]:
    if isinstance(expression, prim.Or):
        return [*_disjuncts(expression.a), *_disjuncts(expression.b)]
    return [expression]


def _compared(first: Any, second: Any, relation: frozenset[str]) -> Any:
    kind = next((kind for kind, meaning in _RELATIONS.items() if meaning == relation), None)
    if kind is not None:
        return kind(first, second)
    values = [value for value in (first, second) if not _is_number(value)]
    return functools.reduce(prim.And, [tirx.Not(tirx.isnan(value)) for value in values], tirx.const(True, "bool"))


def _truth(expression: Any, mutator: Any) -> Any:
    expression = mutator.default_mutate(expression)
    if element_type(expression) != "bool" or not is_float(expression.value):
        return expression
    return _unequal(expression.value, constant_like(0.0, expression.value))


def _unequal(first: Any, second: Any) -> Any:
    """Compare by what TVM compiles as a comparison that is false for NaN."""
    return _or_unordered(prim.NE(first, second), first, second)


def _or_unordered(found: Any, first: Any, second: Any) -> Any:
    for value in (first, second):
        if not _is_number(value):
            found = tirx.Or(found, tirx.isnan(value))
    return found


def _extreme(expression: Any, mutator: Any) -> Any:
    expression = mutator.default_mutate(expression)
    kind, first, second = type(expression), expression.a, expression.b
    if not is_float(expression):
        return expression
    # Compiled as a comparison that is false for NaN, after which the second operand is taken.
    if _is_number(first):
        return expression
    if _is_number(second):
        return kind(second, first)
    if _is_cheap(second) and not _is_cheap(first):
        first, second = second, first
    if _is_cheap(first):
        return prim.Select(tirx.isnan(first), constant_like(math.nan, first), kind(first, second))
    name = tvm.ir.Var("value", first.ty)
    return prim.Let(name, first, prim.Select(tirx.isnan(name), constant_like(math.nan, name), kind(name, second)))


def _checked_extreme(expression: Any, mutator: Any) -> Any:
    """Look for NaN in every operand that is not a constant.

    The result is a constant NaN: LLVM takes a choice between an operand and the larger one for the larger one alone.
    """
    expression = mutator.default_mutate(expression)
    if not is_float(expression):
        return expression
    operands, names = [], []
    for value in (expression.a, expression.b):
        if _is_number(value) or _is_cheap(value):
            operands.append(value)
        else:
            operands.append(tvm.ir.Var("value", value.ty))
            names.append((operands[-1], value))
    result = type(expression)(*operands)
    for value in operands:
        if not _is_number(value):
            result = prim.Select(tirx.isnan(value), constant_like(math.nan, value), result)
    for name, value in names:
        result = prim.Let(name, value, result)
    return result


def is_float(expression: Any) -> bool:
    """Whether an expression is of floats that may be NaN, and TVM can say so."""
    # TVM has no isnan of bfloat16 and the 8-bit floats, and widens their values, but not names given to them.
    return element_type(expression).startswith(("float16", "float32", "float64"))


def _is_number(expression: Any) -> bool:
    value = expression.value if isinstance(expression, prim.Broadcast) else expression
    return isinstance(value, prim.FloatImm) and float(value.value) == float(value.value)


def _is_cheap(expression: Any) -> bool:
    return isinstance(expression, tvm.ir.TensorLoad | tvm.ir.Var)
