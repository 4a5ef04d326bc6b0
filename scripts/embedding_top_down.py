"""The seven operators of the top-down engine's source, and the instructions of its Table 3.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_ext.embedding.top_down.automaton import Automaton
from tvm_ext.embedding.top_down.graph import (
    COMMUTATIVE,
    Compute,
    Constant,
    Expression,
    Graph,
    Index,
    Input,
    Operation,
    Reduce,
    Statement,
    program,
)
from tvm_ext.embedding.top_down.search import LIMIT, count, layouts, programs
from tvm_ext.embedding.top_down.tree import node_count, tree

OPERATIONS: tuple[Operation, ...] = ("add", "mul", "sub", "div", "max", "exp")
REDUCTIONS: tuple[Operation, ...] = ("add", "mul", "max")


def read(tensor: str | int, *index: int | Index) -> Input:
    """Read a tensor; an index is the level of an iterator, or a sum."""
    return Input(tensor, tuple(Index(((it, 1),)) if isinstance(it, int) else it for it in index))


def moved(level: int, by: int) -> Index:
    """Index a window: an iterator and that of the window."""
    return Index(((level, 1), (by, 1)))


def _add(a: Expression, b: Expression) -> Compute:
    return Compute("add", (a, b))


def _mul(a: Expression, b: Expression) -> Compute:
    return Compute("mul", (a, b))


def instructions(length: int = 4) -> dict[str, Graph]:
    """Table 3.1: vector with scalar, vector with vector, reduction, dot product, matrix with vector.

    A scalar result is in a loop of one turn. Operations that commute have their operands in both orders.
    """
    found: dict[str, Graph] = {}

    def orders(name: str, operation: Operation, a: Input, b: Input, make: Callable[[Compute], Statement]) -> None:
        found[name] = program(make(Compute(operation, (a, b))))
        if operation in COMMUTATIVE and a.index != b.index:
            found[f"{name}, operands swapped"] = program(make(Compute(operation, (b, a))))

    for operation in OPERATIONS:
        if operation == "exp":
            found["vector exp"] = program(Statement((length,), Compute("exp", (read("a", 0),))))
            continue
        vector = lambda value: Statement((length,), value)  # noqa: E731
        orders(f"vector-scalar {operation}", operation, read("a", 0), read("b"), vector)
        orders(f"vector-vector {operation}", operation, read("a", 0), read("b", 0), vector)
    for reduction in REDUCTIONS:
        found[f"reduction {reduction}"] = program(Statement((1,), Reduce(reduction, length, read("a", 1))))
        for operation in OPERATIONS[:-1]:
            name = f"{operation} {reduction}"
            dot = lambda value: Statement((1,), Reduce(reduction, length, value))  # noqa: B023, E731
            matrix = lambda value: Statement((length,), Reduce(reduction, length, value))  # noqa: B023, E731
            orders(f"dot {name}", operation, read("a", 1), read("b", 1), dot)
            orders(f"matrix-vector {name}", operation, read("a", 0, 1), read("b", 1), matrix)
    return found


def automaton() -> Automaton:
    """Build the automaton of all instructions of Table 3.1."""
    return Automaton({name: tree(graph) for name, graph in instructions().items()})


def fc_bias(i: int = 4, o: int = 3) -> Graph:
    """``y[o] = sum_i x[i] * w[o,i] + b[o]``."""
    total = Reduce("add", i, _mul(read("x", 1), read("w", 0, 1)))
    return program(Statement((o,), _add(total, read("b", 0))))


def fc_bias_sigmoid(i: int = 4, o: int = 3) -> Graph:
    """Fully connected layer with bias, then ``e / (e + 1)`` with ``e = exp(y)``."""
    return program(
        *fc_bias(i, o).statements,
        Statement((o,), Compute("exp", (read(0, 0),))),
        Statement((o,), Compute("div", (read(1, 0), _add(read(1, 0), Constant(1))))),
    )


def _product(i: int, j: int, k: int) -> Statement:
    return Statement((i, j), Reduce("add", k, _mul(read("q", 0, 2), read("k", 1, 2))))


def gemm(i: int = 2, j: int = 3, k: int = 4) -> Graph:
    """``r[i,j] = sum_k q[i,k] * k[j,k]``."""
    return program(_product(i, j, k))


def attention(i: int = 2, j: int = 3, k: int = 4) -> Graph:
    """Equations 3.2 and 3.3: the same, then times a scalar."""
    return program(_product(i, j, k), Statement((i, j), _mul(read(0, 0, 1), read("s"))))


def conv2d(n: int = 1, h: int = 2, w: int = 2, o: int = 3, kernel: int = 2, i: int = 4) -> Graph:
    """Convolve data in NHWC with weights in OHWI; data is padded already."""
    data = read("x", 0, moved(1, 4), moved(2, 5), 6)
    window = _mul(data, read("w", 3, 4, 5, 6))
    return program(Statement((n, h, w, o), Reduce("add", kernel, Reduce("add", kernel, Reduce("add", i, window)))))


def conv2d_relu(**extents: int) -> Graph:
    """Convolution, then ReLU."""
    (first,) = conv2d(**extents).statements
    return program(first, Statement(first.loops, Compute("max", (read(0, 0, 1, 2, 3), Constant(0)))))


def capsule_routing(i: int = 4, j: int = 3, o: int = 2) -> Graph:
    """One turn of routing by agreement: ``i`` capsules to ``j`` capsules of ``o`` values.

    Softmax over ``j``, weighted sum of predictions, squash by ``q / (1 + q)`` with ``q`` the square of the norm,
    agreement, new logits. Instructions read vectors along the innermost dimension only, and no rewrite transposes an
    intermediate tensor, so logits and predictions are there in two orders.
    """
    return program(
        Statement((i, j), Compute("exp", (read("logits_ij", 0, 1),))),
        Statement((i,), Reduce("add", j, read(0, 0, 1))),
        Statement((j, i), Compute("exp", (read("logits_ji", 0, 1),))),
        Statement((j, i), Compute("div", (read(2, 0, 1), read(1, 1)))),
        Statement((j, o), Reduce("add", i, _mul(read(3, 0, 2), read("predictions_joi", 0, 1, 2)))),
        Statement((j,), Reduce("add", o, _mul(read(4, 0, 1), read(4, 0, 1)))),
        Statement((j,), Compute("div", (read(5, 0), _add(read(5, 0), Constant(1))))),
        Statement((j, o), _mul(read(4, 0, 1), read(6, 0))),
        Statement((j, i), Reduce("add", o, _mul(read("predictions_jio", 0, 1, 2), read(7, 0, 2)))),
        Statement((j, i), _add(read("logits_ji", 0, 1), read(8, 0, 1))),
    )


OPERATORS: dict[str, Callable[[], Graph]] = {
    "FC + bias": fc_bias, "FC + bias + sigmoid": fc_bias_sigmoid, "GEMM": gemm, "attention": attention,
    "Conv2D": conv2d, "Conv2D + ReLU": conv2d_relu, "capsule routing": capsule_routing,
}  # fmt: skip

TABLE_3_3 = {
    "FC + bias": (16, 24, 4, 7), "FC + bias + sigmoid": (29, 144, 4, 12), "GEMM": (11, 35, 4, 8),
    "attention": (26, 289, 9, 11), "Conv2D": (26, 59_503, 682, 25), "Conv2D + ReLU": (56, 440_428, 1_428, 33),
    "capsule routing": (127, 1_023_516, 12, 32),
}  # fmt: skip
"""As printed: nodes, candidates, solutions, median of transformations."""

TABLE_3_5 = {"GEMM": (73, 5), "Conv2D": (1_372_653, 3_810)}
"""As printed: candidates and solutions with all layouts."""

CONFIGURATIONS = {1: (False, False), 2: (True, False), 3: (False, True), 4: (True, True)}
"""Table 3.4: fission, fusion with inlining."""


def search(name: str, limit: int = LIMIT) -> dict[str, Any]:
    """Search one operator in all four configurations, and with all layouts where Table 3.5 does."""
    operator, patterns = OPERATORS[name](), automaton()
    row: dict[str, Any] = {"operator": name, "nodes": node_count(operator)}
    for number, (fission, fusion) in CONFIGURATIONS.items():
        found = count(programs(operator, fission, fusion, limit), patterns)
        row[f"config {number}"] = [found.candidates, found.solutions]
    row |= {"programs": found.programs, "candidates": found.candidates, "solutions": found.solutions,
            "transformations": found.transformations, "printed": TABLE_3_3[name]}  # fmt: skip
    if name in TABLE_3_5:
        every: dict[Graph, int] = {}
        for layout in layouts(operator):
            for graph, steps in programs(layout, limit=limit).items():
                every.setdefault(graph, steps)
        found = count(every, patterns)
        row |= {"layout_candidates": found.candidates, "layout_solutions": found.solutions,
                "printed_layouts": TABLE_3_5[name]}  # fmt: skip
    return row
