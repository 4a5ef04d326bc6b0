"""Choose which tuned schedules a region's program takes: those that shorten the whole of it.

A layer is tuned alone. Beside its neighbours, loads of one run while another computes, and what a layer gains alone can
cost more than that in the program; so each tuned schedule is tried in the program, by the cycle model.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.model.region import RegionProgram
from tvm_ext.backends.vta.timing.cycles import time_program


def best_region(build: Callable[[Plans], RegionProgram], plans: Plans) -> tuple[RegionProgram, int]:
    """Build a region with the tuned schedules that shorten its program.

    Starts from all of them or from none, whichever is shorter, and exchanges one kind of layer after another as long as
    that gains: a program is built and timed for each, and the result is never longer than the default one.

    Parameters
    ----------
    build : callable
        Builds the region's program with plans.
    plans : Plans
        With all tuned schedules.

    Returns
    -------
    tuple of (RegionProgram, int)
        The program, and how many of its layers have tuned schedules.
    """

    def attempt(keys: frozenset[str]) -> tuple[int, Plans, RegionProgram]:
        chosen = plans.only(keys)
        region = build(chosen)
        return time_program(region.program.instructions, plans.config, plans.costs).cycles, chosen, region

    best = attempt(frozenset(plans.tuned))
    usable = frozenset(best[1].taken)
    if not usable:
        return best[2], 0
    kept, default = usable, attempt(frozenset())
    if default[0] <= best[0]:
        kept, best = frozenset(), default
    for key in sorted(usable):
        other = kept ^ {key}
        found = attempt(other)
        if found[0] < best[0]:
            kept, best = other, found
    return best[2], best[1].taken.total()
