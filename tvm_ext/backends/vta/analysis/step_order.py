"""Rules about steps of GEMM and ALU that follow each other, found without walking the loops.

A step is (i, j, k): turn of the outer loop, of the inner one, micro-op. The difference of two indices of neighbouring
steps is linear in i and j, so that looking at a few turns, or at all sums ``i * a + j * b``, shows what all turns do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.accesses import turns
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm

Indices = NDArray[np.int64]


def same_destination(instruction: Gemm | Alu, uops: Indices, distance: int) -> bool:
    """Return whether a step writes the accumulator that the step ``distance`` (1 or 2) before it wrote.

    Parameters
    ----------
    instruction : Gemm or Alu
        Of a stream that the simulators accept, with at least one step.
    uops : NDArray[np.int64]
        Its micro-ops [count, 3].
    distance : int
    """
    inner, pairs = instruction.iter_in, instruction.iter_in * instruction.iter_out
    # From the first turns, and from the last turns of the inner loop into the outer loop's next one.
    for begin, end in ((0, 3), (inner - 2, inner + 2)):
        pair = np.arange(max(begin, 0), min(end, pairs))
        i, j = np.divmod(pair, inner)
        offsets = i * instruction.dst_factor_out + j * instruction.dst_factor_in
        dst = (offsets[:, None] + uops[:, 0]).ravel()
        if (dst[distance:] == dst[:-distance]).any():
            return True
    return False


def reads_previous(instruction: Alu, uops: Indices) -> bool:
    """Return whether a step of ALU reads the accumulator that the step before it wrote; see :func:`same_destination`.

    In the loops the index that is read minus the one written before is a constant plus ``i * a + j * b``.
    """
    outer, inner = instruction.iter_out, instruction.iter_in
    a = instruction.src_factor_out - instruction.dst_factor_out
    b = instruction.src_factor_in - instruction.dst_factor_in
    within = uops[1:, 1] - uops[:-1, 0]
    next_turn = uops[0, 1] - uops[-1, 0]
    return (
        _is_zero(within, outer, a, inner, b)
        or _is_zero(next_turn + instruction.src_factor_in, outer, a, inner - 1, b)
        or _is_zero(
            next_turn + instruction.src_factor_out - (inner - 1) * instruction.dst_factor_in, outer - 1, a, 1, 0
        )
    )


def _is_zero(constants: Indices | int, outer: int, a: int, inner: int, b: int) -> bool:
    """Return whether ``constant + i * a + j * b`` is zero for one of the constants and turns of both loops."""
    sums = np.unique(turns(outer, a)[:, None] + turns(inner, b))
    return bool(np.isin(-np.asarray(constants), sums).any())
