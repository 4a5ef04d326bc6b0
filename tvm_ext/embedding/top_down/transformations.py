"""The eight transformations of section 3.3; each gives a new program that computes the same.

Input masking hides dimensions from the matcher and leaves the program as it is: it is in ``masks.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvm_ext.embedding.top_down.graph import (
    COMMUTATIVE,
    Compute,
    Constant,
    Expression,
    Graph,
    Input,
    Reduce,
    Statement,
    at,
    consumers,
    has_reduction,
    inputs,
    map_inputs,
    map_statements,
)


def swap_operands(value: Compute) -> Compute:
    """Exchange the operands of a commutative operation."""
    if value.operation not in COMMUTATIVE:
        raise ValueError(f"operation {value.operation} does not commute; expected one of {sorted(COMMUTATIVE)}")
    return replace(value, operands=value.operands[::-1])


def canonical(graph: Graph) -> tuple[Graph, int]:
    """Order the operands of commutative operations as Table 3.2 does: intermediate values left, constants right.

    Returns
    -------
    Graph
    int
        How many operands were swapped.
    """
    swaps = 0

    def place(value: Expression) -> int:
        return (
            2 if isinstance(value, Constant) else 1 if isinstance(value, Input) and isinstance(value.tensor, str) else 0
        )

    def ordered(value: Expression) -> Expression:
        nonlocal swaps
        if isinstance(value, Reduce):
            return replace(value, body=ordered(value.body))
        if not isinstance(value, Compute):
            return value
        found = replace(value, operands=tuple(ordered(operand) for operand in value.operands))
        if found.operation in COMMUTATIVE and place(found.operands[0]) > place(found.operands[-1]):
            swaps += 1
            found = swap_operands(found)
        return found

    return replace(graph, statements=tuple(replace(it, value=ordered(it.value)) for it in graph.statements)), swaps


def transpose_input(graph: Graph, tensor: str, order: Sequence[int]) -> Graph:
    """Store an outer tensor with its dimensions in another order: new dimension ``i`` is the old ``order[i]``."""

    def change(read: Input) -> Input:
        return replace(read, index=tuple(read.index[old] for old in order)) if read.tensor == tensor else read

    return map_statements(graph, change)


def transpose_output(graph: Graph, number: int, order: Sequence[int]) -> Graph:
    """Compute and store the result of a statement with its dimensions in another order, as for inputs.

    Raises
    ------
    ValueError
        If the statement shares loops.
    """
    if graph.own(number):
        raise ValueError(f"statement {number} shares loops with a neighbour; transpose before fusion")
    old = graph.statements[number]
    level = {before: new for new, before in enumerate(order)}

    def renumber(read: Input) -> Input:
        return replace(read, index=tuple(it.substitute(lambda one: at(level.get(one, one))) for it in read.index))

    def permute(read: Input) -> Input:
        return replace(read, index=tuple(read.index[before] for before in order)) if read.tensor == number else read

    new = Statement(tuple(old.loops[before] for before in order), map_inputs(old.value, renumber))
    statements = list(map_statements(graph, permute).statements)
    statements[number] = new
    return replace(graph, statements=tuple(statements))


def compute_fissions(graph: Graph) -> Iterator[Graph]:
    """Move the last operation of a statement behind it, into a statement of its own, for each operand it computes."""
    for number, statement in enumerate(graph.statements):
        value = statement.value
        if not isinstance(value, Compute):
            continue
        for place, operand in enumerate(value.operands):
            if isinstance(operand, Compute | Reduce):
                read = Input(number, tuple(at(level) for level in range(len(statement.loops))))
                operands = (*value.operands[:place], read, *value.operands[place + 1 :])
                yield _split(graph, number, Statement(statement.loops, operand), replace(value, operands=operands))


def reduction_fissions(graph: Graph) -> Iterator[Graph]:
    """Move the outermost reduction of a statement into a statement of its own."""
    for number, statement in enumerate(graph.statements):
        if isinstance(statement.value, Reduce) and not isinstance(statement.value.body, Input):
            yield fission_reduction(graph, number, 0)


def fission_reduction(graph: Graph, number: int, depth: int) -> Graph:
    """Move a reduction of a nest, ``depth`` levels inside, into a statement of its own.

    Before it, its iterator is a loop more, the innermost.

    Raises
    ------
    ValueError
        If there is no such reduction, or one around it is of another kind.
    """
    statement = graph.statements[number]
    nest: list[Reduce] = []
    body = statement.value
    while isinstance(body, Reduce) and len(nest) <= depth:
        nest.append(body)
        body = body.body
    if len(nest) <= depth or len({it.operation for it in nest}) > 1:
        raise ValueError(
            f"statement {number} has no reduction at depth {depth} that may be taken out of those around it"
        )
    outer, moved = len(statement.loops), nest[depth]

    def level(one: int) -> int:
        return outer if one == outer + depth else one + 1 if outer <= one < outer + depth else one

    inner = map_inputs(
        body, lambda read: replace(read, index=tuple(it.substitute(lambda one: at(level(one))) for it in read.index))
    )
    for around in reversed(nest[:depth]):
        inner = replace(around, body=inner)
    read = Input(number, tuple(at(one) for one in range(outer + 1)))
    return _split(
        graph, number, Statement((*statement.loops, moved.extent), inner), Reduce(moved.operation, moved.extent, read)
    )


def _split(graph: Graph, number: int, first: Statement, value: Expression) -> Graph:
    """Put a new statement before one, whose value becomes one in terms of it (its number is that of the old)."""

    def later(read: Input) -> Input:
        moved = isinstance(read.tensor, int) and read.tensor >= number
        return replace(read, tensor=read.tensor + 1) if moved and isinstance(read.tensor, int) else read

    # The old statement reads earlier results only, so what it reads as `number` is the new one.
    after = [replace(it, value=map_inputs(it.value, later)) for it in graph.statements[number + 1 :]]
    old = graph.statements[number]
    statements = (*graph.statements[:number], first, replace(old, value=value), *after)
    return Graph(statements, (*graph.shared[:number], 0, *graph.shared[number:]))


def fusions(graph: Graph) -> Iterator[Graph]:
    """Fuse the outermost separate loops of two neighbours where extents agree and nothing is read too early."""
    for pair, level in enumerate(graph.shared):
        before, after = graph.statements[pair], graph.statements[pair + 1]
        if level + 1 >= min(len(before.loops), len(after.loops)) or before.loops[level] != after.loops[level]:
            continue
        if all(_reads_in_step(graph, number, level, pair) for number in range(pair + 1, len(graph.statements))):
            yield replace(graph, shared=(*graph.shared[:pair], level + 1, *graph.shared[pair + 1 :]))


def _reads_in_step(graph: Graph, number: int, level: int, pair: int) -> bool:
    """Whether a statement after a fused pair reads results before it by the fused iterator, if it is in that loop."""
    if min(graph.shared[pair + 1 : number], default=level + 1) <= level:
        return True
    first = pair
    while first and graph.shared[first - 1] > level:
        first -= 1
    return all(
        read.index[level] == at(level)
        for read in inputs(graph.statements[number].value)
        if isinstance(read.tensor, int) and first <= read.tensor <= pair
    )


def inlinings(graph: Graph) -> Iterator[Graph]:
    """Put the value of a statement in the place of every input that reads it (Figures 3.13 and 3.14).

    Values that are reductions stay: at another place they would be computed anew for each use.
    """
    for number, statement in enumerate(graph.statements[:-1]):
        if not has_reduction(statement.value) and consumers(graph, number):
            yield _inline(graph, number)


def _inline(graph: Graph, number: int) -> Graph:
    def change(read: Input) -> Expression:
        if read.tensor == number:

            def place(inner: Input) -> Input:
                index = tuple(it.substitute(lambda level: read.index[level]) for it in inner.index)
                return replace(inner, index=index)

            return map_inputs(graph.statements[number].value, place)
        if isinstance(read.tensor, int) and read.tensor > number:
            return replace(read, tensor=read.tensor - 1)
        return read

    left = [it for other, it in enumerate(graph.statements) if other != number]
    statements = tuple(replace(it, value=map_inputs(it.value, change)) for it in left)
    around = graph.shared[max(number - 1, 0) : number + 1]
    between = (min(around),) if number else ()
    return Graph(statements, (*graph.shared[: max(number - 1, 0)], *between, *graph.shared[number + 1 :]))
