"""What a thread does once, around its share of the iterations of a parallel loop.

before: ``parallel for i in range(4096):      e = alloc(4 KiB)      ...``
after:  ``in every thread:      e = alloc(4 KiB)      for i in its share:  ...``

TVM compiles an allocation inside the loop to two calls of its runtime in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

LAUNCH_PRAGMA = "pragma_parallel_launch_point"
"""Every thread runs a statement of this attribute; a parallel loop in it stands for the thread's share of the loop."""

LARGEST_ON_STACK = 1024
"""Bytes up to which TVM allocates a buffer on the stack."""


def once_a_thread(func: tvm.tirx.PrimFunc, after: Callable[[Any], list[Any]] = lambda _loop: []) -> tvm.tirx.PrimFunc:
    """Let every thread allocate its buffers once, and do once what has to be done after its share of a loop.

    Parameters
    ----------
    func : PrimFunc
        A kernel that has no blocks any more.
    after : callable
        Gives the statements that follow a parallel loop in every thread.
    """

    def visit(loop: Any, mutator: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(loop)
        parts = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
        before = [part for part in parts if isinstance(part, tirx.AllocBuffer) and _is_large(part.buffer)]
        behind = after(loop)
        if not before and not behind:
            return loop
        rest = [part for part in parts if not any(part.same_as(other) for other in before)]
        body = rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)
        share = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
        return tirx.AttrStmt(tirx.const(0), LAUNCH_PRAGMA, tirx.const(1), tirx.SeqStmt([*before, share, *behind]))

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, visit)]))


def _is_large(buffer: Any) -> bool:
    """Whether a buffer is of known size and too large for the stack."""
    shape = buffer.ty.shape
    if not all(isinstance(extent, prim.IntImm) for extent in shape):
        return False
    bits = prod(int(extent) for extent in shape) * tvm.DataType(str(buffer.ty.dtype)).bits
    return buffer.scope() == "global" and bits // 8 > LARGEST_ON_STACK
