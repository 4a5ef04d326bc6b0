"""Chooses the embedding of an instruction into an operator, and says what else there was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import tvm

from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.program import STRICT, relaxed
from tvm_ext.embedding.ranking import Ranked, naive_waste, rank, stored_macs
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction

Cost = Callable[[Strategy], float]
"""Cycles of a strategy on a target; raises :class:`EmbeddingError` where the target cannot run it."""


@dataclass(frozen=True)
class Offer:
    """An instruction that a target has, and what a strategy with it costs there, in cycles."""

    instruction: Instruction
    cost: Cost


@dataclass(frozen=True)
class Choice:
    """What was found for one instruction.

    Attributes
    ----------
    instruction : str
    ranked : tuple of Ranked
        Best first.
    refused : tuple of (str, str)
        Mappings for which there is no strategy, or that the target cannot run, and why.
    reason : str
        Why there is nothing; empty if there is.
    """

    instruction: str
    ranked: tuple[Ranked, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    @property
    def best(self) -> Ranked | None:
        """The cheapest."""
        return self.ranked[0] if self.ranked else None


def choose(operator: Dataflow, offer: Offer) -> Choice:
    """Search strict mappings and, where these would pad, relaxed ones as well; rank by cost."""
    instruction = instruction_dataflow(offer.instruction)
    name = offer.instruction.name
    try:
        waste = naive_waste(operator, instruction)
        settings = [STRICT, *relaxed((1,), waste)] if waste > 1 else [STRICT, replace(STRICT, swap=True)]
        found = solve(operator, instruction, settings)
    except EmbeddingError as error:
        return Choice(name, reason=str(error))
    ranked, refused = rank(found, cost=offer.cost)
    reasons = tuple((str(embedding), why) for embedding, why in refused)
    return Choice(name, tuple(ranked), reasons, "" if ranked else f"{reasons[0][0]}: {reasons[0][1]}")


def throughput_cost(instruction: Instruction, bytes_per_cycle: float) -> Cost:
    """Make the cost of a processor: cycles of its instructions, and of the data that is stored anew.

    The right factor of the operator is taken for constant, and stored beforehand.

    Parameters
    ----------
    instruction : Instruction
    bytes_per_cycle : float
        What the processor moves between memory and registers.
    """

    def cost(found: Strategy) -> float:
        calls = stored_macs(found) / found.embedding.instruction.macs
        moved = sum(
            (stored.elements + prod(stored.access.shape)) * tvm.DataType(stored.access.dtype).bits // 8
            for stored in (found.operands[0], found.operands[2])
        )
        return calls * instruction.cycles + moved / bytes_per_cycle

    return cost


def quantized(operator: Dataflow, instruction: Instruction) -> Dataflow:
    """Give an operator of floats the types of an instruction of integers, as quantising it would."""
    types = [access.dtype for access in instruction_dataflow(instruction).operands]
    left, right, output = (replace(access, dtype=dtype) for access, dtype in zip(operator.operands, types, strict=True))
    return replace(operator, inputs=(left, right), output=output)
