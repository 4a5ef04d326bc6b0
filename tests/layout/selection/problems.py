"""Random problems, and their best choice by trying all of them."""

from __future__ import annotations

from itertools import product

import numpy as np

from tvm_ext.layout.selection import Edge, Operator, Plan, SelectionProblem


def random_problem(
    seed: int, pairs: list[tuple[int, int]], count: int, plans: tuple[int, int] = (1, 4), relayouts: float = 0.2
) -> SelectionProblem:
    random = np.random.default_rng(seed)
    operators = tuple(
        Operator(
            f"op{name}",
            tuple(Plan(f"p{i}", int(random.integers(0, 30))) for i in range(random.integers(plans[0], plans[1] + 1))),
            is_relayout=bool(random.random() < relayouts),
        )
        for name in range(count)
    )
    edges = tuple(
        Edge(
            source,
            target,
            tuple(
                tuple(int(random.integers(0, 20)) * int(random.random() < 0.7) for _ in operators[target].plans)
                for _ in operators[source].plans
            ),
        )
        for source, target in pairs
    )
    return SelectionProblem(operators, edges)


def chain(seed: int) -> SelectionProblem:
    count = 1 + seed % 6
    return random_problem(seed, [(name, name + 1) for name in range(count - 1)], count)


def tree(seed: int, count: int) -> SelectionProblem:
    """Each operator reads one earlier one, or (turned round) is read by one later one."""
    random = np.random.default_rng(seed)
    if seed % 2:
        return random_problem(seed, [(int(random.integers(0, name)), name) for name in range(1, count)], count)
    return random_problem(seed, [(name, int(random.integers(name + 1, count))) for name in range(count - 1)], count)


def graph(seed: int, count: int, density: float, plans: tuple[int, int] = (1, 4)) -> SelectionProblem:
    """Any acyclic graph, some edges twice."""
    random = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count) if random.random() < density]
    pairs += [pair for pair in pairs if random.random() < 0.1]
    return random_problem(seed, pairs, count, plans)


def residual(seed: int, blocks: int) -> SelectionProblem:
    """Three operators and an addition a block, like a network with residual connections."""
    pairs = []
    for block in range(blocks):
        first = 4 * block
        pairs += [(first, first + 1), (first + 1, first + 2), (first + 2, first + 3), (first + 3, first + 4)]
        pairs.append((first, first + 4))
    return random_problem(seed, pairs, 4 * blocks + 1, (3, 3))


def brute_force(problem: SelectionProblem) -> int:
    return min(
        problem.aggregate_cost(choice)
        for choice in product(*(range(len(operator.plans)) for operator in problem.operators))
    )
