"""Maxima and minima of floats are NaN where one of the two is, as in NumPy, PyTorch and ONNX.

before: ``max(x, 0)``        CUDA's ``fmaxf``, which passes over NaN: a relu would make 0 of it
after:  ``x < 0 ? 0 : x``, of 16 bits ``max(0, x)``, which TVM's sources compute as ``0 > x ? 0 : x``
before: ``int8(max(min(x, 127), -128))``
after:  ``int8(min(max(x, -128), 127))``: a quantised NaN is the smallest integer, as in onnxruntime
before: ``max(x, y)``
after:  ``x > y or isnan(x) ? x : y``
before: ``row[i] = max(row[i], x[i, k])``, beginning with the smallest finite number
after:  ``row[i] = row[i] > x[i, k] or isnan(row[i]) ? row[i] : x[i, k]``, beginning with minus infinity

TVM is told of the last form, so that threads may take the extreme of a row together by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.tirx import IterVar

from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.vector import element_type, lanes_of, operation, wide_type

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
MOST_NESTED = 6
"""Bounds within bounds of a vector; each doubles the text."""


def keep_nan() -> tvm.transform.Pass:
    """Make the pass; it runs on scheduled kernels, before vectors are made as narrow as CUDA compares."""
    _register_reducers()

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.KeepNaN")
    def _keep(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        # Attention takes maxima only to keep exponentials in range; these hand NaN on.
        is_attention = str((func.attrs or {}).get(RULE_ATTRIBUTE, "")) == "cuda.attention"
        return func if is_attention else _Rewriter().function(func)

    return _keep


@cache
def _register_reducers() -> None:
    """Tell TVM by what threads may reduce a row, besides sums and plain maxima.

    The functions are global ones, as TVM drops what it was told only when Python has ended.
    """
    register = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")
    for extreme in (prim.Max, prim.Min):
        name = f"tvm_ext.nan_keeping_{extreme.__name__.lower()}"
        tvm_ffi.register_global_func(name, partial(_combined, extreme))
        tvm_ffi.register_global_func(f"{name}.identity", partial(_identities, extreme))
        register(1, tvm_ffi.get_global_func(name), tvm_ffi.get_global_func(f"{name}.identity"))


def _combined(extreme: type, first: Any, second: Any) -> list[Any]:
    return [_selected(extreme, first[0], second[0])]


def _identities(extreme: type, values: Any) -> list[Any]:
    return [_identity(extreme, element_type(values[0]))]


def _selected(extreme: type, first: Any, second: Any) -> Any:
    """Choose the larger or smaller of two, or the one that is NaN."""
    wins = prim.GT if extreme is prim.Max else prim.LT
    left, right = first, second
    if element_type(first) in HALVES:
        left, right = (tirx.Cast(wide_type("float32", lanes_of(first)), value) for value in (first, second))
    return prim.Select(prim.Or(wins(left, right), tirx.isnan(left)), first, second)


def _identity(extreme: type, dtype: str) -> Any:
    """Give what an extreme of nothing is; TVM has infinities of these types only."""
    if dtype not in ("float16", "float32", "float64"):
        return _end(extreme, dtype)
    return -tirx.infinity(dtype) if extreme is prim.Max else tirx.infinity(dtype)


def _end(extreme: type, dtype: str) -> Any:
    """Give what TVM begins an extreme with."""
    return tirx.min_value(dtype) if extreme is prim.Max else tirx.max_value(dtype)


class _Rewriter:
    def __init__(self) -> None:
        self._callbacks = [
            (s_tir.SBlock, self._block),
            ((prim.Max, prim.Min), self._extreme),
            (tirx.Cast, self._cast),
            ((prim.And, prim.Or), self._conditions),
            (tirx.For, self._loop),
        ]
        self._may_name = True
        self._begun_apart: dict[Any, type] = {}  # buffer -> extreme, of reductions whose beginning is another block

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        def update(block: Any) -> None:
            if block.init is None and _updates_an_extreme(block):
                self._begun_apart[block.body.buffer] = type(block.body.value)

        tvm_ffi.structural_walk(func, [(s_tir.SBlock, update)])
        return tvm_ffi.structural_mutate(func, self._callbacks)

    def _block(self, block: Any, mutator: Any) -> Any:
        """Rewrite the extreme that a block reduces to, with what it begins with and what stands beside an edge."""
        store, init = block.body, block.init
        if isinstance(store, tirx.BufferStore) and init is None and store.buffer in self._begun_apart:
            extreme, dtype = self._begun_apart[store.buffer], element_type(store.value)
            if _is(store.value, _end(extreme, dtype)):
                begin = tirx.BufferStore(store.buffer, _identity(extreme, dtype), store.indices)
                return _with_body(block, begin, None)
        if not isinstance(init, tirx.BufferStore) or not _updates_an_extreme(block):
            return mutator.default_mutate(block)
        extreme, sofar = type(store.value), store.value.a
        end, identity = _end(extreme, element_type(sofar)), _identity(extreme, element_type(sofar))

        def beside(call: Any, inner: Any) -> Any:
            call = inner.default_mutate(call)
            if operation(call) != "if_then_else" or not _is(call.args[2], end):
                return call
            return tirx.if_then_else(call.args[0], call.args[1], identity)

        value = tvm_ffi.structural_mutate(mutator.mutate(store.value.b), [(tvm.ir.Call, beside)])
        begun = tirx.BufferStore(init.buffer, identity, init.indices) if _is(init.value, end) else init
        return _with_body(block, tirx.BufferStore(store.buffer, _selected(extreme, sofar, value), store.indices), begun)

    def _cast(self, cast: Any, mutator: Any) -> Any:
        """Let a bound win over NaN that becomes an integer: the lowest one, behind which a quantised value is cast."""
        bounded = cast.value
        if element_type(cast).startswith(("int", "uint")) and (found := _between(bounded)) is not None:
            value, low, high = found
            return tirx.Cast(cast.ty.dtype, prim.Min(prim.Max(mutator.mutate(value), low), high))
        if not isinstance(bounded, prim.Max | prim.Min) or element_type(bounded) not in FLOATS:
            return mutator.default_mutate(cast)
        if not element_type(cast).startswith(("int", "uint")) or not is_number(bounded.b):
            return mutator.default_mutate(cast)
        value, wins = mutator.mutate(bounded.a), prim.GT if isinstance(bounded, prim.Max) else prim.LT
        if element_type(bounded) in HALVES:
            kept = type(bounded)(value, bounded.b)  # printed as value > bound ? value : bound
        else:
            kept = self._named(value, lambda name: prim.Select(wins(name, bounded.b), name, bounded.b))
        return tirx.Cast(cast.ty.dtype, kept)

    def _conditions(self, both: Any, mutator: Any) -> Any:
        """Name nothing in the second of two conditions, which may read what is only there where the first holds."""
        first, outer = mutator.mutate(both.a), self._may_name
        self._may_name = False
        second = mutator.mutate(both.b)
        self._may_name = outer
        return type(both)(first, second)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        """Name nothing in a loop that TVM makes vectors of behind this: a vector has no name.

        Where bounds are within bounds again and again, there are no vectors, so that there are names.
        """
        outer, vector = self._may_name, loop.kind == tirx.ForKind.VECTORIZED
        if vector and outer and _nested_extremes(loop.body) > MOST_NESTED:
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, mutator.mutate(loop.body))
        self._may_name = outer and not vector
        made = mutator.default_mutate(loop)
        self._may_name = outer
        return made

    def _named(self, value: Any, use: Callable[[Any], Any]) -> Any:
        """Give what is used twice a name: of bounds within bounds TVM would simplify many times the text."""
        if not self._may_name or isinstance(value, tvm.ir.Var | tvm.ir.TensorLoad):
            return use(value)
        name = tvm.ir.Var("bounded", value.ty)
        return prim.Let(name, value, use(name))

    def _extreme(self, expression: Any, mutator: Any) -> Any:
        expression = mutator.default_mutate(expression)
        first, second = expression.a, expression.b
        dtype = element_type(expression)
        if dtype not in FLOATS:
            return expression
        if dtype in HALVES and (is_number(first) or is_number(second)):
            return type(expression)(second, first) if is_number(second) else expression
        loses = prim.LT if isinstance(expression, prim.Max) else prim.GT
        if is_number(second):
            return self._named(first, lambda value: prim.Select(loses(value, second), second, value))
        if is_number(first):
            return prim.Select(loses(second, first), first, second)
        return _selected(type(expression), first, second)


def _between(value: Any) -> tuple[Any, Any, Any] | None:
    """Take apart what lies between two numbers: the value, the lower and the upper one."""
    if not isinstance(value, prim.Max | prim.Min) or not is_number(value.b) or element_type(value) not in FLOATS:
        return None
    inner = value.a
    if not isinstance(inner, prim.Max | prim.Min) or type(inner) is type(value) or not is_number(inner.b):
        return None
    low, high = (value.b, inner.b) if isinstance(value, prim.Max) else (inner.b, value.b)
    return (inner.a, low, high) if _number(low) <= _number(high) else None


def _nested_extremes(body: Any) -> int:
    """Count the extremes of floats on the longest way from a stored value to a leaf, bounds of integers left out."""
    depth, most = 0, 0

    def extreme(node: Any, visitor: Any) -> None:
        nonlocal depth, most
        depth += element_type(node) in FLOATS
        most = max(most, depth)
        visitor.default_visit(node)
        depth -= element_type(node) in FLOATS

    def cast(node: Any, visitor: Any) -> None:
        visitor.visit(found[0] if (found := _between(node.value)) is not None else node.value)

    tvm_ffi.structural_visit(body, [((prim.Max, prim.Min), extreme), (tirx.Cast, cast)])
    return most


def _with_body(block: Any, body: Any, init: Any) -> Any:
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, init, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip


def _updates_an_extreme(block: Any) -> bool:
    """Whether a block is ``sofar = max(sofar, value)`` of floats, or the same of minima."""
    store = block.body
    return (
        any(int(axis.iter_type) == IterVar.CommReduce for axis in block.iter_vars)
        and isinstance(store, tirx.BufferStore)
        and isinstance(store.value, prim.Max | prim.Min)
        and element_type(store.value) in FLOATS
        and isinstance(store.value.a, tvm.ir.TensorLoad)
        and store.value.a.source.same_as(store.buffer)
    )


def is_number(value: Any) -> bool:
    """Whether a value is a number of floats, or repeats one."""
    value = value.value if isinstance(value, prim.Broadcast) else value
    return isinstance(value, prim.FloatImm)


def _number(value: Any) -> float:
    return float((value.value if isinstance(value, prim.Broadcast) else value).value)


def _is(value: Any, number: Any) -> bool:
    return isinstance(value, prim.FloatImm) and float(value.value) == float(number.value)
