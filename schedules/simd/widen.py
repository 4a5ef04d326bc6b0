"""Turns what one iteration of a loop computes into what a vector of consecutive iterations computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.imported import DEFINITIONS, LANEWISE, imported, of_lanes
from tvm_ext.schedules.simd.lanes import Lanes, holds_load
from tvm_ext.schedules.simd.scratch import Scratch
from tvm_ext.schedules.simd.stream import stream
from tvm_ext.schedules.simd.transcendental import calls_by_name
from tvm_ext.schedules.simd.vector import (
    broadcast,
    cast,
    choose,
    element_type,
    is_false,
    lanes_of,
    operation,
    wide_type,
)

_BINARY = (
    prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max,
    prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or,
    prim.LShift, prim.RShift, prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor,
)  # fmt: skip
_DIVISIONS = (prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod)
# Around these a division is exact: half a unit in the last place decides which integer a quotient is.
_ROUNDINGS = frozenset(["round", "nearbyint", "floor", "ceil", "trunc"])

# Calls that mean the same in every lane, and that LLVM or the expansion of transcendental functions can widen.
_LANEWISE = frozenset(
    """exp tanh sigmoid log log1p erf sqrt rsqrt pow sin cos fabs floor ceil round nearbyint trunc fma isnan reinterpret
    bitwise_and bitwise_or bitwise_xor bitwise_not shift_left shift_right""".split()
)
# Of these, LLVM widens only the float32 form, after its expansion as a polynomial.
_SINGLE_PRECISION_ONLY = frozenset({"erf", "log1p"})


MOST_NESTED = 2
"""Masks that load under a mask that loads: each is written out in all that it masks, and so in the next one."""


class NotVectorizable(Exception):
    """Raised inside the pass when a loop has no vector form; the loop then stays as it is."""


class NeedsWholeVectors(NotVectorizable):
    """Raised when a masked vector would be stored to a buffer that could otherwise stay in registers."""


def uses(expression: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    return any(variable.same_as(found) for found in tirx.analysis.undefined_vars(expression))


class Widener(Lanes):
    """Widens expressions and statements over ``lanes`` consecutive iterations of one loop.

    Its parameters are those of :class:`~tvm_ext.schedules.simd.lanes.Lanes`.
    """

    def value(self, expression: Any) -> Any:
        """Widen an expression; what is the same in all lanes stays a scalar."""
        kind = type(expression)
        if isinstance(expression, tvm.ir.Var):
            return self._ramp(self._first) if expression.same_as(self._variable) else self._renamed(expression)
        if kind in (prim.IntImm, prim.FloatImm, tvm.ir.StringImm):
            return expression
        if kind in _BINARY:
            a, b = self._alike(expression.a, expression.b)
            if kind in _DIVISIONS and self.mask is not None and lanes_of(b) > 1 and "float" not in element_type(b):
                if not isinstance(expression.b, prim.IntImm):
                    raise NotVectorizable("an integer division that not every lane may do")
            if kind is prim.Div and element_type(a) == "float32" and lanes_of(a) > 1 and not self._rounded:
                return self._divide(a, b, expression.b)
            return kind(a, b)
        if kind is prim.Cast:
            with self._exact("float" not in element_type(expression)):
                value = self.value(expression.value)
            return cast(element_type(expression), value)
        if kind in (prim.Not, prim.BitwiseNot):
            return kind(self.value(expression.a))
        if kind is prim.Select:
            if not all(map(self._loads_inside, (expression.true_value, expression.false_value))):
                # TVM makes a branch of such a choice, as either value may only be computed where it is chosen.
                return self._choice(expression.condition, expression.true_value, expression.false_value)
            return prim.Select(*self._alike(expression.condition, expression.true_value, expression.false_value))
        if kind is prim.Let:
            value = self.value(expression.value)
            return prim.Let(self._rename(expression.var, value), value, self.value(expression.body))
        if kind is tvm.ir.TensorLoad:
            return self._loads.once(expression, self._load)
        if kind is tvm.ir.Call:
            with self._exact(operation(expression) in _ROUNDINGS):
                return self._call(expression)
        raise NotVectorizable(f"expression {kind.__name__}")

    def define(self, variable: Any, value: Any) -> None:
        """Give the wide value that a variable stands for."""
        self._names[variable] = value

    def wide(self, expression: Any) -> Any:
        """Widen an expression to a full vector."""
        return broadcast(self.value(expression), self._lanes)

    def statement(self, statement: Any) -> Any:
        """Widen a statement that stores to addresses of its own in every lane."""
        kind = type(statement)
        if kind is tirx.SeqStmt:
            return tirx.SeqStmt([self.statement(part) for part in statement.seq])
        if kind is tirx.BufferStore:
            return self._store(statement)
        if kind is tirx.IfThenElse:
            return self._if_then_else(statement)
        if kind is tirx.Bind:
            value = self.value(statement.value)
            return tirx.Bind(self._rename(statement.var, value), value)
        if kind is tirx.For:
            return self._for(statement)
        if kind is tirx.AttrStmt and statement.attr_key.startswith("pragma_"):
            return self.statement(statement.body)
        raise NotVectorizable(f"statement {kind.__name__}")

    def condition(self, condition: Any) -> tuple[Any, Any]:
        """Split a condition into a scalar one (False: it never holds) and a vector one; either may be None."""
        scalar, vector = None, None
        for part in _conjuncts(condition):
            at_lane = self._at_lane(part)
            if self._varies(at_lane) and self._is_uniform(part):
                at_lane = self._at_lane(part, tirx.const(0, self._integer))
            if self._varies(at_lane):
                vector = self.wide(part) if vector is None else prim.And(vector, self.wide(part))
            elif is_false(at_lane):
                return at_lane, None
            elif not isinstance(at_lane, prim.IntImm):
                scalar = at_lane if scalar is None else prim.And(scalar, at_lane)
        return scalar, vector

    @contextmanager
    def under(self, mask: Any, negate: bool = False) -> Iterator[None]:
        """Enter a region where only the lanes of ``mask`` take part."""
        before = self.mask, self._conditional, self._nested
        nowhere = broadcast(tirx.const(False, "bool"), self._lanes)
        narrower = mask
        if negate and holds_load(mask):  # TVM makes `b <= a` of `not a < b`, which is false, too, if either is NaN
            narrower = choose(mask, nowhere, broadcast(tirx.const(True, "bool"), self._lanes))
        elif negate:
            narrower = prim.Not(mask)
        if self.mask is None:
            self.mask = narrower
        elif self._nested >= MOST_NESTED and holds_load(mask):
            raise NotVectorizable("conditions within conditions")
        elif holds_load(mask):  # unknown in the lanes that load nothing: `and` would make the whole mask unknown there
            self.mask = choose(self.mask, narrower, nowhere)
        else:
            self.mask = prim.And(self.mask, narrower)
        self._conditional = True
        self._nested += holds_load(mask)
        try:
            yield
        finally:
            self.mask, self._conditional, self._nested = before

    @contextmanager
    def _exact(self, rounded: bool) -> Iterator[None]:
        """Enter an expression that is rounded to an integer, if it is."""
        before, self._rounded = self._rounded, self._rounded or rounded
        try:
            yield
        finally:
            self._rounded = before

    def _alike(self, *expressions: Any) -> list[Any]:
        values = [self.value(expression) for expression in expressions]
        lanes = max(map(lanes_of, values))
        return [broadcast(value, lanes) for value in values]

    def _rename(self, variable: Any, value: Any) -> Any:
        new = variable if lanes_of(value) == 1 else tvm.ir.Var(variable.name, value.ty)
        self._names[variable] = new
        return new

    def _divide(self, dividend: Any, divisor: Any, expression: Any) -> Any:
        """Divide floats; by the same number in all lanes, multiply by its reciprocal, which is one rounding more.

        Where the reciprocal could overflow or lose bits, that of the divisor times a power of two is taken, and the
        product multiplied by the same power. A branch to a division would not do: LLVM divides in either case.
        """
        scalar = self.value(expression)
        if lanes_of(scalar) > 1:
            return prim.Div(dividend, divisor)
        one, low, high = (tirx.const(number, "float32") for number in (1.0, 2.0**-126, 2.0**126))
        if isinstance(scalar, prim.FloatImm):
            if not 2.0**-126 <= abs(float(scalar.value)) <= 2.0**126:
                return prim.Div(dividend, divisor)
            return dividend * broadcast(one / scalar, self._lanes)
        size = tirx.abs(scalar)
        smaller, larger = (tirx.const(2.0**power, "float32") for power in (-64, 64))
        power = prim.Select(size > high, smaller, prim.Select(size < low, larger, one))
        return dividend * broadcast(one / (scalar * power), self._lanes) * broadcast(power, self._lanes)

    def _load(self, load: Any) -> Any:
        buffer = load.source
        (index,) = _only(load.indices)
        found = self.linear(index)
        if found is not None:
            base, stride = found
            if stride == 0:
                if self._conditional and not self._inside(buffer, base):
                    raise NotVectorizable("a scalar load that only some lanes may do")
                return tirx.BufferLoad(buffer, [base])
            if stride == 1:
                ramp = self._ramp(base)
                if (
                    self.mask is None
                    or self._ends_scratch(buffer, base)
                    or (buffer not in self._scratch and self._every_lane_inside(buffer, found, index))
                ):
                    return tirx.BufferLoad(buffer, [ramp])
                return tirx.op.masked_load(wide_type(element_type(load), self._lanes), buffer, ramp, self.mask)
        elif not self._conditional and self._active:
            shuffled = self._shuffled_load(load, index)
            if shuffled is not None:
                return shuffled
        guarded = self.mask is not None and not self._every_lane_inside(buffer, found, index)
        same, apart = (None, index) if found is not None else self._parts(index)
        lanewise = same is not None and (not guarded or self._inside(buffer, same))
        own = isinstance(self._scratch, Scratch) and self._scratch.holds(buffer)
        if own and (guarded or (found is None and not lanewise)):
            # TVM's lowering looks at what is loaded from its own buffers, and only knows evenly spaced addresses.
            raise NotVectorizable("a gather from a buffer of the kernel's own")
        addresses = self._ramp(*found) if found is not None else self.wide(apart if lanewise else index)
        if guarded:
            zero = tirx.const(0, element_type(addresses))
            if not self._inside(buffer, zero):
                raise NotVectorizable("a gather from a tensor that may be empty")
            addresses = choose(self.mask, addresses, broadcast(zero, self._lanes))
        return self._gather(buffer, same, addresses) if lanewise else tirx.BufferLoad(buffer, [addresses])

    def _parts(self, index: Any) -> tuple[Any, Any]:
        """Divide an index into what is the same in all lanes, None if nothing is, and the rest."""
        if not isinstance(index, prim.Add):
            return (None, index) if self._varies(self._at_lane(index)) else (index, None)
        same: Any = None
        apart: Any = None
        for one, other in map(self._parts, (index.a, index.b)):
            same = one if same is None else same if one is None else same + one
            apart = other if apart is None else apart if other is None else apart + other
        return same, apart

    def _gather(self, buffer: Any, same: Any, addresses: Any) -> Any:
        """Load lane by lane from addresses of which a part is the same in all lanes.

        Where that part alone changes from one iteration of a loop around to the next, the others are taken out of their
        vector before the loop.
        """
        same = self.value(same)
        order = [tirx.const(lane, "int32") for lane in range(self._lanes)]
        return prim.Shuffle(
            [tirx.BufferLoad(buffer, [same + prim.Shuffle([addresses], [lane])]) for lane in order], order
        )

    def _shuffled_load(self, load: Any, index: Any) -> Any:
        """Load from addresses that follow a pattern known now, such as ``k // 2``: whole vectors, then one shuffle."""
        addresses = [self._at(index, lane) for lane in range(self._active)]
        offsets = []
        for address in addresses:
            offset = self._analyzer.simplify(address - addresses[0])
            if not isinstance(offset, prim.IntImm):
                return None
            offsets.append(int(offset))
        windows: list[int] = []
        for offset in sorted(set(offsets)):
            if not windows or offset >= windows[-1] + self._lanes:
                windows.append(offset)
        if len(windows) > 2:
            return None
        vectors, lanes = [], [0] * self._lanes
        for number, window in enumerate(windows):
            inside = [offset - window for offset in offsets if 0 <= offset - window < self._lanes]
            ramp = self._ramp(self._analyzer.simplify(addresses[0] + window))
            if max(inside) == self._lanes - 1:
                vectors.append(tirx.BufferLoad(load.source, [ramp]))
            else:
                limit = broadcast(tirx.const(max(inside) + 1, self._integer), self._lanes)
                mask = self._ramp(tirx.const(0, self._integer)) < limit
                vectors.append(tirx.op.masked_load(wide_type(element_type(load), self._lanes), load.source, ramp, mask))
            for lane, offset in enumerate(offsets):
                if 0 <= offset - window < self._lanes:
                    lanes[lane] = number * self._lanes + offset - window
        return prim.Shuffle(vectors, [tirx.const(lane, "int32") for lane in lanes])

    def _store(self, store: Any) -> Any:
        (index,) = _only(store.indices)
        found = self.linear(index)
        value = self.wide(store.value)
        if found is not None and found[1] == 0:
            raise NotVectorizable("all lanes store to one address")
        if found is not None and found[1] == 1:
            ramp = self._ramp(found[0])
            if self._streams and not self._conditional and self._active:
                if (streamed := stream(store.buffer, found[0], value, self._active, self._analyzer)) is not None:
                    return streamed
            if self.mask is None or self._ends_scratch(store.buffer, found[0]):
                return tirx.BufferStore(store.buffer, value, [ramp])
            if store.buffer in self._scratch and not self._conditional:
                raise NeedsWholeVectors("a masked store to a buffer of the thread's own")
            return tirx.Evaluate(tirx.op.masked_store(store.buffer, value, ramp, self.mask))
        if self.mask is not None:
            raise NotVectorizable("a scattered store that not every lane may do")
        return tirx.BufferStore(store.buffer, value, [self._ramp(*found) if found is not None else self.wide(index)])

    def _if_then_else(self, statement: Any) -> Any:
        scalar, vector = self.condition(statement.condition)
        if vector is None:
            if scalar is None:
                return self.statement(statement.then_case)
            otherwise = None if statement.else_case is None else self.statement(statement.else_case)
            return tirx.IfThenElse(scalar, self.statement(statement.then_case), otherwise)
        if statement.else_case is not None:
            raise NotVectorizable("an else branch of some lanes")
        with self.under(vector):
            inner = self.statement(statement.then_case)
        return inner if scalar is None else tirx.IfThenElse(scalar, inner, None)

    def _for(self, loop: Any) -> Any:
        low, extent = self._at_lane(loop.min), self._at_lane(loop.extent)
        if self._varies(low) or self._varies(extent) or loop.step is not None:
            raise NotVectorizable("an inner loop that differs between lanes")
        self._analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(low, extent))
        return tirx.For(loop.loop_var, low, extent, loop.kind, self.statement(loop.body), annotations=loop.annotations)

    def _call(self, call: Any) -> Any:
        name = operation(call)
        if name == "likely":
            return self.value(call.args[0])
        if name == "if_then_else":
            return self._choice(*call.args)
        args = [self.value(argument) for argument in call.args]
        lanes = max((lanes_of(argument) for argument in args if not isinstance(argument, tvm.ir.StringImm)), default=1)
        if lanes == 1:
            return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, ret_ty=call.ty)
        if imported(call) in LANEWISE:
            name = of_lanes(imported(call), lanes)
            if name not in DEFINITIONS:
                raise NotVectorizable(f"{imported(call)} of {lanes} lanes")
            return tirx.call_pure_extern(wide_type(element_type(call), lanes), name, *args[1:])
        wide = tvm.ir.PrimType(wide_type(element_type(call), lanes))
        if calls_by_name(call):
            args = [args[0], *(broadcast(argument, lanes) for argument in args[1:])]
            return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, ret_ty=wide)
        if name not in _LANEWISE or (name in _SINGLE_PRECISION_ONLY and element_type(call) == "float64"):
            raise NotVectorizable(f"call of {name}")
        args = [broadcast(argument, lanes) for argument in args]
        return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, ret_ty=wide)

    def _choice(self, condition: Any, then: Any, otherwise: Any) -> Any:
        with self._loads.noted() as loads:
            scalar, vector = self.condition(condition)
        if is_false(scalar):  # beyond the end of a padded tensor, where nothing may be loaded
            return self.value(otherwise)
        if vector is not None:
            with self._loads.known(loads), self.under(vector):
                chosen = self.wide(then)
            with self._loads.known(loads), self.under(vector, negate=True):
                other = self.wide(otherwise)
            chosen = choose(vector, chosen, other)
        elif scalar is None:
            chosen = self.value(then)
        else:
            with self._loads.known([]):
                chosen = self.value(then)
        if scalar is None:
            return chosen
        with self._loads.known([]):
            other = self.value(otherwise)
        lanes = max(lanes_of(chosen), lanes_of(other))
        return tirx.if_then_else(scalar, broadcast(chosen, lanes), broadcast(other, lanes))


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, prim.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    if isinstance(condition, tvm.ir.Call) and operation(condition) == "likely":
        return _conjuncts(condition.args[0])
    return [condition]


def _only(indices: Any) -> Any:
    if len(indices) != 1:
        raise NotVectorizable("a tensor that is not flat")
    return indices
