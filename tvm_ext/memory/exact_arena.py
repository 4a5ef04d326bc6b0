"""The smallest arena, by a constraint solver (extra ``solve``)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.errors import MissingPackageError
from tvm_ext.memory.blocks import Block
from tvm_ext.memory.work import SECOND

_SOLVER_SECOND = 0.05  # of the solver's own count in a second: it charges conflicts of many blocks far below their time


def solve(
    blocks: Sequence[Block],
    alignment: int,
    offsets: Sequence[int],
    bound: int,
    effort: float,
) -> tuple[list[int], int, int]:
    """Find offsets with the lowest top.

    Parameters
    ----------
    blocks : sequence of Block
        What to place.
    alignment : int
        Every offset is a multiple of it.
    offsets : sequence of int
        Offsets that are known to do.
    bound : int
        Bytes that no arena is below.
    effort : float
        Steps of work; a million takes about a second, up to five with hundreds of blocks.

    Returns
    -------
    offsets : list of int
        Not worse than the ones given.
    size : int
        Bytes of the arena.
    bound : int
        The lower bound, raised by what the solver proved; equal to the size when it came to an end.

    Raises
    ------
    MissingPackageError
        When ortools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingPackageError(
            "an exact arena needs the package ortools: install tvm-ext[solve], or leave out 'exact'"
        ) from None
    size = max(offset + block.size for block, offset in zip(blocks, offsets, strict=True))
    model = cp_model.CpModel()
    top = model.new_int_var(bound, size, "top")
    places = []
    tall = []
    wide = []
    for number, block in enumerate(blocks):
        place = model.new_int_var(0, (size - block.size) // alignment, f"place{number}")
        model.add(place * alignment + block.size <= top)
        model.add_hint(place, offsets[number] // alignment)
        padded = -(-block.size // alignment)
        places.append(place)
        if block.size:
            tall.append(model.new_fixed_size_interval_var(place, padded, f"bytes{number}"))
            wide.append(model.new_fixed_size_interval_var(block.first, block.last - block.first + 1, f"life{number}"))
    model.add_no_overlap_2d(wide, tall)
    model.minimize(top)
    solver = cp_model.CpSolver()
    # One worker, and its own count of work: with a clock, a busy machine would get another arena.
    solver.parameters.max_deterministic_time = effort / SECOND * _SOLVER_SECOND
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(offsets), size, bound
    found = [solver.value(place) * alignment for place in places]
    size = max(offset + block.size for block, offset in zip(blocks, found, strict=True))
    return found, size, size if status == cp_model.OPTIMAL else max(bound, int(solver.best_objective_bound))
