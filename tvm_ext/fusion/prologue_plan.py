"""Decides which kernels are computed inside those that read them, while these copy their input.

A convolution or a product copies what it reads: it pads, packs, or lays rows side by side. A data-parallel kernel in
front of it can be computed there, for each of several readers, and its result is never stored. What that costs and
saves is up to the caller; here is which of them can go at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm_ext.errors import GraphError


@dataclass(frozen=True)
class Step:
    """A kernel call of a function.

    Attributes
    ----------
    name : str
    reads : tuple of int
        Earlier steps whose results it reads, each once.
    escapes : bool
        Whether something that is no step reads its result, or the function returns it.
    """

    name: str
    reads: tuple[int, ...]
    escapes: bool = False


@dataclass(frozen=True)
class Prologue:
    """A step that is computed inside all that read it.

    Attributes
    ----------
    step : int
    readers : tuple of int
    seconds : float
        What this saves, estimated.
    """

    step: int
    readers: tuple[int, ...]
    seconds: float


Gain: TypeAlias = Callable[[int, int], "tuple[float, float] | None"]
"""Of a step and one that reads it: seconds that the reader takes more, seconds of the step alone; None: impossible."""


def plan_prologues(steps: Sequence[Step], gain: Gain) -> tuple[Prologue, ...]:
    """Choose prologues, those that save most first.

    Each reader takes one, and what is a prologue takes none: its kernel would hold more than was estimated.

    Parameters
    ----------
    steps : sequence of Step
        In an order in which they can run.
    gain : callable
        See :data:`Gain`.
    """
    found = []
    for number, step in enumerate(steps):
        readers = tuple(other for other, reader in enumerate(steps) if number in reader.reads)
        if step.escapes or not readers:
            continue
        prices = []
        for reader in readers:
            price = gain(number, reader)
            if price is None:
                break
            prices.append(price)
        if len(prices) == len(readers):
            saved = prices[0][1] - sum(more for more, _ in prices)
            if saved > 0:
                found.append(Prologue(number, readers, saved))
    taken: set[int] = set()
    chosen = []
    for prologue in sorted(found, key=lambda prologue: (-prologue.seconds, prologue.step)):
        if taken.isdisjoint((prologue.step, *prologue.readers)):
            taken.update((prologue.step, *prologue.readers))
            chosen.append(prologue)
    return tuple(sorted(chosen, key=lambda prologue: prologue.step))


def verify_prologues(prologues: Sequence[Prologue], steps: Sequence[Step]) -> None:
    """Check a plan, looking from the readers: what each reads is stored by a step that stays, or computed in it alone.

    Raises
    ------
    GraphError
        If a result that is no longer stored is read, or a kernel would hold more than itself and one step.
    """
    inside: dict[int, list[int]] = {}
    gone = {prologue.step for prologue in prologues}
    for prologue in prologues:
        for reader in prologue.readers:
            inside.setdefault(reader, []).append(prologue.step)
    for number, step in enumerate(steps):
        if number in gone and step.escapes:
            raise GraphError(f"prologues: the result of '{step.name}' is read outside of kernels, but not stored")
        missing = [source for source in step.reads if source in gone and source not in inside.get(number, ())]
        if missing:
            raise GraphError(f"prologues: '{step.name}' reads '{steps[missing[0]].name}', whose result is not stored")
        held = inside.get(number, [])
        if len(held) > 1 or any(source not in step.reads for source in held) or (held and number in gone):
            raise GraphError(f"prologues: '{step.name}' would hold {len(held)} others; it takes one that it reads")
