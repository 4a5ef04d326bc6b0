"""Micro-op compression: a sequence of steps, folded into the two hardware loops around as few micro-ops as can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import MicroOp
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.divisors import divisors

ITERATIONS = (1 << 14) - 1
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class LoopNest:
    """Micro-ops in two loops; step (i, j, k) has the indices of micro-op k, plus i and j times the factors.

    Attributes
    ----------
    uops : tuple of MicroOp
    iter_out, iter_in : int
    factor_out, factor_in : tuple of int
        What a turn of each loop adds to dst, src and wgt.
    """

    uops: tuple[MicroOp, ...]
    iter_out: int = 1
    iter_in: int = 1
    factor_out: tuple[int, int, int] = (0, 0, 0)
    factor_in: tuple[int, int, int] = (0, 0, 0)

    def steps(self) -> Steps:
        """Unfold: the indices dst, src and wgt of every step, [steps, 3]."""
        body = np.array([(uop.dst_idx, uop.src_idx, uop.wgt_idx) for uop in self.uops], np.int64).reshape(-1, 3)
        out = np.arange(self.iter_out)[:, None, None, None] * np.array(self.factor_out)
        inner = np.arange(self.iter_in)[None, :, None, None] * np.array(self.factor_in)
        return (body + out + inner).reshape(-1, 3)

    def moved(self, dst: int, src: int, wgt: int) -> LoopNest:
        """Return the same loops with so much added to the indices."""
        uops = tuple(MicroOp(uop.dst_idx + dst, uop.src_idx + src, uop.wgt_idx + wgt) for uop in self.uops)
        return replace(self, uops=uops)

    def fields(self, gemm: bool) -> dict[str, Any]:
        """Fields of a GEMM or ALU instruction for the loops."""
        values = {"iter_out": self.iter_out, "iter_in": self.iter_in}
        for operand, out, inner in zip(("dst", "src", "wgt"), self.factor_out, self.factor_in, strict=True):
            if gemm or operand != "wgt":
                values |= {f"{operand}_factor_out": out, f"{operand}_factor_in": inner}
        return values


def factor_limits(config: VTAConfig, gemm: bool) -> tuple[int, int, int]:
    """Largest factors of dst, src and wgt that the instruction has bits for; ALU has none for wgt."""
    src = config.log_inp_depth if gemm else config.log_alu_src_depth
    return (1 << config.log_acc_depth) - 1, (1 << src) - 1, (1 << config.log_wgt_depth) - 1 if gemm else 0


def compress(steps: Steps, limits: tuple[int, int, int]) -> LoopNest:
    """Fold a sequence of steps into one loop nest with the fewest micro-ops.

    Parameters
    ----------
    steps : NDArray[np.int64]
        Indices dst, src, wgt of each step in the order in which they run, [steps, 3].
    limits : tuple of int
        Largest factors; see :func:`factor_limits`.

    Returns
    -------
    LoopNest
        Unfolds to exactly ``steps``. In the worst case each step is a micro-op.
    """
    count = len(steps)
    for length in divisors(count):
        turns = steps.reshape(count // length, length, 3)
        if count == length:
            break
        for iter_in in divisors(count // length):
            nest = _fold(turns, iter_in, limits)
            if nest is not None:
                return nest
    return LoopNest(_micro_ops(steps))


def _fold(turns: Steps, iter_in: int, limits: tuple[int, int, int]) -> LoopNest | None:
    """Fold turns of one body into loops with ``iter_in`` turns of the inner one; None if they are not regular."""
    iter_out = len(turns) // iter_in
    if max(iter_in, iter_out) > ITERATIONS:
        return None
    factor_in = turns[1, 0] - turns[0, 0] if iter_in > 1 else np.zeros(3, np.int64)
    factor_out = turns[iter_in, 0] - turns[0, 0] if iter_out > 1 else np.zeros(3, np.int64)
    # Most loops that are tried fail at their last turn already, which is quick to see.
    last = factor_out * (iter_out - 1) + factor_in * (iter_in - 1)
    if (turns[-1, 0] - turns[0, 0] != last).any() or (turns[-1, -1] - turns[0, -1] != last).any():
        return None
    for factor in (factor_in, factor_out):
        if (factor < 0).any() or (factor > limits).any():
            return None
    offsets = np.arange(iter_out)[:, None, None] * factor_out + np.arange(iter_in)[None, :, None] * factor_in
    offsets = offsets.reshape(-1, 1, 3)
    if not np.array_equal(turns[:, :1], turns[0, :1] + offsets) or not np.array_equal(turns, turns[0] + offsets):
        return None
    out, inner = (tuple(int(value) for value in factor) for factor in (factor_out, factor_in))
    return LoopNest(_micro_ops(turns[0]), iter_out, iter_in, out, inner)  # type: ignore[arg-type]


def compress_all(steps: Steps, limits: tuple[int, int, int], most_uops: int) -> list[LoopNest]:
    """Fold a sequence into one loop nest, or into several where one would need more micro-ops than fit.

    Raises
    ------
    VTAProgramError
        If no micro-op fits.
    """
    if most_uops < 1:
        raise VTAProgramError(f"a loop nest needs at least one micro-op; most_uops is {most_uops}")
    if not len(steps):
        return []
    nest = compress(steps, limits)
    if len(nest.uops) <= most_uops:
        return [nest]
    half = len(steps) // 2
    return compress_all(steps[:half], limits, most_uops) + compress_all(steps[half:], limits, most_uops)


def _micro_ops(steps: Steps) -> tuple[MicroOp, ...]:
    return tuple(MicroOp(*step) for step in steps.tolist())
