"""Makes one kernel of squeeze and excitation: the average of each channel, and the products that weight channels by it.

before: ``m = mean(x); h = act(w1 m); y = x * gate(w2 h)``
after:  ``y = squeeze_and_excitation(x, w1, w2)``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

from tvm_ext.fusion.relax.chains import merge_chains
from tvm_ext.fusion.relax.check import annotated_kernels
from tvm_ext.schedules.cpu.excitation import PRODUCTS, Excitation, is_of_one_pixel
from tvm_ext.schedules.kernel.blocks import annotated_block
from tvm_ext.schedules.rule import ScheduleRule, new_schedule

MOST_PRODUCTS = 2
"""With the averages of one image; more are not met in networks."""


def fuse_excitations(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass, for CPU targets.

    Parameters
    ----------
    rules : sequence of ScheduleRule
        What schedules the kernels.
    """

    def begins(func: Any) -> bool:
        return annotated_kernels(func) == {"global_average"}

    def goes_on(func: Any) -> bool:
        kinds = annotated_kernels(func)
        if not kinds or not kinds <= {*PRODUCTS, "pad"}:
            return False
        schedule = new_schedule(func)
        products = [block for kind in PRODUCTS if (block := annotated_block(schedule, kind)) is not None]
        return len(products) == 1 and is_of_one_pixel(schedule, products[0])

    return merge_chains("tvm_ext.FuseExcitations", (Excitation.name,), rules, begins, goes_on, 1 + MOST_PRODUCTS)
