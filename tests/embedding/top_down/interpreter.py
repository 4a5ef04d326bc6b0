"""Programs of loop nests in numpy: scalar by scalar in the order of their loops, or by instructions that match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.embedding.top_down.automaton import Match
from tvm_ext.embedding.top_down.graph import INITIAL, Compute, Constant, Expression, Graph, Index, Input
from tvm_ext.embedding.top_down.masks import Mask

BINARY = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "div": np.divide, "max": np.maximum}
Tensors = dict[str | int, NDArray[np.float64]]


def place(index: Sequence[Index], at: Sequence[int]) -> tuple[int, ...]:
    return tuple(it.offset + sum(step * at[level] for level, step in it.terms) for it in index)


def scalar(value: Expression, at: tuple[int, ...], tensors: Mapping[str | int, NDArray]) -> float:
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Input):
        return float(tensors[value.tensor][place(value.index, at)])
    if isinstance(value, Compute):
        operands = [scalar(operand, at, tensors) for operand in value.operands]
        return float(np.exp(operands[0]) if value.operation == "exp" else BINARY[value.operation](*operands))
    total = INITIAL[value.operation]
    for step in range(value.extent):
        total = float(BINARY[value.operation](total, scalar(value.body, (*at, step), tensors)))
    return total


def run(graph: Graph, arrays: Mapping[str, NDArray], instructions: Instructions | None = None) -> NDArray:
    """Run a program; what it reads before it is computed is NaN."""
    tensors: Tensors = dict(arrays)
    tensors |= {number: np.full(it.loops, np.nan) for number, it in enumerate(graph.statements)}

    def nest(first: int, last: int, at: tuple[int, ...]) -> None:
        start, level = first, len(at)
        for number in range(first, last + 1):
            if number < last and graph.shared[number] > level:
                continue
            loops = graph.statements[number].loops
            if start == number and level + 1 == len(loops) and instructions is not None:
                instructions.run(number, at, tensors)
            elif start == number and level == len(loops):
                tensors[number][at] = scalar(graph.statements[number].value, at, tensors)
            else:
                for step in range(loops[level]):
                    nest(start, number, (*at, step))
            start = number + 1

    nest(0, len(graph.statements) - 1, ())
    return tensors[len(graph.statements) - 1]


class Instructions:
    """Runs the innermost loop of statements by the meaning of the instruction that was selected for it."""

    def __init__(
        self, graph: Graph, masks: Sequence[Mask], selected: Sequence[Match], meanings: Mapping[str, Graph]
    ) -> None:
        self.graph, self.masks, self.meanings = graph, masks, meanings
        self.chosen = {match.node.statement: match for match in selected}

    def run(self, number: int, at: tuple[int, ...], tensors: Tensors) -> None:
        """Give the instruction the visible dimensions of its operands, at a point of the loops around it."""
        statement, pattern = self.graph.statements[number], self.meanings[self.chosen[number].pattern].statements[0]
        scalar_result = pattern.loops == (1,)
        for turn in range(statement.loops[-1]) if scalar_result else (slice(None),):
            fixed = (*at, turn if scalar_result else 0)
            operands = {}
            for mine, theirs, mask in zip(
                _operands(statement.value), _operands(pattern.value), self._masks(number), strict=True
            ):
                assert isinstance(theirs, Input)
                if isinstance(mine, Constant):
                    operands[theirs.tensor] = np.asarray(mine.value)
                    continue
                hidden = len(mine.index) - mask
                outside = place(mine.index[:hidden], (*fixed, *(0,) * 8))
                operands[theirs.tensor] = tensors[mine.tensor][outside]
            tensors[number][(*at, turn)] = _vectors(pattern.value, operands, scalar_result)

    def _masks(self, number: int) -> list[int]:
        mask = iter(self.masks[number])
        return [next(mask) if isinstance(it, Input) else 0 for it in _operands(self.graph.statements[number].value)]


def _operands(value: Expression) -> list[Input | Constant]:
    if isinstance(value, Input | Constant):
        return [value]
    if isinstance(value, Compute):
        return [leaf for operand in value.operands for leaf in _operands(operand)]
    return _operands(value.body)


def _vectors(value: Expression, operands: Mapping[str | int, NDArray], scalar_result: bool) -> NDArray:
    """What an instruction of Table 3.1 does to operands of any length."""
    if isinstance(value, Input):
        return operands[value.tensor]
    if isinstance(value, Compute):
        found = [_vectors(operand, operands, scalar_result) for operand in value.operands]
        return np.exp(found[0]) if value.operation == "exp" else BINARY[value.operation](*found)
    assert not isinstance(value, Constant)
    return BINARY[value.operation].reduce(_vectors(value.body, operands, scalar_result), axis=-1)


def arrays_of(graph: Graph, seed: int = 0) -> dict[str, NDArray]:
    """Draw what a program reads; as large as the accesses reach."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(value: Expression, extents: tuple[int, ...]) -> None:
        if isinstance(value, Compute):
            for operand in value.operands:
                visit(operand, extents)
        elif isinstance(value, Input) and isinstance(value.tensor, str):
            shapes[value.tensor] = tuple(1 + it for it in place(value.index, [one - 1 for one in extents]))
        elif not isinstance(value, Input | Constant):
            visit(value.body, (*extents, value.extent))

    for statement in graph.statements:
        visit(statement.value, statement.loops)
    return {name: rng.uniform(0.5, 1.5, shape) for name, shape in shapes.items()}
