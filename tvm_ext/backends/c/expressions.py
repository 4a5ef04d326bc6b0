"""From expressions of TIR to C text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.arithmetic import Arithmetic
from tvm_ext.backends.c.constants import folded, literal
from tvm_ext.backends.c.helpers import Helpers
from tvm_ext.backends.c.instructions import element_dot, instruction, opaque
from tvm_ext.backends.c.masks import BINARY, COMPARISONS, LOGIC, type_of
from tvm_ext.backends.c.types import CType, ctype
from tvm_ext.errors import CompileError
from tvm_ext.schedules.simd.imported import OPAQUE, SDOT, SUDOT
from tvm_ext.schedules.simd.vector import operation

_LIBRARY = {
    name: name for name in (
        "exp exp2 exp10 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sqrt "
        "floor ceil trunc nearbyint pow fmod atan2 hypot copysign nextafter"
    ).split()
} | {"round": "nearbyint", "power": "pow"}  # fmt: skip
"""Functions of TIR -> those of C's library; TVM's ``round`` goes to even numbers, and LLVM's code of it, too."""


class Expressions(Arithmetic):
    """Writes expressions of one kernel.

    Parameters
    ----------
    helpers : Helpers
        Gets what is asked for.
    kernel : str
        For messages.
    place : callable
        Gives, of a buffer, the C name of a pointer to its data.
    register : callable
        Gives, of a buffer and an index, the C name of the variable that an element or vector of it is in; None where
        the buffer lies in memory.
    """

    def __init__(
        self,
        helpers: Helpers,
        kernel: str,
        place: Callable[[Any], str],
        register: Callable[[Any, Any], str | None],
    ) -> None:
        self.helpers, self._kernel, self._place, self.register = helpers, kernel, place, register
        self.names: dict[Any, str] = {}
        self._count = itertools.count()
        self.masks: dict[Any, int] = {}  # bits of the lanes of variables that are masks
        self.data: set[Any] = set()  # variables that depend on what tensors hold
        self.ramps: dict[Any, Any] = {}  # variables that stand for evenly spaced numbers
        self.values: dict[Any, int] = {}  # of loops that are written out
        self.analyzer = tvm.sym.Analyzer()

    def refuse(self, what: str) -> CompileError:
        """Make the error of what cannot be written."""
        return CompileError(
            f"kernel {self._kernel} holds {what}, for which C sources have nothing; compile a library instead"
        )

    # ---- values

    def text(self, e: Any) -> str:
        """Write a value; a truth value of one lane as 0 or 1."""
        kind = type(e)
        if kind in (prim.IntImm, prim.FloatImm):
            return literal(e.value, type_of(e))
        if isinstance(e, tvm.ir.Var):
            if e in self.values:
                return literal(self.values[e], type_of(e))
            if e not in self.names:
                raise self.refuse(f"a variable {e.name} without a value")
            return self.as_bytes(e, type_of(e)) if e in self.masks else self.names[e]
        if isinstance(e.ty, tvm.ir.PointerType):
            return self._address(e)
        result = type_of(e)
        if result.element == "bool" and result.lanes > 1:
            return self.as_bytes(e, result)
        constant = folded(e, self.values)
        if constant is not None and result.lanes == 1:
            return literal(constant, result)
        if kind in BINARY or kind in (prim.FloorDiv, prim.FloorMod):
            return self.binary(e, kind, result)
        if kind in COMPARISONS:
            return f"({self.text(e.a)} {COMPARISONS[kind]} {self.text(e.b)})"
        if kind in LOGIC:
            return f"({self.text(e.a)} {LOGIC[kind] * 2} {self.text(e.b)})"
        if kind is prim.Not or (kind is prim.BitwiseNot and result.element == "bool"):  # all bits of 1 are 254
            return f"(!{self.text(e.a)})"
        if kind is prim.BitwiseNot:
            return f"(({result.name})~{self.text(e.a)})"
        if kind in (prim.Max, prim.Min):
            function = self.helpers.extreme(result, "max" if kind is prim.Max else "min")
            return f"{function}({self.text(e.a)}, {self.text(e.b)})"
        if kind is prim.Select:
            return self._select(e, result)
        if kind is prim.Cast:
            return self._cast(e, result)
        if kind is prim.Broadcast:
            return f"{self.helpers.splat(result)}({self.text(e.value)})"
        if kind is prim.Ramp:
            return f"{self.helpers.ramp(result)}({self.text(e.base)}, {self.text(e.stride)})"
        if kind is prim.Shuffle:
            return self._shuffle(e, result)
        if kind is prim.Let:
            return self.let(e, self.text)
        if kind is tvm.ir.TensorLoad:
            return self._load(e, result)
        if kind is tvm.ir.Call:
            return self._call(e, result)
        raise self.refuse(f"an expression {kind.__name__}")

    def _select(self, e: Any, result: CType) -> str:
        a, b = self.text(e.true_value), self.text(e.false_value)
        if type_of(e.condition).lanes == 1:
            return f"({self.text(e.condition)} ? {a} : {b})"
        return f"{self.helpers.select(result)}({self.mask(e.condition, result.bits)}, {a}, {b})"

    def _cast(self, e: Any, result: CType) -> str:
        source = type_of(e.value)
        if result.lanes == 1:
            value = self.text(e.value)
            return f"({value} != 0)" if result.element == "bool" else f"(({result.name}){value})"
        if source.element == "bool":
            integers = result.integer
            self.helpers.type(integers)
            ones = f"(-{self.mask(e.value, result.bits)})"
            return ones if result == integers else f"__builtin_convertvector({ones}, {self.helpers.type(result)})"
        return f"__builtin_convertvector({self.text(e.value)}, {self.helpers.type(result)})"

    def _shuffle(self, e: Any, result: CType) -> str:
        lanes = [int(index) for index in e.indices]
        if all(type_of(vector).lanes == 1 for vector in e.vectors):
            scalars = [self.text(vector) for vector in e.vectors]
            if len(lanes) == 1:
                return scalars[lanes[0]]
            return f"(({self.helpers.type(result)}){{{', '.join(scalars[lane] for lane in lanes)}}})"
        vectors = [self.text(vector) for vector in e.vectors]
        sizes = [type_of(vector).lanes for vector in e.vectors]
        if len(lanes) == 1 and len(vectors) == 1:
            return f"({vectors[0]})[{lanes[0]}]"
        if len(set(sizes)) > 1:
            raise self.refuse("a shuffle of vectors of several lengths")
        self.helpers.type(result)
        size = sizes[0]
        while len(vectors) > 2:  # two side by side are one of twice the length
            size *= 2
            both = ", ".join(map(str, range(size)))
            vectors += vectors[-1:] * (len(vectors) % 2)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [f"__builtin_shufflevector({first}, {second}, {both})" for first, second in pairs]
        return f"__builtin_shufflevector({vectors[0]}, {vectors[-1]}, {', '.join(map(str, lanes))})"

    def let(self, e: Any, rest: Callable[[Any], str]) -> str:
        """Write a value that is named, and what uses the name."""
        declaration = self.declared(e.var, e.value)
        return f"__extension__ ({{ {declaration} {rest(e.body)}; }})"

    def declared(self, var: Any, value: Any) -> str:
        """Write the declaration of a variable that stands for a value."""
        kind = type_of(var)
        if kind.element == "bool" and kind.lanes > 1:
            bits = self.mask_bits(value)
            text = self.mask(value, bits)
            self.masks[var] = bits
            kind = CType(f"int{bits}", kind.lanes)
        else:
            text = self.text(value)
        if isinstance(value, prim.Ramp):
            self.ramps[var] = value
        if self.is_data(value):
            self.data.add(var)
        name = self.named(var)
        return f"const {self.helpers.type(kind)} {name} = {text};"

    def named(self, var: Any) -> str:
        """Give a variable a name of its own."""
        plain = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in str(var.name)) or "v"
        self.names[var] = f"{plain}_{next(self._count)}"
        return self.names[var]

    def bytes_of(self, e: Any) -> str:
        """Write a load, call or shuffle of truth values: bytes that are 0 or 1."""
        result = type_of(e).of("uint8")
        if isinstance(e, tvm.ir.TensorLoad):
            return self._load(e, result)
        if isinstance(e, prim.Shuffle):
            return self._shuffle(e, result)
        return self._call(e, result)

    # ---- memory

    def pointer(self, buffer: Any, index: Any) -> str:
        """Write the address of an element."""
        start = folded(index, self.values)
        if start == 0:
            return self._place(buffer)
        return f"({self._place(buffer)} + {self.text(index)})"

    def _address(self, e: Any) -> str:
        if isinstance(e, tvm.ir.Call) and operation(e) == "address_of" and isinstance(e.args[0], tvm.ir.TensorLoad):
            return self.pointer(e.args[0].source, self.plain(e.args[0].indices[0]))
        raise self.refuse(f"a pointer made by {operation(e) if isinstance(e, tvm.ir.Call) else type(e).__name__}")

    def plain(self, index: Any) -> Any:
        """Give the evenly spaced numbers that an index stands for, where it is a variable."""
        return self.ramps.get(index, index) if isinstance(index, tvm.ir.Var) else index

    def _load(self, e: Any, result: CType) -> str:
        buffer, index = e.source, self.plain(e.indices[0])
        kept = self.register(buffer, index)
        if kept is not None:
            return kept
        return self.load(buffer, index, result)

    def load(self, buffer: Any, index: Any, result: CType) -> str:
        """Write the load of a value of some type from the elements at an index."""
        if type_of_buffer(buffer).lanes > 1:  # in memory the type has another name, which is no operand of a choice
            return f"(({self.helpers.type(result)}){self._place(buffer)}[{self.text(index)}])"
        if type_of(index).lanes == 1:
            if result.lanes > 1:  # read as another type
                return self._vector(buffer, index, result)
            return f"{self._place(buffer)}[{self.text(index)}]"
        if isinstance(index, prim.Ramp):
            stride = folded(index.stride, self.values)
            if stride == 1:
                return self._vector(buffer, index.base, result)
            if stride == 0:
                return f"{self.helpers.splat(result)}({self._place(buffer)}[{self.text(index.base)}])"
            return f"{self.helpers.strided(result)}({self.pointer(buffer, index.base)}, {self.text(index.stride)})"
        if isinstance(index, prim.Broadcast):
            return f"{self.helpers.splat(result)}({self._place(buffer)}[{self.text(index.value)}])"
        return f"{self.helpers.gather(result, type_of(index))}({self._place(buffer)}, {self.text(index)})"

    def _vector(self, buffer: Any, index: Any, result: CType) -> str:
        """Write what begins at an element, of another type than the elements are."""
        return f"(({self.helpers.type(result)})*(const {self.helpers.memory(result)} *){self.pointer(buffer, index)})"

    # ---- calls

    def _call(self, e: Any, result: CType) -> str:
        name = operation(e)
        if name == "if_then_else":
            condition, a, b = e.args
            if type_of(condition).lanes > 1:
                mask = self.mask(condition, result.bits)
                return f"{self.helpers.select(result)}({mask}, {self.text(a)}, {self.text(b)})"
            return f"({self.text(condition)} ? {self.text(a)} : {self.text(b)})"
        if name in ("likely", "tvm_thread_invariant", "ignore_loop_partition"):
            return self.text(e.args[0])
        if name == "reinterpret":
            return self._reinterpret(e.args[0], result)
        if name == "masked_load":
            return self._masked_load(e, result)
        if name in ("call_llvm_pure_intrin", "call_llvm_intrin"):
            known = str(tvm.target.codegen.llvm_get_intrinsic_name(int(e.args[0].value)))
            return self._instruction(known, e.args[1:], result)
        if name in ("call_pure_extern", "call_extern"):
            return self._extern(str(e.args[0].value), e.args[1:], result)
        if name == "abs" or name == "fabs":
            return f"{self.helpers.magnitude(result)}({self.text(e.args[0])})"
        if name == "fma":
            return f"{self.helpers.fused(result)}({', '.join(map(self.text, e.args))})"
        if name in ("isnan", "isinf", "isfinite"):
            return f"({name}({self.text(e.args[0])}) != 0)"
        if name == "rsqrt":
            root = self.c_call("sqrtf" if result.element == "float32" else "sqrt", result, e.args)
            return f"({self._one(result)} / {root})"
        if name == "sigmoid":
            power = self.c_call(self._c_name("exp", result), result, (-e.args[0],))
            return f"({self._one(result)} / ({self._one(result)} + {power}))"
        if name == "popcount":
            return self.c_call("__builtin_popcountll" if result.bits == 64 else "__builtin_popcount", result, e.args)
        if name in _LIBRARY:
            return self.c_call(self._c_name(_LIBRARY[name], result), result, e.args)
        raise self.refuse(f"a call of {name}")

    def _one(self, result: CType) -> str:
        one = literal(1.0, result.wide(1))
        return one if result.lanes == 1 else f"{self.helpers.splat(result)}({one})"

    def _c_name(self, function: str, result: CType) -> str:
        if not result.is_float:
            raise self.refuse(f"{function} of {result.element}")
        return function if result.element == "float64" else f"{function}f"

    def c_call(self, function: str, result: CType, operands: Any) -> str:
        """Write a call of C's library, in every lane."""
        texts = [self.text(operand) for operand in operands]
        if result.lanes == 1:
            call = f"{function}({', '.join(texts)})"
            return f"(({result.name}){call})" if result.element == "float16" else call
        return f"{self.helpers.lanewise(function, type_of(operands[0]), len(texts), result)}({', '.join(texts)})"

    def _reinterpret(self, e: Any, result: CType) -> str:
        source = type_of(e)
        if source == result:
            return self.text(e)
        if isinstance(e, tvm.ir.TensorLoad) and self.register(e.source, self.plain(e.indices[0])) is None:
            index = self.plain(e.indices[0])
            if isinstance(index, prim.Ramp) and folded(index.stride, self.values) == 1:
                return self._vector(e.source, index.base, result)
        if source.lanes > 1 and result.lanes > 1:
            return f"(({self.helpers.type(result)}){self.text(e)})"
        return f"{self.helpers.bits(source, result)}({self.text(e)})"

    def _masked_load(self, e: Any, result: CType) -> str:
        buffer, index, mask = e.args[0], self.plain(e.args[1]), e.args[2]
        kept = self.register(buffer, index)
        if kept is not None or type_of_buffer(buffer).lanes > 1:
            value = kept or self.load(buffer, index, result)
            return f"{self.helpers.select(result)}({self.mask(mask, result.bits)}, {value}, ({result.name}){{0}})"
        if not isinstance(index, prim.Ramp) or folded(index.stride, self.values) != 1:
            raise self.refuse("a masked load of scattered elements")
        return (
            f"{self.helpers.masked(result, False)}({self.pointer(buffer, index.base)}, {self.mask(mask, result.bits)})"
        )

    def _instruction(self, name: str, operands: Any, result: CType) -> str:
        if name == "llvm.vector.reduce.and" and result.element == "bool":
            (mask,) = operands
            bits = self.mask_bits(mask)
            return f"{self.helpers.every_lane(CType(f'int{bits}', type_of(mask).lanes))}({self.mask(mask, bits)})"
        kinds = [type_of(operand) for operand in operands]
        function = instruction(self.helpers, name, result, kinds)
        return f"{function}({', '.join(map(self.text, operands))})"

    def _extern(self, name: str, operands: Any, result: CType | None) -> str:
        if name in (SDOT, SUDOT):
            return f"{element_dot(self.helpers, name)}({', '.join(map(self.text, operands))})"
        if name in OPAQUE.values() and result is not None:
            return f"{opaque(self.helpers, name, result)}({', '.join(map(self.text, operands))})"
        plain = name.removesuffix("f")
        if plain in _LIBRARY and result is not None and result.lanes == 1:
            return f"{name}({', '.join(map(self.text, operands))})"
        raise self.refuse(f"a call of the function {name}")


def type_of_buffer(buffer: Any) -> CType:
    """Read the type of a buffer's elements."""
    return ctype(str(buffer.dtype))
