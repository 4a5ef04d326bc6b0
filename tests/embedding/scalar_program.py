"""The constraint program of the source, scalar by scalar: a variable for each operation and element of an instruction.

Written for small sizes and by another path than the axis form: domains are lists of points, relations are tables of
pairs, boxes and access sets are enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import prod
from typing import Any

from ortools.sat.python import cp_model

from tvm_ext.embedding.dataflow import Access, Dataflow

Point = tuple[int, ...]


def points(flow: Dataflow) -> list[Point]:
    return list(product(*(range(axis.extent) for axis in flow.axes)))


def scalar_solutions(operator: Dataflow, instruction: Dataflow, memory: bool = True) -> set[tuple[Point, ...]]:
    """All embeddings, as the point of the operator that each multiplication of the instruction lies on."""
    model = cp_model.CpModel()
    domain, multiplications = points(operator), points(instruction)
    at = [model.new_int_var(0, len(domain) - 1, f"mul{point}") for point in multiplications]
    model.add(at[0] == 0)  # fixed origin
    model.add_all_different(at)
    for number in range(3):
        access, inner = operator.operands[number], instruction.operands[number]
        elements = {point: place for place, point in enumerate(product(*(range(extent) for extent in access.shape)))}
        names = sorted({inner.at(point) for point in multiplications})
        held = {name: model.new_int_var(0, len(elements) - 1, f"{number}{name}") for name in names}
        model.add_all_different(list(held.values()))
        pairs = [(place, elements[access.at(point)]) for place, point in enumerate(domain)]
        for variable, point in zip(at, multiplications, strict=True):
            model.add_allowed_assignments([variable, held[inner.at(point)]], pairs)
        rows = [[elements[point] for point in box] for box in boxes(access.shape, access.at(domain[0]), len(names))]
        model.add_allowed_assignments([held[name] for name in names], rows)
    if memory:
        _keep_apart(model, operator, instruction, at, domain, multiplications)
    collector = _Collector(at, domain)
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    status = solver.solve(model, collector)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE), solver.status_name(status)
    return collector.found


def boxes(shape: Point, origin: Point, count: int) -> Iterator[list[Point]]:
    """All axis-aligned boxes of so many points with regular strides, their points in order, from an origin on."""

    def grow(inner: list[Point], left: int, axes: tuple[int, ...]) -> Iterator[list[Point]]:
        if left == 1:
            yield inner
        for axis in axes:
            rest = tuple(other for other in axes if other != axis)
            for size in range(2, left + 1):
                if left % size == 0:
                    for stride in range(1, shape[axis]):
                        if max(point[axis] for point in inner) + (size - 1) * stride < shape[axis]:
                            moved = [
                                tuple(value + step * stride * (at == axis) for at, value in enumerate(point))
                                for step in range(size)
                                for point in inner
                            ]
                            yield from grow(moved, left // size, rest)

    yield from grow([origin], count, tuple(range(len(shape))))


def access_sets(flow: Dataflow, access: Access) -> dict[Point, frozenset[Point]]:
    """For each output the elements of a factor that it needs."""
    found: dict[Point, set[Point]] = {}
    for point in points(flow):
        found.setdefault(flow.output.at(point), set()).add(access.at(point))
    return {output: frozenset(elements) for output, elements in found.items()}


def _keep_apart(model: Any, operator: Dataflow, instruction: Dataflow, at: list[Any], domain: list[Point],
                multiplications: list[Point]) -> None:  # fmt: skip
    first = {}  # output of the instruction -> one of its multiplications
    for place, point in enumerate(multiplications):
        first.setdefault(instruction.output.at(point), place)
    for number in range(2):
        inner = access_sets(instruction, instruction.inputs[number])
        outer = access_sets(operator, operator.inputs[number])
        for one, other in combinations(first, 2):
            alike = inner[one] == inner[other]
            assert alike or not inner[one] & inner[other]
            pairs = []
            for (i, left), (j, right) in product(enumerate(domain), repeat=2):
                needed = outer[operator.output.at(left)], outer[operator.output.at(right)]
                if needed[0] == needed[1] if alike else not needed[0] & needed[1]:
                    pairs.append((i, j))
            model.add_allowed_assignments([at[first[one]], at[first[other]]], pairs)


class _Collector(cp_model.CpSolverSolutionCallback):
    def __init__(self, variables: list[Any], domain: list[Point]) -> None:
        super().__init__()
        self.variables, self.domain = variables, domain
        self.found: set[tuple[Point, ...]] = set()

    def on_solution_callback(self) -> None:
        self.found.add(tuple(self.domain[self.value(variable)] for variable in self.variables))


def expand(embedding: Any) -> tuple[Point, ...]:
    """The point of the operator that each multiplication of an embedding in axis form lies on."""
    found = []
    for point in points(embedding.instruction):
        place = [0] * len(embedding.operator.axes)
        for value, fused in zip(point, embedding.digits, strict=True):
            assert prod(digit.size for digit in fused) in (1, *(axis.extent for axis in embedding.instruction.axes))
            for digit in reversed(fused):
                value, part = divmod(value, digit.size)
                place[digit.axis] += part * digit.stride
        found.append(tuple(place))
    return tuple(found)
