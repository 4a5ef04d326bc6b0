"""Counts the arithmetic of a PrimFunc from its body: loop extents times the operations of the statements inside.

TVM's ``tvm.s_tir.analysis.estimate_tir_flops`` adds everything to one number, takes a call such as ``exp`` as free, and
refuses symbolic loops; here multiplications and additions are apart, and a count may be symbolic.

An operation counts when it works on data, that is when a loaded value flows into it: the arithmetic of addresses, loop
indices and constants does not. Conditions (padding tests, the condition of a select) are not counted, and of the
branches of a choice the dearer one is. A block with a predicate runs at most once for each point of its domain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import target, tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, SBlockRealize

from tvm_ext.graph.flops import Flops, dearest
from tvm_ext.graph.symbolic import Dim, apply_function, minimum, product, symbol, symbols_of

_ONE_MULTIPLY, _ONE_ADD, _ONE_OTHER = Flops(multiply=1), Flops(add=1), Flops(other=1)
_BINARY: dict[type, Flops] = {
    prim.Mul: _ONE_MULTIPLY,
    prim.Add: _ONE_ADD,
    prim.Sub: _ONE_ADD,
    **dict.fromkeys((prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max), _ONE_OTHER),
    **dict.fromkeys((prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or), _ONE_OTHER),
    **dict.fromkeys((prim.BitwiseAnd, prim.BitwiseOr, prim.BitwiseXor, prim.LShift, prim.RShift), _ONE_OTHER),
}
_SIZE_FUNCTIONS = {
    prim.FloorDiv: "floordiv",
    prim.Div: "floordiv",  # sizes are not negative, so truncation is the floor
    prim.FloorMod: "floormod",
    prim.Mod: "floormod",
    prim.Min: "min",
    prim.Max: "max",
}
# Intrinsics that compute one value from their arguments, by the name after "tirx." or "prim.".
_INTRINSICS: dict[str, Flops] = {
    **dict.fromkeys(
        """acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil copysign cos
        cosh erf exp exp10 exp2 fabs floor fmod hypot isfinite isinf isnan ldexp log log10 log1p log2 nearbyint
        nextafter popcount pow round rsqrt shift_left shift_right sigmoid
        sin sinh sqrt tan tanh trunc clz ctpop""".split(),
        _ONE_OTHER,
    ),
    "fma": Flops(multiply=1, add=1),
    "llvm.lrint": _ONE_OTHER,
    # Four 8-bit products added to a 32-bit sum.
    "dp4a": Flops(multiply=4, add=4),
    "reinterpret": Flops(),
    "likely": Flops(),
}
# Functions in LLVM's own language, by name: rounding to bfloat16 is a conversion; two products, added to each lane.
_IMPORTED = (("tvm_ext_bfloat16_dot", Flops(multiply=2, add=2)), ("tvm_ext_bfloat16", Flops()))
# Statements evaluated for their effect on synchronisation or on the compiler, not on data.
_NO_ARITHMETIC = {"assume", "likely", "prefetch", "storage_sync", "tvm_storage_sync", "undef"}
CONTROL_REGISTER = "control_register"
"""Name of the buffer through which a kernel sets modes of the processor; what is done in it is no arithmetic."""
_REDUCTION = 2  # tvm.tirx.IterVar.CommReduce


class SizeReader:
    """Turns TVM's integer expressions into sizes, and gives each symbolic variable a name of its own."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._taken: set[str] = set()

    def name(self, variable: Any) -> str:
        """Name a symbolic variable: its own name, with a number where another variable has the same."""
        found = self._names.get(variable)
        if found is None:
            base = found = variable.name
            number = 0
            while found in self._taken:
                number += 1
                found = f"{base}_{number}"
            self._taken.add(found)
            self._names[variable] = found
        return found

    def size(self, expression: Any) -> Dim:
        """Read an integer expression as a size; one that is no size formula becomes a symbol."""
        if isinstance(expression, int):
            return expression
        kind = type(expression)
        if kind is prim.IntImm:
            return int(expression.value)
        if isinstance(expression, tvm.ir.Var):
            return symbol(self.name(expression))
        if kind is prim.Cast:
            return self.size(expression.value)
        if kind is prim.Add:
            return self.size(expression.a) + self.size(expression.b)
        if kind is prim.Sub:
            return self.size(expression.a) - self.size(expression.b)
        if kind is prim.Mul:
            return self.size(expression.a) * self.size(expression.b)
        right = self.size(expression.b) if kind in _SIZE_FUNCTIONS else 0
        if right != 0:
            return apply_function(_SIZE_FUNCTIONS[kind], self.size(expression.a), right)
        return 0 if kind in (prim.Min, prim.Max) and self.size(expression.a) == 0 else symbol(str(expression))


