"""Packets of an embedding: its kernel, and the scalar core's copies of data into it and of results out of it.

They are a sum over loops: how often each body runs, as extents tell, times what it takes, as was measured.
``embedded_costs.json`` has the numbers of each row; ``scripts/bench_embedding.py --part hexagon`` counts kernels of
drawn operators under the emulator and fits them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from math import prod
from pathlib import Path

from tvm_ext.backends.hexagon.embedded import form_of, scalar_words, tile_of
from tvm_ext.embedding.choice import Cost
from tvm_ext.embedding.kernel import outer_numbers
from tvm_ext.embedding.strategy import Stored, Strategy
from tvm_ext.schedules.instructions.instruction import Instruction

NUMBERS = Path(__file__).parent / "embedded_costs.json"
"""Packets of a round of each loop, by rows, and of copies."""

STORED, READ_BACK = "stored anew", "read back"
"""Names of the copies among the numbers."""


def kernel_rounds(found: Strategy, instruction: Instruction) -> Sequence[float]:
    """Count how often each body of a kernel runs.

    Returns
    -------
    sequence of float
        Multiplications, vectors and scalars that are loaded, steps, loops of steps, results, tiles, 1.
    """
    form, tile = form_of(instruction.name), tile_of(found, instruction)
    tiles = prod(found.loops[number].extent for number in outer_numbers(found)) // tile.results
    sums = [loop.extent for loop in found.loops if loop.reduces]
    steps = tiles * prod(sums)
    return (
        steps * tile.results,
        steps * tile.lefts * form.left,
        steps * tile.rights * scalar_words(found, form),
        steps,
        steps // max(sums, default=1),
        tiles * tile.results,
        tiles,
        1,
    )


def copy_rounds(stored: Stored, repeats: int = 1) -> Sequence[float]:
    """Count what the copy of a factor does: elements, 1."""
    return stored.elements * repeats, 1


def result_rounds(found: Strategy) -> Sequence[float]:
    """Count what reading a result back does: elements, 1."""
    return prod(found.operands[2].access.shape), 1


@functools.cache
def _numbers() -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(NUMBERS.read_text(encoding="utf-8"))["packets"]
    return found


def _packets(name: str, rounds: Sequence[float]) -> float:
    return sum(number * count for number, count in zip(_numbers()[name], rounds, strict=True))


def kernel_packets(instruction: Instruction, found: Strategy) -> float:
    """Estimate the packets of a kernel, without copies."""
    return _packets(instruction.name, kernel_rounds(found, instruction))


def packet_cost(instruction: Instruction) -> Cost:
    """Make the cost of a row of HVX: packets of its kernel and of copies.

    The right factor of the operator is taken for constant, and stored beforehand.

    Parameters
    ----------
    instruction : Instruction
    """
    form = form_of(instruction.name)

    def cost(found: Strategy) -> float:
        repeats = form.repeats if found.embedding.operand(1) == 0 else 1
        return (
            kernel_packets(instruction, found)
            + _packets(STORED, copy_rounds(found.operands[0], repeats))
            + _packets(READ_BACK, result_rounds(found))
        )

    return cost
