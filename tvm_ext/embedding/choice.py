"""Chooses the embedding of an instruction into an operator, and says what else there was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import tvm

from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.kernel import KernelPlan, Plan, Source
from tvm_ext.embedding.program import STRICT, Setting, relaxed
from tvm_ext.embedding.ranking import Ranked, naive_waste, rank, stored_macs
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.embedding.top_down.engine import search
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction

Cost = Callable[[Strategy], float]
"""Cost of a strategy on a target; raises :class:`EmbeddingError` where the target cannot run it."""


@dataclass(frozen=True)
class Offer:
    """An instruction that a target has.

    Attributes
    ----------
    instruction : Instruction
    cost : callable
        What a strategy with it costs there.
    plan : callable, optional
        Makes the plan of a kernel; None where the target makes no kernels of embeddings.
    unit : str
        Of the cost.
    most : int
        Embeddings whose cost is asked for at most, those that waste least; 0: all.
    """

    instruction: Instruction
    cost: Cost
    plan: Plan | None = None
    unit: str = "cycles"
    most: int = 0


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
    programs : int
        Programs that the top-down engine rewrote the operator to, and matched.
    unit : str
        Of costs.
    note : str
        That the search was stopped before it had seen everything; empty if it was not.
    """

    instruction: str
    ranked: tuple[Ranked, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    programs: int = 0
    unit: str = "cycles"
    note: str = ""

    @property
    def best(self) -> Ranked | None:
        """The cheapest."""
        return self.ranked[0] if self.ranked else None


Engine = Callable[[Dataflow, Dataflow, Budget], tuple[Sequence[Embedding], int]]
"""Finds how an instruction fits an operator, and how many programs it rewrote; may raise :class:`EmbeddingError`."""


def by_constraints(
    operator: Dataflow, instruction: Dataflow, budget: Budget | None = None
) -> tuple[Sequence[Embedding], int]:
    """Search strict mappings and, where these would pad or there are none, relaxed ones; factors may change places."""
    budget = Budget() if budget is None else budget
    waste = naive_waste(operator, instruction, budget)
    padded = [*relaxed((1,), waste), Setting(pad_to=(1,), waste=waste)]
    if waste > 1:
        return solve(operator, instruction, [STRICT, *padded], budget=budget), 0
    try:
        return solve(operator, instruction, [STRICT, replace(STRICT, swap=True)], budget=budget), 0
    except EmbeddingError:
        return solve(operator, instruction, padded, budget=budget), 0


def top_down(
    operator: Dataflow, instruction: Dataflow, budget: Budget | None = None
) -> tuple[Sequence[Embedding], int]:
    """Rewrite the operator until the instruction's pattern matches."""
    found = search(operator, instruction, budget=budget)
    return found.embeddings, found.candidates


ENGINES: Mapping[str, Engine] = {"constraints": by_constraints, "top-down": top_down}


def choose(operator: Dataflow, offer: Offer, engine: str = "constraints", budget: Budget | None = None) -> Choice:
    """Search by one of :data:`ENGINES`; rank by cost.

    Parameters
    ----------
    operator : Dataflow
    offer : Offer
    engine : str
    budget : Budget, optional
        What the searches may take.
    """
    budget = Budget() if budget is None else budget
    instruction = instruction_dataflow(offer.instruction)
    name = offer.instruction.name
    if not operator.macs:
        empty = next(axis.name for axis in operator.axes if not axis.extent)
        return Choice(name, reason=f"{operator.name} multiplies nothing: its axis {empty} is empty")
    try:
        found, programs = ENGINES[engine](operator, instruction, budget)
    except EmbeddingError as error:
        return Choice(name, reason=str(error), note=budget.note())
    if offer.most:
        found = sorted(found, key=lambda embedding: embedding.macs)[: offer.most]
    ranked, refused = rank(found, cost=offer.cost)
    reasons = tuple((str(embedding), why) for embedding, why in refused)
    reason = "" if ranked else f"{reasons[0][0]}: {reasons[0][1]}"
    return Choice(name, tuple(ranked), reasons, reason, programs, offer.unit, budget.note())


@dataclass(frozen=True)
class KernelChoice:
    """The kernel that is best of all instructions of a target.

    Attributes
    ----------
    instruction : Instruction
    plan : KernelPlan
    tried : int
        Kernels that were planned.
    """

    instruction: Instruction
    plan: KernelPlan
    tried: int


MOST_PLANS = 24
"""Embeddings of one instruction that kernels are planned of: those that waste least."""


def choose_kernel(operator: Dataflow, offers: Sequence[Offer], sources: tuple[Source, Source]) -> KernelChoice:
    """Plan kernels with every instruction that a target makes them of, and take the one that should be fastest.

    Parameters
    ----------
    operator : Dataflow
    offers : sequence of Offer
    sources : (str, str)
        What the factors come from.

    Raises
    ------
    EmbeddingError
        If there is none; the message says why of each instruction.
    """
    found: list[tuple[KernelPlan, Instruction]] = []
    reasons = []
    for offer in offers:
        if offer.plan is None:
            continue
        try:
            plans = list(_plans(operator, offer, sources))
        except EmbeddingError as error:
            reasons.append(str(error))
            continue
        found += [(plan, offer.instruction) for plan in plans]
    if not found:
        raise EmbeddingError("; ".join(dict.fromkeys(reasons)) or "the target makes no kernels of instructions")
    plan, instruction = min(found, key=lambda item: item[0].cycles)
    return KernelChoice(instruction, plan, len(found))


def _plans(operator: Dataflow, offer: Offer, sources: tuple[Source, Source]) -> Iterator[KernelPlan]:
    assert offer.plan is not None
    instruction = instruction_dataflow(offer.instruction)
    embeddings = solve(operator, instruction, _settings(operator))
    planned, refused = 0, ""
    for embedding in sorted(embeddings, key=lambda item: item.macs)[:MOST_PLANS]:
        try:
            plan = offer.plan(embedding, sources)
        except EmbeddingError as error:
            refused = str(error)
            continue
        planned += 1
        yield plan
    if refused and not planned:
        raise EmbeddingError(refused)


def _settings(operator: Dataflow) -> list[Setting]:
    """Search what hand-written layouts do, either factor as the vector, and the same padded."""
    padded = Setting("unit", pad_to=(1,), waste=MOST_WASTE, memory=False, overlapping=True)
    return [STRICT, replace(STRICT, swap=True), padded, replace(padded, swap=True)]


MOST_WASTE = 2.0
"""Largest ratio of padded extents to those of the operator: below half of its lanes an instruction does not pay."""


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
    """Give an operator of floats the types of an instruction of integers, as quantising it would.

    Raises
    ------
    EmbeddingError
        If the operator is of other types than float32, which nothing quantises, or the instruction sums up in fewer
        than 32 bits, which sums of a whole operator exceed.
    """
    others = [access.dtype for access in operator.operands if access.dtype != "float32"]
    if others:
        raise EmbeddingError(f"{operator.name} computes in {others[0]}; only products of float32 are quantised")
    types = [access.dtype for access in instruction_dataflow(instruction).operands]
    if tvm.DataType(types[2]).bits < 32:
        raise EmbeddingError(f"{instruction.name} sums up in {types[2]}, which a quantised {operator.name} exceeds")
    left, right, output = (replace(access, dtype=dtype) for access, dtype in zip(operator.operands, types, strict=True))
    return replace(operator, inputs=(left, right), output=output)