class _Uncountable(Exception):
    """Raised inside a count when a statement has no static count."""


def prim_func_flops(func: Any, sizes: SizeReader | None = None) -> Flops | None:
    """Count the arithmetic of one call of a PrimFunc.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        With blocks or without, scheduled or not.
    sizes : SizeReader, optional
        Names for the symbolic variables of the function.

    Returns
    -------
    flops : Flops, or None
        None when there is no static count: a ``while`` loop, a call of something that is not a known intrinsic, a loop
        whose extent depends on data or on another loop.
    """
    sizes = sizes or SizeReader()
    try:
        flops = _Counter(sizes).statement(func.body, _Times())
    except _Uncountable:
        return None
    parameters = frozenset().union(*(symbols_of(size) for shape in parameter_shapes(func, sizes) for size in shape))
    return flops if symbols_of(flops.total) <= parameters else None


def parameter_shapes(func: Any, sizes: SizeReader) -> list[tuple[Dim, ...]]:
    """List the shape of each parameter of a PrimFunc; a scalar parameter is a shape of one size, its value."""
    shapes: list[tuple[Dim, ...]] = []
    for parameter in func.params:
        if isinstance(parameter.ty, tirx.buffer.BufferType):
            shapes.append(tuple(sizes.size(extent) for extent in parameter.ty.shape))
        else:
            shapes.append((sizes.size(parameter),))
    return shapes


@dataclass(frozen=True)
class _Times:
    """How often a statement runs: executions of the block around it, times the loops since."""

    blocks: Dim = 1
    loops: Dim = 1

    @property
    def all(self) -> Dim:
        return self.blocks * self.loops


