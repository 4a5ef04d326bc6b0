"""Stores that go past the caches, for results that no cache could keep until they are read.

An ordinary store first reads the line it is going to change; a streaming (non-temporal) store of whole lines does not,
which saves a third of what a copy moves, and leaves the caches to other data. TVM has no expression for it, so a store
calls a function given as LLVM's text, which is inlined and looks at the address: only aligned vectors can be streamed.

before: ``for j in range(4):  # stream      out[j*16 : j*16+16] = a[j*16 : j*16+16]``
after:  ``stream(address_of(out[j*16]), a[j*16 : j*16+16])``, and a fence before the thread ends its work
"""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvm_ext.schedules.simd.vector import element_type, lanes_of

STREAM_ATTRIBUTE = "tvm_ext.stream"
"""Annotation of a loop made of vectors: its stores go past the caches."""

PREFIX = "tvm_ext_stream_"

_LLVM_TYPES = {"float32": "float", "float64": "double"} | {
    f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
SMALLEST_STREAM, _LARGEST = 16, 64
"""Bytes of a vector that one instruction stores past the caches."""


def mark_stream(schedule: Schedule, loop: LoopRV) -> None:
    """Ask for the whole vectors that a loop stores to go past the caches; the loop is one that vectors are made of."""
    schedule.annotate(loop, STREAM_ATTRIBUTE, 1)


def is_marked(loop: Any) -> bool:
    """Whether a loop was marked with :func:`mark_stream`."""
    return bool(loop.annotations) and STREAM_ATTRIBUTE in loop.annotations


def stream(buffer: Any, first: Any, value: Any, active: int, analyzer: Any) -> Any | None:
    """Make the statement that stores a vector from index ``first`` on; None for vectors that cannot be streamed.

    ``active`` lanes are stored, from the first on. Rows that begin within lines have vectors that are stored in aligned
    parts: a line of which a part goes through the caches is written to memory several times.
    """
    element, lanes = element_type(value), lanes_of(value)
    if element not in _LLVM_TYPES:
        return None
    smallest = max(1, SMALLEST_STREAM * 8 // tvm.DataType(element).bits)
    largest = _LARGEST * 8 // tvm.DataType(element).bits
    if lanes < smallest or lanes > largest or lanes & (lanes - 1) or active % smallest:
        return None
    whole = tvm.ir.Var("streamed", value.ty)
    statements: list[Any] = [] if active == lanes else [tirx.Bind(whole, value)]
    done = 0
    while done < active:
        size = 1 << ((active - done).bit_length() - 1)
        part = value if size == lanes else prim.Shuffle([whole], [tirx.const(done + k, "int32") for k in range(size)])
        place = first if not done else first + tirx.const(done, element_type(first))
        together = _aligned(place, size, analyzer)
        name = f"{PREFIX}{element}x{size}" + (f"x{together}" if smallest <= together < size else "")
        address = tirx.address_of(tirx.BufferLoad(buffer, [place]))
        statements.append(tirx.Evaluate(tirx.call_extern("void", name, address, part)))
        done += size
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _aligned(place: Any, lanes: int, analyzer: Any) -> int:
    """Find the elements of the largest part of a vector that always begins at a multiple of its size."""
    found = analyzer.modular_set(place)
    return gcd(int(found.coeff), int(found.base), lanes)


def complete_streams(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Add the functions that streaming stores call, and a fence where a thread has done its part.

    Streaming stores are seen by other threads in no particular order, and before what follows the fence.
    """
    names = _called(func.body)
    if not names:
        return func
    # The functions of a kernel, and those of its neighbours in one module, may be the same.
    text = "".join(map(_definition, sorted(names))) + "!0 = !{i32 1}\n"
    body = tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", tvm.ir.StringImm(text), _fenced(func.body))
    return func.with_body(body)


def _called(body: Any) -> set[str]:
    names: set[str] = set()

    def note(call: Any) -> None:
        if call.args and isinstance(call.args[0], tvm.ir.StringImm) and call.args[0].value.startswith(PREFIX):
            names.add(str(call.args[0].value))

    tvm_ffi.structural_walk(body, (tvm.ir.Call, note))
    return names


def _fenced(body: Any) -> Any:
    """Put a fence behind every parallel loop, in each thread that takes part, and behind the whole kernel."""
    fence = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.x86.sse.sfence"))

    def visit(loop: Any, mutator: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(loop)
        if not _called(loop.body):
            return loop
        part = tirx.SeqStmt([loop, fence])
        return tirx.AttrStmt(tirx.const(0), "pragma_parallel_launch_point", tirx.const(1), part)

    return tirx.SeqStmt([tvm_ffi.structural_mutate(body, [(tirx.For, visit)]), fence])


def _definition(name: str) -> str:
    """Write a function in LLVM's language that streams a vector, or stores it where the address is not aligned.

    The last number of its name is that of the elements that are stored together.
    """
    element, *numbers = name.removeprefix(PREFIX).split("x")
    lanes, together = int(numbers[0]), int(numbers[-1])
    kind, bytes_of_element = _LLVM_TYPES[element], tvm.DataType(element).bits // 8
    vector, part, size = f"<{lanes} x {kind}>", f"<{together} x {kind}>", together * bytes_of_element
    past = []
    for number in range(lanes // together):
        which = ", ".join(f"i32 {number * together + lane}" for lane in range(together))
        past += [
            f"  %part{number} = shufflevector {vector} %value, {vector} poison, <{together} x i32> <{which}>",
            f"  %place{number} = getelementptr i8, ptr %address, i64 {number * size}",
            f"  store {part} %part{number}, ptr %place{number}, align {size}, !nontemporal !0",
        ]
    text = "\n".join(past)
    return f"""
define linkonce_odr void @{name}(ptr %address, {vector} %value) alwaysinline {{
  %number = ptrtoint ptr %address to i64
  %low = and i64 %number, {size - 1}
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %past, label %through
past:
{text}
  ret void
through:
  store {vector} %value, ptr %address, align {bytes_of_element}
  ret void
}}
"""
