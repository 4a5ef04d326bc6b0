"""Numbers of a kernel and of the processor it is for, by which a trained cost model tells spaces apart."""

from __future__ import annotations

import math

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_ext.backends.registry import backend_of

Numbers = tuple[tuple[float, ...], tuple[float, ...]]
"""Of a kernel, and of a processor."""


def numbers_of(mod: tvm.IRModule, target: tvm.target.Target) -> Numbers:
    """Give the numbers of the kernel ``main`` on a target; none where the target's row has none.

    Those of the kernel are the logarithms of its arithmetic operations, of the bytes of all its arguments, and of those
    of the last one, which is the result; those of the processor are what :attr:`.Backend.numbers` tells. Kernels of
    open extents have none.
    """
    processor = backend_of(target).numbers(target)
    if not processor:
        return (), ()
    try:
        operations = float(estimate_tir_flops(mod))
        infos = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
        sizes = [math.prod(map(int, info.shape)) * tvm.DataType(str(info.dtype)).bits / 8 for info in infos]
    except Exception:  # whatever TVM raises of an extent that is not a number, or of an argument that is no tensor
        return (), ()
    kernel = (operations, sum(sizes), sizes[-1] if sizes else 0.0)
    return tuple(math.log2(1.0 + number) for number in kernel), processor
