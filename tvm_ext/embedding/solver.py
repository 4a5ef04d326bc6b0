"""Solves the constraint program with python-constraint2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from tvm_ext.embedding import constraints
from tvm_ext.embedding.budget import SET_QUESTION, Budget, SearchEnd
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding, Fused
from tvm_ext.embedding.program import STRICT, Setting, values
from tvm_ext.errors import EmbeddingError, MissingPackageError

LIMIT = 4096
"""Solutions of one search that are looked at."""

# Types of factors that a type of an instruction's factor can hold.
_HOLDS = {"int16": ("int8", "uint8", "int16")}


def solve(
    operator: Dataflow,
    instruction: Dataflow,
    settings: Sequence[Setting] = (STRICT,),
    limit: int = LIMIT,
    budget: Budget | None = None,
) -> list[Embedding]:
    """Find how an instruction fits an operator.

    Parameters
    ----------
    operator, instruction : Dataflow
    settings : sequence of Setting
        Searched one after the other.
    limit : int
        Solutions of each that are taken at most; those found until then are returned.
    budget : Budget, optional
        What each search may take; it says afterwards whether one was stopped. Searches that are stopped give what they
        have found, and what the same with fewer axes fused on one finds.

    Returns
    -------
    list of Embedding
        In the order in which they were found, each once.

    Raises
    ------
    EmbeddingError
        If there is none, or none was found until the budget was spent; the message says why.
    """
    budget = Budget() if budget is None else budget
    orders = [swapped for swapped in (False, True) if fits_types(operator, instruction, swapped)]
    if not orders:
        raise EmbeddingError(explain_types(operator, instruction))
    found: dict[tuple, Embedding] = {}
    for setting in settings:
        for swapped in orders if setting.swap else orders[:1]:
            before = len(found)
            for embedding in islice(_within(budget, operator, instruction, swapped, setting), limit):
                found.setdefault((embedding.digits, swapped), embedding)
            if len(found) - before == limit:
                budget.stopped.append(f"{limit:,} solutions")
    if not found:
        if budget.stopped:
            raise EmbeddingError(f"{instruction.name} into {operator.name}: {budget.note()}, which is nothing")
        raise EmbeddingError(explain(operator, instruction, orders, settings))
    return list(found.values())


def fits_types(operator: Dataflow, instruction: Dataflow, swapped: bool) -> bool:
    """Whether the types of an operator's operands are those of the instruction's, or factors can be widened to them."""
    factors = reversed(operator.inputs) if swapped else operator.inputs
    return operator.output.dtype == instruction.output.dtype and all(
        have.dtype in _HOLDS.get(wanted.dtype, (wanted.dtype,))
        for have, wanted in zip(factors, instruction.inputs, strict=True)
    )


def explain_types(operator: Dataflow, instruction: Dataflow) -> str:
    """Say which types an operator and an instruction have that do not agree."""
    return (
        f"{operator.name} multiplies {' and '.join(access.dtype for access in operator.inputs)} into "
        f"{operator.output.dtype}, the instruction "
        f"{' and '.join(access.dtype for access in instruction.inputs)} into {instruction.output.dtype}"
    )


def element_order(instruction: Dataflow, operand: int) -> list[int]:
    """Axes of an operand of an instruction in the order of its elements, outermost first.

    Raises
    ------
    EmbeddingError
        If an index of the instruction is more than an axis.
    """
    order = []
    for row in instruction.operands[operand].index:
        used = [at for at, step in enumerate(row) if step]
        if len(used) > 1 or any(row[at] != 1 for at in used):
            raise EmbeddingError(
                f"operand {instruction.operands[operand].tensor} of the instruction {instruction.name}: expected an "
                "axis, or a constant, as each index"
            )
        order += used
    return order


def _within(
    budget: Budget, operator: Dataflow, instruction: Dataflow, swapped: bool, setting: Setting
) -> Iterator[Embedding]:
    """Search until the budget is spent; then search again for mappings with fewer axes fused, which are far fewer."""
    for dimensions in (setting.dimensions, *range(1, setting.dimensions)):
        budget.begin()
        try:
            yield from _search(operator, instruction, swapped, replace(setting, dimensions=dimensions), budget)
        except SearchEnd:
            if dimensions != setting.dimensions:
                return
        else:
            if dimensions == setting.dimensions:
                return


def _search(
    operator: Dataflow, instruction: Dataflow, swapped: bool, setting: Setting, budget: Budget
) -> Iterator[Embedding]:
    domains = []
    for axis in range(len(instruction.axes)):
        domains.append(list(values(operator, instruction, axis, swapped, setting, budget)))
        if not domains[-1]:
            return
    problem = _problem()
    # Outputs first, then backwards through the dataflow: what they are decides most of the rest.
    outputs = [axis for axis in range(len(instruction.axes)) if instruction.output.uses(axis)]
    order = [*outputs, *(axis for axis in range(len(instruction.axes)) if axis not in outputs)]
    for axis in order:
        problem.addVariable(axis, domains[axis][::-1])  # the solver takes values from the end
    for check, axes in _constraints(operator, instruction, swapped, setting, budget):
        if axes:
            problem.addConstraint(_counted(check, budget), axes)
        elif not check():
            return
    for solution in problem.getSolutionIter():
        digits = tuple(solution[axis] for axis in range(len(instruction.axes)))
        yield Embedding(operator, instruction, digits, swapped)


def _counted(check: Callable[..., bool], budget: Budget) -> Callable[..., bool]:
    def counted(*fused: Fused) -> bool:
        budget.spend()
        return check(*fused)

    return counted


def _constraints(
    operator: Dataflow, instruction: Dataflow, swapped: bool, setting: Setting, budget: Budget
) -> Iterator[tuple[Callable[..., bool], list[int]]]:
    everything = list(range(len(instruction.axes)))
    yield lambda *fused: constraints.one_extent(fused), everything
    yield lambda *fused: constraints.all_different(fused), everything
    if setting.tiles:
        yield lambda *fused: constraints.covers(fused), everything
    for number in range(3):
        axes = element_order(instruction, number)
        operand = number if number == 2 or not swapped else 1 - number
        if number == 2 or not setting.overlapping:
            yield _box(operator, operand, setting.ordered), axes
        outputs = [axis for axis in axes if number != 2 and instruction.output.uses(axis)]
        if setting.memory and outputs:
            yield _memory(operator, operand, budget), outputs


def _box(operator: Dataflow, operand: int, ordered: bool) -> Callable[..., bool]:
    return lambda *fused: constraints.is_box(operator.operands[operand], fused, ordered)


def _memory(operator: Dataflow, operand: int, budget: Budget) -> Callable[..., bool]:
    @cache
    def holds(*fused: Fused) -> bool:
        budget.spend(SET_QUESTION)
        return constraints.no_overlap(operator, operand, fused)

    return holds


def explain(operator: Dataflow, instruction: Dataflow, orders: Sequence[bool], settings: Sequence[Setting]) -> str:
    """Say why there is no embedding: an axis with nothing to lie on it, or constraints that cannot hold together."""
    for swapped in orders:
        lacking = []
        for axis in range(len(instruction.axes)):
            if any(_has_value(operator, instruction, axis, swapped, setting) for setting in settings):
                continue
            pattern, wanted = instruction.pattern(axis, swapped), instruction.axes[axis]
            fitting = [it for at, it in enumerate(operator.axes) if operator.pattern(at) == pattern]
            have = ", ".join(f"{it.name} of {it.extent}" for it in fitting)
            lacking.append(
                f"axis {wanted.name} of {wanted.extent} finds no axis of its kind in {operator.name}" if not fitting
                else f"axis {wanted.name} of {wanted.extent} does not divide {have}"
            )  # fmt: skip
        if lacking:
            return f"{instruction.name} does not fit {operator.name}: {'; '.join(lacking)}"
    return f"{instruction.name} does not fit {operator.name}: no mapping keeps layout and memory accesses apart"


def _has_value(operator: Dataflow, instruction: Dataflow, axis: int, swapped: bool, setting: Setting) -> bool:
    return next(values(operator, instruction, axis, swapped, setting), None) is not None


def _problem() -> Any:
    try:
        import constraint
    except ImportError as error:
        raise MissingPackageError(
            "embedding instructions needs the package python-constraint2; install 'tvm-ext[embed]'"
        ) from error
    return constraint.Problem(constraint.OptimizedBacktrackingSolver())
