"""Loops over types that TVM computes in wider ones: of some of their code it has a form for one lane only."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import element_type


def names_small_floats(statement: Any) -> bool:
    """Whether a statement names a value of a type that TVM computes in a wider one: it widens only the value."""
    found: list[bool] = []

    def note(node: Any) -> None:
        found.append(element_type(node.var).startswith(("bfloat16", "float8")))

    tvm_ffi.structural_walk(statement, [(prim.Let, note), (tirx.Bind, note)])
    return any(found)


def makes_float8(statement: Any) -> bool:
    """Whether a statement computes or converts to numbers of type float8; it may move some without."""

    def interrupt(node: Any) -> Any:
        if isinstance(node, tirx.BufferStore) and isinstance(node.value, tvm.ir.TensorLoad):
            return None
        rounded = node if isinstance(node, prim.Cast) else node.value
        return tvm_ffi.VisitInterrupt(True) if element_type(rounded).startswith("float8") else None

    return tvm_ffi.structural_walk(statement, ((prim.Cast, tirx.BufferStore), interrupt)) is not None


def has_no_vectors(loop: Any) -> bool:
    """Whether a loop is to become vectors and makes numbers of type float8: TVM rounds to them lane by lane."""
    return bool(loop.kind == tirx.ForKind.VECTORIZED or loop.annotations) and makes_float8(loop.body)


def one_by_one(loop: Any) -> Any:
    """Take the loop from TVM's vectoriser, if it was for it."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
