"""Vectors of a fixed length on CPUs that also have vectors of unknown length (SVE, RISC-V ``v``).

For such a target TVM divides each loop that is to be a vector by the unknown length, or turns conditions into masks of
that length, and writes scalar loops where that fails; schedules here count on the length that the machine model has.
So the marked loops become vectors before TVM's own lowering, which then finds none.

before: ``for i in T.vectorized(4): C[i] = A[i]``
after:  ``C[0:4] = A[0:4]``, where TVM would write ``for i in range(4 * vscale): if i < 4: C[i] = A[i]``
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.passes.vector_code import has_blocks, lower_to_loops
from tvm_ext.schedules.simd.ramps import with_plain_ramps

SCALABLE = frozenset({"sve", "zve32x"})
"""Features of LLVM that stand for vectors of unknown length."""


def fixed_vectors() -> tvm.transform.Pass:
    """Make the pass; it works on the PrimFuncs of a module that is compiled for the current target."""
    to_loops = lower_to_loops()
    # The pass asks the current target for its features.
    plain = tvm.target.Target("llvm")

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FixedVectors")
    def _fixed_vectors(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True)
        if target is None or not _has_scalable_vectors(target):
            return mod
        kernels = {
            global_var: func
            for global_var, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and _holds_vectors(func)
        }
        with plain:
            blocks = tvm.IRModule({global_var: func for global_var, func in kernels.items() if has_blocks(func)})
            lowered = {**kernels, **dict(to_loops(blocks).functions)}
            vectors = tirx.transform.VectorizeLoop(True)(tvm.IRModule(lowered))
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var in kernels:
            updated.update_func(global_var, with_plain_ramps(vectors[global_var]))
        return updated

    return _fixed_vectors


def _has_scalable_vectors(target: tvm.target.Target) -> bool:
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    return not SCALABLE.isdisjoint(features)


def _holds_vectors(func: tirx.PrimFunc) -> bool:
    def interrupt(loop: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if loop.kind == tirx.ForKind.VECTORIZED else None

    return tvm_ffi.structural_walk(func.body, [(tirx.For, interrupt)]) is not None
