"""Translates expressions of TIR, once, into Python functions of the state of all threads.

Numbers that are the same for all threads stay Python's and numpy's scalars. What depends on nothing but the numbers of
thread and block is computed once for a chunk of blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim

from tvm_ext.backends.cuda.emulator import arithmetic
from tvm_ext.backends.cuda.emulator.lanes import Lanes
from tvm_ext.backends.cuda.emulator.memory import Access, Storage, numpy_type
from tvm_ext.backends.cuda.literal_bits import has_no_address
from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.atomics import STARTS
from tvm_ext.schedules.cuda.exponential import FAST_EXP2

Value = Callable[[Lanes], Any]
LONGEST = 32
"""Bytes of the longest vectors that TVM's printer of CUDA knows."""

CONSTANT, THREAD, CHANGING = range(3)

_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    prim.Add: operator.add, prim.Sub: operator.sub, prim.Mul: operator.mul, prim.Div: arithmetic.divide,
    prim.Mod: arithmetic.remainder, prim.FloorDiv: operator.floordiv, prim.FloorMod: operator.mod,
    prim.BitwiseAnd: operator.and_, prim.BitwiseOr: operator.or_, prim.BitwiseXor: operator.xor,
    prim.LShift: operator.lshift, prim.RShift: operator.rshift, prim.EQ: operator.eq, prim.NE: operator.ne,
    prim.LT: operator.lt, prim.LE: operator.le, prim.GT: operator.gt, prim.GE: operator.ge,
    prim.Max: arithmetic.maximum, prim.Min: arithmetic.minimum,
}  # fmt: skip
_SHUFFLES = ("tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down", "tvm_warp_shuffle_xor")


@dataclass(frozen=True)
class Code:
    """A translated expression: what computes it, and what it depends on."""

    run: Value
    kind: int


@dataclass(frozen=True)
class View:
    """A buffer: the slot of its memory, and the type and number of scalars of an element."""

    slot: int
    dtype: np.dtype[Any]
    width: int
    buffer: Any

    def storage(self, lanes: Lanes) -> Storage:
        """Find the memory."""
        found = lanes.storages[self.slot]
        if found is None:
            raise CompileError(f"buffer {self.buffer.name} is used before it is allocated")
        return found


@dataclass(frozen=True)
class Pointer:
    """An address: an element of a view, for each lane."""

    view: View
    index: Value


def operation(call: Any) -> str:
    """Name of the operator of a call, without its dialect."""
    return getattr(call.op, "name", "").removeprefix("tirx.").removeprefix("prim.")


def dtype_of(expression: Any) -> str:
    """Name the type of an expression."""
    return str(expression.ty.dtype)


