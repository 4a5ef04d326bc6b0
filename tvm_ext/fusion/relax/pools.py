"""Computes poolings in the convolutions that they read, as the results come out of the registers.

before: ``t = relu(conv(x, w)); y = max_pool(t)``, with windows of 2 x 2 side by side
after:  ``y = max_pool_of_relu_of_conv(x, w)``, in which no more than a tile of ``t`` is there at once

Tiles of Winograd's algorithm have 2 or 4 results along an axis, so that a window lies in one; those of direct
convolutions have as many columns as whole windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from tvm_ext.fusion.relax.chains import merge_chains
from tvm_ext.fusion.relax.check import annotated_kernels
from tvm_ext.schedules.cpu.pooled_convolution import PooledConvolution
from tvm_ext.schedules.cpu.winograd_strips import WinogradStrips
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents
from tvm_ext.schedules.rule import ScheduleRule, new_schedule

WINDOW = 2
"""Rows and columns that are pooled to one."""


def fuse_pools(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass, for CPU targets.

    Parameters
    ----------
    rules : sequence of ScheduleRule
        What schedules the kernels.
    """

    def begins(func: Any) -> bool:
        return not annotated_kernels(func).isdisjoint(("winograd_back_half", "conv"))

    def goes_on(func: Any) -> bool:
        return annotated_kernels(func) == {"pool"} and _is_of_whole_windows(func)

    takers = WinogradStrips.name, PooledConvolution.name
    return merge_chains("tvm_ext.FusePools", takers, rules, begins, goes_on, 2)


def _is_of_whole_windows(func: Any) -> bool:
    """Whether windows of two rows and columns lie side by side, begin with the image and end within it."""
    schedule = new_schedule(func)
    pool = annotated_block(schedule, "pool")
    block = schedule.get(pool)
    axes = [axis.var for axis in block.iter_vars]
    rank = (len(axes) - 3) // 2
    taps = loop_extents(schedule, pool)[-rank:]
    if rank < 2 or taps[-2:] != [WINDOW, WINDOW]:
        return False
    # A window that may reach beyond the image is a condition, not a load.
    loads = [getattr(block.body.value, side, None) for side in ("a", "b")]
    source = [load for load in loads if isinstance(load, tvm.ir.TensorLoad)]
    source = [load for load in source if not load.source.same_as(block.writes[0].source)]
    if len(source) != 1:
        return False
    places = [at * size + tap for at, size, tap in zip(axes[2 : 2 + rank], taps, axes[-rank:], strict=True)]
    analyzer = tvm.sym.Analyzer()
    expected = [*axes[:2], *places, axes[2 + rank]]
    return all(analyzer.can_prove_equal(one, other) for one, other in zip(source[0].indices, expected, strict=True))
