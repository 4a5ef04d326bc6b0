"""Threads of one name are numbers of one type, whichever loops they are bound to.

before: ``for u in thread(32, int32): a``, then ``for i in thread(32, int64): if i == 0: b``
after:  ``for u in thread(32, int64): a``, where ``u`` is cast to int32, then the same

A loop that a schedule makes where a block has none counts in int32, others of a kernel in int64. TVM makes one variable
of all of a name, the first, and comparisons with it would be of two types.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute

_WIDE = "int64"


def threads_of_one_type(func: PrimFunc) -> PrimFunc:
    """Let threads that are both int32 and int64 be int64."""
    types: dict[str, set[str]] = {}

    def note(loop: Any) -> None:
        if loop.thread_binding is not None:
            types.setdefault(str(loop.thread_binding.thread_tag), set()).add(str(loop.loop_var.ty.dtype))

    tvm_ffi.structural_walk(func.body, [(tirx.For, note)])
    mixed = {tag for tag, found in types.items() if len(found) > 1}
    if not mixed:
        return func

    def widened(loop: Any, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        binding, dtype = loop.thread_binding, str(loop.loop_var.ty.dtype)
        if binding is None or str(binding.thread_tag) not in mixed or dtype == _WIDE:
            return loop
        wide = tirx.Var(loop.loop_var.name, _WIDE)
        body = substitute(loop.body, {loop.loop_var: prim.Cast(dtype, wide)})
        first, extent = (tirx.const(int(number), _WIDE) for number in (loop.min, loop.extent))
        return tirx.For(wide, first, extent, loop.kind, body, binding, loop.annotations)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, widened)])
    return PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)
