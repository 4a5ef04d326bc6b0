"""Loops over vectors that CUDA has no type for become ordinary loops.

before: ``for x in T.vectorized(16): gate[x] = gate[x] + state[k] * weights[k, x]``, of float32
after:  ``for x in range(16): ...``

Kernels that are written with the vectors of a CPU, and that no rule schedules anew, compile so.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.cuda.blocks import VECTOR_BYTES, element_bytes


def narrow_vectors() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NarrowVectors")
    def _narrow(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        narrowed = tvm.IRModule(mod.functions, attrs=mod.attrs)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and _wide(func.body):
                narrowed.update_func(variable, tvm_ffi.structural_mutate(func, [(tirx.For, _loop)]))
        return narrowed

    return _narrow


def _wide(statement: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, [(tirx.For, found.append)])
    return any(_is_wide(loop) for loop in found)


def _loop(loop: Any, mutator: Any) -> Any:
    wide = _is_wide(loop)
    loop = mutator.default_mutate(loop)
    if not wide:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _is_wide(loop: Any) -> bool:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return False
    widest = [1]

    def note(buffer: Any) -> None:
        widest[0] = max(widest[0], element_bytes(buffer.dtype))

    tvm_ffi.structural_walk(
        loop.body,
        [
            (tirx.BufferStore, lambda store: note(store.buffer)),
            (tvm.ir.TensorLoad, lambda load: note(load.source)),
        ],
    )
    return not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) * widest[0] > VECTOR_BYTES