class _Counter:
    def __init__(self, sizes: SizeReader) -> None:
        self._sizes = sizes
        self._bound: dict[Any, bool] = {}  # variables of let: whether data flows into them
        self._statements: dict[type, Callable[[Any, _Times], Flops]] = {
            tirx.SeqStmt: lambda s, times: self._sum(s.seq, times),
            tirx.For: self._for,
            tirx.BufferStore: self._store,
            tirx.IfThenElse: self._if_then_else,
            tirx.AttrStmt: lambda s, times: self.statement(s.body, times),
            tirx.Bind: self._bind,
            tirx.Evaluate: self._evaluate,
            SBlockRealize: self._block,
            SBlock: lambda s, times: self.statement(s.body, times),
            **dict.fromkeys((tirx.AllocBuffer, tirx.DeclBuffer, tirx.AssertStmt), lambda s, times: Flops()),
        }

    def statement(self, statement: Any, times: _Times) -> Flops:
        """Count the operations of all executions of a statement."""
        count = self._statements.get(type(statement))
        if count is None:
            raise _Uncountable(type(statement).__name__)
        return count(statement, times)

    def _sum(self, statements: Any, times: _Times) -> Flops:
        total = Flops()
        for statement in statements:
            total = total + self.statement(statement, times)
        return total

    def _for(self, loop: Any, times: _Times) -> Flops:
        step = self._sizes.size(loop.step) if loop.step is not None else 1
        extent = -(-self._sizes.size(loop.extent) // step)
        return self.statement(loop.body, _Times(times.blocks, times.loops * extent))

    def _block(self, realize: Any, times: _Times) -> Flops:
        block = realize.block
        extents = [(self._sizes.size(v.dom.extent), v.iter_type == _REDUCTION) for v in block.iter_vars]
        loops = times.loops
        if not (type(realize.predicate) is prim.IntImm and realize.predicate.value):
            loops = minimum(loops, product(extent for extent, _ in extents))
        inside = times.blocks * loops
        total = self.statement(block.body, _Times(inside))
        if block.init is not None:
            reduced = product(extent for extent, is_reduction in extents if is_reduction)
            total = total + self.statement(block.init, _Times(inside // reduced if reduced != 0 else 0))
        return total

    def _store(self, statement: Any, times: _Times) -> Flops:
        if statement.buffer.name == CONTROL_REGISTER:
            return Flops()
        return self.value(statement.value)[0].times(times.all * statement.value.ty.dtype.lanes)

    def _if_then_else(self, statement: Any, times: _Times) -> Flops:
        branches = [statement.then_case] + ([statement.else_case] if statement.else_case is not None else [])
        return dearest([self.statement(branch, times) for branch in branches])

    def _bind(self, statement: Any, times: _Times) -> Flops:
        flops, self._bound[statement.var] = self.value(statement.value)
        return flops.times(times.all)

    def _evaluate(self, statement: Any, times: _Times) -> Flops:
        value = statement.value
        if isinstance(value, tvm.ir.Call):
            name = _intrinsic(value)
            sets_mode = name == "call_llvm_intrin" and str(value.ty) == str(tvm.ir.PrimType("void"))
            if name not in _NO_ARITHMETIC and not sets_mode:  # an instruction without a value sets a register
                raise _Uncountable(name)
        return Flops()

    def value(self, expression: Any) -> tuple[Flops, bool]:
        """Operations to compute an expression, and whether data flows into its value."""
        kind = type(expression)
        if kind is tvm.ir.TensorLoad:
            return Flops(), True
        if kind in (prim.IntImm, prim.FloatImm, tvm.ir.StringImm):
            return Flops(), False
        if isinstance(expression, tvm.ir.Var):
            return Flops(), self._bound.get(expression, False)
        if kind in _BINARY:
            return self._operation(_BINARY[kind], (expression.a, expression.b))
        if kind is prim.Cast:
            return self.value(expression.value)
        if kind in (prim.Not, prim.BitwiseNot):
            return self._operation(_ONE_OTHER, (expression.a,))
        if kind is prim.Select:
            return self._choice(expression.condition, expression.true_value, expression.false_value)
        if kind in (prim.Broadcast, prim.Ramp):
            return self.value(expression.value if kind is prim.Broadcast else expression.base)
        if kind is prim.Let:
            flops, self._bound[expression.var] = self.value(expression.value)
            body, from_data = self.value(expression.body)
            return flops + body, from_data
        if kind is tvm.ir.Call:
            return self._call(expression)
        raise _Uncountable(kind.__name__)

    def _operation(self, cost: Flops, operands: Any) -> tuple[Flops, bool]:
        total = Flops()
        from_data = False
        for operand in operands:
            flops, is_data = self.value(operand)
            total = total + flops
            from_data = from_data or is_data
        return (total + cost if from_data else total), from_data

    def _choice(self, condition: Any, *branches: Any) -> tuple[Flops, bool]:
        counts, from_data = zip(*(self.value(branch) for branch in branches), strict=True)
        return dearest(list(counts)), any(from_data) or self.value(condition)[1]

    def _call(self, call: Any) -> tuple[Flops, bool]:
        name = _intrinsic(call)
        if name == "if_then_else":
            return self._choice(*call.args)
        operands = call.args
        if name == "call_pure_extern":
            for known, cost in _IMPORTED:
                if str(call.args[0].value).startswith(known):
                    return self._operation(cost, call.args[1:])
        if name == "reinterpret" and _is_widened_half(call):
            return self.value(call.args[0].a)
        if name == "call_llvm_pure_intrin":
            name, operands = str(target.codegen.llvm_get_intrinsic_name(int(call.args[0]))), call.args[1:]
        if name not in _INTRINSICS:
            raise _Uncountable(name)
        return self._operation(_INTRINSICS[name], operands)


def _is_widened_half(call: Any) -> bool:
    """Whether the bits of a bfloat16 are moved to where a float32 has them: a conversion, which is no arithmetic."""
    shifted = call.args[0]
    return (
        isinstance(shifted, prim.LShift)
        and str(call.ty.dtype) == "float32"
        and isinstance(shifted.a, prim.Cast)
        and str(shifted.a.value.ty.dtype) == "uint16"
    )


def _intrinsic(call: Any) -> str:
    return getattr(call.op, "name", "").removeprefix("tirx.").removeprefix("prim.")