class Expressions:
    """Translates the expressions of one kernel.

    Parameters
    ----------
    kernel : str
        For messages.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.variables: dict[Any, Code] = {}
        self.slots = 0
        self.views: dict[Any, View] = {}
        self.memories: dict[Any, int] = {}
        self.accesses = 0
        self.narrowest = 16

    def refuse(self, what: str) -> CompileError:
        """Make the error of what cannot be run."""
        return CompileError(f"kernel {self.kernel} holds {what}, which the emulator does not know")

    # ---- variables and memory

    def variable(self, var: Any, kind: int = CHANGING) -> int:
        """Give a variable a slot."""
        slot, self.slots = self.slots, self.slots + 1
        self.variables[var] = Code(lambda lanes: lanes.slots[slot], kind)
        return slot

    def memory(self, key: Any) -> int:
        """Give a memory, known by its variable, a slot."""
        return self.memories.setdefault(key, len(self.memories))

    def view(self, buffer: Any, slot: int | None = None) -> View:
        """See a buffer, whose memory has a slot."""
        if slot is not None:
            dtype = str(buffer.dtype)
            lanes = int(dtype.partition("x")[2] or 1) if "x" in dtype else 1
            self.views[buffer] = View(slot, numpy_type(dtype), lanes, buffer)
        if buffer not in self.views:
            raise self.refuse(f"buffer {buffer.name} without an allocation")
        return self.views[buffer]

    def access(self, buffer: Any, index: Any, view: View) -> Access:
        """Give a number to a place that reads or writes a buffer."""
        self.accesses += 1
        together = view.width
        if isinstance(index, prim.Ramp) and _constant(index.stride) == 1:
            together *= int(index.lanes)
        elif isinstance(index, prim.Add) and isinstance(index.a, prim.Ramp) and _constant(index.a.stride) == 1:
            together *= int(index.a.lanes)
        self.narrowest = min(self.narrowest, view.dtype.itemsize)
        text = f"{buffer.name}[{' '.join(str(index).split())}]"
        scope = str(buffer.scope())
        return Access(self.kernel, f"{buffer.name} ({scope})", text, self.accesses, view.dtype.itemsize, together)

    # ---- values

    def value(self, e: Any) -> Value:
        """Translate an expression; what depends on thread and block alone is kept."""
        return self.kept(self.code(e))

    def kept(self, code: Code) -> Value:
        """Let the value of a chunk be computed once."""
        if code.kind != THREAD:
            return code.run
        run, key = code.run, id(code.run)

        def once(lanes: Lanes) -> Any:
            found = lanes.once.get(key)
            if found is None:
                found = lanes.once[key] = run(lanes)
            return found

        once.__dict__["code"] = run  # keeps `id` unique
        return once

    def code(self, e: Any) -> Code:
        """Translate an expression."""
        kind = type(e)
        if kind is prim.IntImm:
            number = bool(e.value) if dtype_of(e) == "bool" else int(e.value)
            return Code(lambda lanes: number, CONSTANT)
        if kind is prim.FloatImm:
            scalar = numpy_type(dtype_of(e)).type(e.value)
            return Code(lambda lanes: scalar, CONSTANT)
        if isinstance(e, tvm.ir.Var):
            if e not in self.variables:
                raise self.refuse(f"variable {e.name} without a value")
            return self.variables[e]
        if kind in _BINARY:
            return self._apply(_BINARY[kind], e.a, e.b)
        if kind in (prim.And, prim.Or):
            return self._logic(e, kind is prim.And)
        if kind is prim.Not:
            return self._apply(np.logical_not, e.a)
        if kind is prim.BitwiseNot:
            return self._apply(operator.invert, e.a)
        if kind is prim.Select:
            return self._choice(e.condition, e.true_value, e.false_value)
        if kind is prim.Cast:
            return self._cast(e.value, dtype_of(e))
        if kind is prim.Broadcast:
            return self.code(e.value)
        if kind is prim.Ramp:
            steps = np.arange(int(e.lanes), dtype=np.int32)[:, None]
            return self._apply(lambda base, stride: base + stride * steps, e.base, e.stride)
        if kind is prim.Shuffle:
            return self._shuffle(e)
        if kind is prim.Let:
            return self._let(e)
        if kind is tvm.ir.TensorLoad:
            return Code(self._load(e), CHANGING)
        if kind is tvm.ir.Call:
            return self._call(e)
        raise self.refuse(f"an expression {kind.__name__}")

    def _apply(self, function: Callable[..., Any], *operands: Any) -> Code:
        codes = [self.code(operand) for operand in operands]
        kind = max(code.kind for code in codes)
        runs = [code.run if kind == THREAD else self.kept(code) for code in codes]
        if len(runs) == 1:
            (first,) = runs
            return Code(lambda lanes: function(first(lanes)), kind)
        if len(runs) == 2:
            first, second = runs
            return Code(lambda lanes: function(first(lanes), second(lanes)), kind)
        return Code(lambda lanes: function(*(run(lanes) for run in runs)), kind)

    def _cast(self, value: Any, dtype: str) -> Code:
        target = numpy_type(dtype)
        return self._apply(lambda x: arithmetic.cast(x, target), value)

    def _logic(self, e: Any, conjunction: bool) -> Code:
        if not _reads(e.b):
            return self._apply(np.logical_and if conjunction else np.logical_or, e.a, e.b)
        # The right side is not computed where the left one decides.
        first, second = self.value(e.a), self.value(e.b)

        def run(lanes: Lanes) -> Any:
            left = first(lanes)
            if not isinstance(left, np.ndarray):
                return second(lanes) if bool(left) is conjunction else left
            right = _under(lanes, left if conjunction else ~left, second)
            return (left & right) if conjunction else (left | right)

        return Code(run, CHANGING)

    def _choice(self, condition: Any, chosen: Any, other: Any) -> Code:
        """Translate a conditional value, each side of which is computed by the lanes that need it."""
        codes = [self.code(part) for part in (condition, chosen, other)]
        kind = max(code.kind for code in codes)
        test, first, second = (self.kept(code) for code in codes)
        reads = _reads(chosen) or _reads(other)

        def run(lanes: Lanes) -> Any:
            which = test(lanes)
            if not isinstance(which, np.ndarray):
                return first(lanes) if which else second(lanes)
            if not reads:
                return np.where(which, first(lanes), second(lanes))
            return np.where(which, _under(lanes, which, first), _under(lanes, ~which, second))

        return Code(run, kind)

    def _shuffle(self, e: Any) -> Code:
        wanted = [int(index) for index in e.indices]
        counts = [int(vector.ty.dtype.lanes) for vector in e.vectors]
        parts = [self.value(vector) for vector in e.vectors]

        def run(lanes: Lanes) -> Any:
            rows: list[Any] = []
            for part, count in zip(parts, counts, strict=True):
                value = part(lanes)
                if count == 1:
                    rows.append(value)
                else:
                    value = np.broadcast_to(value, (count, lanes.lanes))
                    rows.extend(value)
            if len(wanted) == 1:
                return rows[wanted[0]]
            return np.stack([np.broadcast_to(rows[row], lanes.lane.shape) for row in wanted])

        return Code(run, CHANGING)

    def _let(self, e: Any) -> Code:
        value = self.value(e.value)
        slot = self.variable(e.var)
        body = self.value(e.body)

        def run(lanes: Lanes) -> Any:
            lanes.slots[slot] = own(value(lanes))
            return body(lanes)

        return Code(run, CHANGING)

    def element(self, indices: Any, view: View) -> Value:
        """Translate the index of an element into that of its scalars."""
        if len(indices) != 1:
            raise self.refuse(f"buffer {view.buffer.name} of several dimensions")
        index = self.value(indices[0])
        if view.width == 1:
            return index
        width, steps = view.width, np.arange(view.width)[:, None]
        return lambda lanes: index(lanes) * width + steps

    def printable(self, dtype: str) -> None:
        """Refuse vectors that CUDA has no type for, as its printer does, and those that it prints wrongly."""
        element, _, lanes = dtype.partition("x")
        if lanes and (element == "bool" or numpy_type(element).itemsize * int(lanes) > LONGEST):
            truth = "which TVM prints as one of 16-bit integers; move one truth value at a time"
            why = truth if element == "bool" else "of which CUDA has no type; make it shorter"
            raise CompileError(f"kernel {self.kernel} moves a vector {dtype}, {why}")

    def _load(self, e: Any) -> Value:
        self.printable(dtype_of(e))
        view = self.view(e.source)
        index, access = self.element(e.indices, view), self.access(e.source, e.indices[0], view)
        slot, dtype = view.slot, view.dtype

        def run(lanes: Lanes) -> Any:
            storage = lanes.storages[slot]
            assert storage is not None
            return storage.load(lanes, dtype, index(lanes), access)

        return run

    def pointer(self, e: Any) -> Pointer:
        """Translate an address."""
        if isinstance(e, tvm.ir.Var) and e in self.views:
            return Pointer(self.views[e], lambda lanes: 0)
        if not isinstance(e, tvm.ir.Call):
            raise self.refuse(f"a pointer {e}")
        name = operation(e)
        if name == "buffer_data":
            return Pointer(self.view(e.args[0]), lambda lanes: 0)
        if name == "address_of" and isinstance(e.args[0], tvm.ir.TensorLoad):
            view = self.view(e.args[0].source)
            return Pointer(view, self.element(e.args[0].indices, view))
        if name == "tvm_access_ptr":
            inner, offset = self.pointer(e.args[1]), self.value(e.args[2])
            dtype = numpy_type(dtype_of(e.args[0]))
            view = View(inner.view.slot, dtype, 1, inner.view.buffer)
            scale = inner.view.dtype.itemsize / dtype.itemsize
            start = inner.index
            return Pointer(view, lambda lanes: arithmetic.scaled(start(lanes), scale) + offset(lanes))
        raise self.refuse(f"a pointer made by {name}")

    # ---- calls

    def _call(self, e: Any) -> Code:
        name = operation(e)
        if name == "if_then_else":
            return self._choice(*e.args)
        if name in ("likely", "tvm_thread_invariant", "ignore_loop_partition", "assume"):
            return self.code(e.args[0])
        if name == "reinterpret":
            if has_no_address(e.args[0]):
                raise CompileError(f"kernel {self.kernel} reads the bits of a literal, whose address TVM prints in C++")
            source, target = numpy_type(dtype_of(e.args[0])), numpy_type(dtype_of(e))
            return self._apply(lambda x: arithmetic.reinterpret(x, source, target), e.args[0])
        if name in _SHUFFLES:
            return self._warp_shuffle(e, name)
        if name in ("tvm_warp_activemask", "cuda.__activemask"):
            return Code(arithmetic.active_mask, CHANGING)
        if name in ("call_pure_extern", "call_extern"):
            known = str(e.args[0].value).lstrip("_").removesuffix("f")
            if known in arithmetic.FUNCTIONS:
                return self._apply(arithmetic.FUNCTIONS[known], *e.args[1:])
            raise self.refuse(f"a call of the function {e.args[0].value}")
        if name == "cuda.func_call" and str(e.args[0].value) == FAST_EXP2:
            return self._apply(arithmetic.FUNCTIONS["exp2"], e.args[1])
        if name == "cuda.func_call" and str(e.args[0].value).startswith(STARTS):
            return self.code(e.args[1])  # which NaN it is tells numpy nothing
        if name in arithmetic.FUNCTIONS:
            target = numpy_type(dtype_of(e))
            function = arithmetic.FUNCTIONS[name]
            return self._apply(lambda *x: arithmetic.cast(function(*x), target), *e.args)
        raise self.refuse(f"a call of {name}")

    def _warp_shuffle(self, e: Any, name: str) -> Code:
        value, other, width = self.value(e.args[1]), self.value(e.args[2]), self.value(e.args[3])
        kind = name.removeprefix("tvm_warp_shuffle").removeprefix("_") or "idx"

        def run(lanes: Lanes) -> Any:
            return arithmetic.shuffle(lanes, kind, value(lanes), other(lanes), int(width(lanes)))

        return Code(run, CHANGING)


def _under(lanes: Lanes, condition: Any, value: Value) -> Any:
    """Compute a value with fewer active lanes."""
    before = lanes.mask
    lanes.mask = lanes.masked(condition)
    try:
        return value(lanes)
    finally:
        lanes.mask = before


def own(value: Any) -> Any:
    """Keep a value that may be a view of registers."""
    return value.copy() if isinstance(value, np.ndarray) and value.base is not None else value


def _constant(e: Any) -> int | None:
    return int(e.value) if isinstance(e, prim.IntImm) else None


def _reads(e: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(e, (tvm.ir.TensorLoad, found.append))
    return bool(found)
