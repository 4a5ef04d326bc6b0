"""Blocks of channels for a whole network, selected on numbers: what each operator takes in each, and what a copy takes.

A convolution over all channels or in groups reads any block, and computes in vectors as wide as the block of its
result. Operators between convolutions keep the block, and a concatenation needs one that divides all of its parts. So
narrower blocks, which take longer to compute, may save copies elsewhere; the planner of
:mod:`tvm_ext.layout.selection` weighs that (GCD2, Eq. 4.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_ext.layout.convolution_plan import ConvolutionPlan, ConvolutionShape
from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    Selection,
    SelectionProblem,
    plan_selection,
    verify_selection,
)
from tvm_ext.schedules.cpu.conv_tile import register_tile, tile_cost
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.winograd import winograd_cycles

PLAIN = 1
"""The block of a tensor that is not blocked: a plane for each channel."""

PAYS = 0.6
"""Share of the time of blocks chosen one by one, below which those selected are taken.

Both are estimates, which count too much for copies: GhostNet, 0.80 and 0.69 by the model on 64 x 64 and
224 x 224 pixels, gained nothing (Zen 5).
"""

NEVER = 10**14
"""Picoseconds of what cannot be."""


@dataclass(frozen=True)
class Tensor:
    """An operand: the operator that makes it, and its extent.

    Attributes
    ----------
    maker : int
        Index of the operator.
    channels, positions : int
        Images times pixels; together the elements.
    """

    maker: int
    channels: int
    positions: int

    def copied_seconds(self, before: int, after: int, machine: Machine) -> float:
        """Estimate what it takes to copy it from one block to another."""
        moved = 4 * self.positions * sum(-(-self.channels // block) * block for block in (before, after))
        bandwidth = machine.l2_bandwidth if moved <= machine.l2 else machine.l3_bandwidth
        if moved > machine.l3 // 2:
            bandwidth = machine.stream_bandwidth
        seconds = moved / bandwidth
        if seconds >= machine.forking_pays_from():
            seconds = seconds / machine.cores + machine.fork_seconds
        return seconds + machine.call_seconds


@dataclass(frozen=True)
class BlockedOperator:
    """An operator, and the blocks in which it may give its result.

    Attributes
    ----------
    name : str
        For messages.
    seconds : mapping of int to float
        What it takes, by the block of its result.
    operands : tuple of Tensor
    reads : str
        ``any``: blocks of any width, uncopied; ``same``: the block of its result, copied where it is another one;
        ``kept``: as ``same``, but the first operand as it is, without a copy.
    """

    name: str
    seconds: Mapping[int, float]
    operands: tuple[Tensor, ...] = ()
    reads: str = "same"


@dataclass(frozen=True)
class SelectedBlocks:
    """Blocks of all operators.

    Attributes
    ----------
    blocks : tuple of int
        Of the result of each operator.
    seconds : float
        What operators and copies take by the model.
    default_seconds : float
        The same with blocks chosen one by one.
    optimal : bool
        Whether no other blocks take less, by the model.
    """

    blocks: tuple[int, ...]
    seconds: float
    default_seconds: float
    optimal: bool

    @property
    def summary(self) -> tuple[tuple[str, Any], ...]:
        """What was selected, for metadata and reports: operators by their blocks, and microseconds by the model."""
        return (
            ("operators", {str(block): count for block, count in sorted(Counter(self.blocks).items())}),
            ("optimal", self.optimal),
            ("microseconds", round(1e6 * self.seconds, 3)),
            ("chosen one by one", round(1e6 * self.default_seconds, 3)),
        )

    @property
    def pays(self) -> bool:
        """Whether they are worth leaving those that are chosen one by one."""
        return self.seconds < PAYS * self.default_seconds


def select_blocks(operators: Sequence[BlockedOperator], machine: Machine) -> SelectedBlocks:
    """Select the blocks of all operators, and verify the selection.

    Each operator lists its blocks in ``seconds``; the first that takes the least is what it would choose by itself.
    """
    problem = problem_of(operators, machine)
    selection: Selection = plan_selection(problem)
    verify_selection(selection, problem)
    blocks = tuple(list(operator.seconds)[index] for operator, index in zip(operators, selection.choice, strict=True))
    default = problem.aggregate_cost(_one_by_one(operators))
    return SelectedBlocks(blocks, selection.cost * 1e-12, default * 1e-12, selection.optimal)


def problem_of(operators: Sequence[BlockedOperator], machine: Machine) -> SelectionProblem:
    """State what is to be selected, in picoseconds."""
    plain = tuple(
        Operator(
            f"{number} {operator.name}",
            tuple(Plan(str(block), round(1e12 * cost)) for block, cost in operator.seconds.items()),
        )
        for number, operator in enumerate(operators)
    )
    edges = []
    for number, operator in enumerate(operators):
        for place, tensor in enumerate(operator.operands):
            makers = list(operators[tensor.maker].seconds)
            rows = tuple(
                tuple(_between(operator, place, tensor, before, after, machine) for after in operator.seconds)
                for before in makers
            )
            edges.append(Edge(tensor.maker, number, rows))
    return SelectionProblem(plain, tuple(edges))


def _between(operator: BlockedOperator, place: int, tensor: Tensor, before: int, after: int, machine: Machine) -> int:
    """Picoseconds between the block in which a tensor is made and the one in which it is read."""
    if before == after or (operator.reads == "any" and before != PLAIN):
        return 0
    if operator.reads == "kept" and place == 0:
        return NEVER
    return round(1e12 * tensor.copied_seconds(before, after, machine))


def _one_by_one(operators: Sequence[BlockedOperator]) -> list[int]:
    """Choose as each operator does by itself: what keeps blocks keeps them, convolutions take their best."""
    choice: list[int] = []
    for operator in operators:
        blocks = list(operator.seconds)
        times = list(operator.seconds.values())
        own = blocks[times.index(min(times))]
        given = [list(operators[tensor.maker].seconds)[choice[tensor.maker]] for tensor in operator.operands]
        if operator.reads == "any" or not operator.operands:
            wanted = own
        elif operator.reads == "kept":
            wanted = given[0]
        else:
            wanted = min((block for block in given if block != PLAIN), default=PLAIN)
            if wanted not in blocks:
                wanted = PLAIN if PLAIN in blocks else own
        choice.append(blocks.index(wanted) if wanted in blocks else 0)
    return choice


def convolution_seconds(plan: ConvolutionPlan, shape: ConvolutionShape, machine: Machine) -> float:
    """Estimate what a plan of a convolution takes on all cores."""
    planes = shape.batch * prod(shape.results[:-2])
    rows, width = shape.results[-2:]
    lanes, taps = machine.lanes("float32"), prod(shape.kernel)
    channels = shape.in_channels // shape.groups
    reduction = -(-channels // (plan.block_sum or plan.block_in)) * (plan.block_sum or plan.block_in) * taps
    parts = max(1, lanes // plan.block_out)
    if plan.winograd is not None:
        slots = machine.units * winograd_cycles(
            plan.winograd.outputs, planes, -(-shape.in_channels // lanes) * lanes, shape.out_channels, (rows, width),
            machine, prod(shape.kernel[:-2]), plan.rounds,
        )  # fmt: skip
    elif plan.form == "depthwise":
        slots = planes * rows * plan.computed * plan.chunks * taps
    else:
        if plan.form == "pixels":
            rows, width = 1, plan.computed
        tile = register_tile(width, plan.chunks, machine, reduction)
        slots = planes * rows * plan.chunks * reduction * tile_cost(width, tile, reduction, machine)
    if plan.rounds and plan.winograd is None:
        slots /= 2
    seconds = slots * machine.narrowing(parts) / parts / machine.slots(1.0)
    flops = 2 * planes * rows * width * plan.chunks * plan.block_out * reduction
    return seconds / machine.cores if machine.divides(flops) else seconds
