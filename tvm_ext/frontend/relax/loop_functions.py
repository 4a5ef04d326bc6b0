"""Loops as Relax functions: the body becomes a function, and functions that call it twice, four times, ... repeat it.

Relax has no loop. A function that calls itself would need a frame for every iteration; here the number of iterations is
put together from powers of two, so that calls nest as deep as the number has bits, and the machine calls about two
functions an iteration:

``twice(s) = once(once(s))``, ``four(s) = twice(twice(s))``, ...; 13 iterations are ``once(four(eight(s)))``.

Loops that a condition may end: :mod:`tvm_ext.frontend.relax.while_functions`.

Results that an iteration adds to a stack are joined pairwise on the way, so that every tensor is written once and has a
shape known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

LONGEST_UNBOUNDED = 20
"""Binary logarithm of the iterations that one call makes of a loop without a bound."""


@dataclass(frozen=True)
class Step:
    """The body of a loop as a function of the module.

    Its parameters are the counter (an int64 scalar), what is carried, what is captured. It returns the counter plus
    one, whether there is another iteration (only if ``conditional``), what is carried on, and one row for each stack.

    Attributes
    ----------
    function : tvm.ir.GlobalVar
    carried, captured, rows : tuple of relax.TensorType
        A row has a first axis of extent one.
    conditional : bool
    """

    function: Any
    carried: tuple[Any, ...]
    captured: tuple[Any, ...]
    rows: tuple[Any, ...]
    conditional: bool

    @property
    def results(self) -> tuple[int, int]:
        """Positions of the first carried tensor and of the first row among the results."""
        first = 2 if self.conditional else 1
        return first, first + len(self.carried)


COUNTER = relax.TensorType((), "int64")


def add_function(
    builder: relax.BlockBuilder, name: str, parameters: Sequence[Any], build: Callable[[], Sequence[Any]]
) -> Any:
    """Add a private function to the module of a builder that may be in the middle of another one.

    Parameters
    ----------
    builder : relax.BlockBuilder
    name : str
    parameters : sequence of relax.Var
    build : callable
        Emits the bindings; gives what the function returns as a tuple.

    Returns
    -------
    tvm.ir.GlobalVar
    """
    builder._begin_binding_block()
    try:
        result = builder.emit(relax.Tuple([_leaf(builder, value) for value in build()]))
    finally:
        block = builder._end_block()
    body = relax.SeqExpr([block], result)
    function = relax.Function(list(parameters), body, result.ty, is_pure=True)
    # Extents that are open have names of their own in every function.
    return builder.add_func(relax.utils.copy_with_new_vars(function), name)


def repeat(
    builder: relax.BlockBuilder,
    name: str,
    step: Step,
    carried: Sequence[Any],
    captured: Sequence[Any],
    trips: int,
    block: tuple[int, Any] | None = None,
) -> list[Any]:
    """Run a loop a fixed number of times.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Receives the functions and the calls.
    name : str
        Begins the names of the functions.
    step : Step
        Not conditional.
    carried, captured : sequence of relax.Expr
        What the first iteration begins with, and what all of them read.
    trips : int
        At least one.
    block : (int, tvm.ir.GlobalVar), optional
        Binary logarithm of a number of iterations, and a function that makes them all.

    Returns
    -------
    list of relax.Expr
        What is carried out of the last iteration, then the stacks.
    """
    powers = {0: step.function}
    if block is not None:
        powers[block[0]] = block[1]

    def power(exponent: int) -> Any:
        if exponent not in powers:
            powers[exponent] = _doubled(builder, f"{name}_{exponent}", step, power(exponent - 1))
        return powers[exponent]

    counter: Any = relax.const(0, "int64")
    parts: list[list[Any]] = []
    for exponent in reversed(range(trips.bit_length())):
        if trips >> exponent & 1:
            counter, carried, rows = _call(builder, step, power(exponent), counter, carried, captured)
            parts.append(rows)
    stacks = [joined(builder, list(column)) for column in zip(*parts, strict=True)]
    return [*carried, *stacks]


def repeat_extent(
    builder: relax.BlockBuilder,
    name: str,
    step: Step,
    carried: Sequence[Any],
    captured: Sequence[Any],
    extent: Any,
    most: int | None,
) -> list[Any]:
    """Run a loop as often as an extent says, which is only known at run time.

    One after the other, the bits of the extent tell whether the function for so many iterations is called. What is
    stacked then has the extent as its first axis, without rows that are not computed.

    Parameters
    ----------
    builder, name, step, carried, captured
        As for :func:`repeat`.
    extent : tvm.tirx.Expr
        Iterations; below zero there are none.
    most : int, optional
        The extent is never larger; without it 2 ** (LONGEST_UNBOUNDED + 1) - 1, and a run with more ends in an error.

    Returns
    -------
    list of relax.Expr
        What is carried out of the last iteration, then the stacks.
    """
    bits = LONGEST_UNBOUNDED + 1 if most is None else max(1, most.bit_length())
    powers = [step.function]
    for number in range(1, bits):
        powers.append(_doubled(builder, f"{name}_{number}", step, powers[-1]))
    extent = tvm.tirx.max(extent, tvm.tirx.IntImm("int64", 0))
    total = builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
    total = builder.emit(relax.op.reshape(total, relax.ShapeExpr([])))
    state: list[Any] = [relax.const(0, "int64"), *carried]
    parts: list[list[Any]] = []
    for number in reversed(range(bits)):
        shifted = builder.emit(relax.op.floor_divide(total, relax.const(1 << number, "int64")))
        bit = builder.emit(relax.op.bitwise_and(shifted, relax.const(1, "int64")))
        is_set = builder.emit(relax.op.equal(bit, relax.const(1, "int64")))
        begun = list(state)

        def computed(number: int = number, begun: list[Any] = begun) -> list[Any]:
            counter, states, rows = _call(builder, step, powers[number], begun[0], begun[1:], captured)
            return [counter, *states, *rows]

        def passed(begun: list[Any] = begun) -> list[Any]:
            empty = [relax.op.zeros([0, *list(row.shape)[1:]], str(row.dtype)) for row in step.rows]
            return [*begun, *(builder.emit(rows) for rows in empty)]

        found = chosen(builder, is_set, computed, passed)
        state, rows = found[: 1 + len(carried)], found[1 + len(carried) :]
        parts.append(
            [
                builder.match_cast(
                    part,
                    relax.TensorType([tvm.tirx.Var(f"rows_{number}", "int64"), *list(row.shape)[1:]], str(row.dtype)),
                )
                for part, row in zip(rows, step.rows, strict=True)
            ]
        )
    stacks = []
    for column, row in zip(zip(*parts, strict=True), step.rows, strict=True):
        whole = joined(builder, list(column))
        stacks.append(builder.match_cast(whole, relax.TensorType([extent, *list(row.shape)[1:]], str(row.dtype))))
    return [*state[1:], *stacks]


def _call(
    builder: relax.BlockBuilder,
    step: Step,
    function: Any,
    counter: Any,
    carried: Sequence[Any],
    captured: Sequence[Any],
) -> tuple[Any, list[Any], list[Any]]:
    results = builder.emit(relax.Call(function, [counter, *carried, *captured]))
    first, row = step.results
    fields = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    return fields[0], fields[first:row], fields[row:]


def _doubled(builder: relax.BlockBuilder, name: str, step: Step, half: Any) -> Any:
    """Add the function that calls another one twice."""
    counter, carried, captured = parameters_of(step)

    def build() -> list[Any]:
        between, states, first = _call(builder, step, half, counter, carried, captured)
        after, states, second = _call(builder, step, half, between, states, captured)
        return [after, *states, *(joined(builder, list(pair)) for pair in zip(first, second, strict=True))]

    return add_function(builder, name, [counter, *carried, *captured], build)


def chosen(
    builder: relax.BlockBuilder,
    condition: Any,
    then: Callable[[], Sequence[Any]],
    otherwise: Callable[[], Sequence[Any]],
) -> list[Any]:
    """Emit a branch, and give the fields of the tuple it results in."""
    branches = []
    for build in (then, otherwise):
        builder._begin_binding_block()
        try:
            result = builder.emit(relax.Tuple([_leaf(builder, value) for value in build()]))
        finally:
            block = builder._end_block()
        branches.append(relax.SeqExpr([block], result))
    found = builder.emit(relax.If(condition, *branches))
    return [builder.emit(relax.TupleGetItem(found, index)) for index in range(len(found.ty.fields))]


def parameters_of(step: Step) -> tuple[Any, list[Any], list[Any]]:
    """Make the parameters of a function like a step: the counter, what is carried, what is captured."""
    carried = [relax.Var(f"carried_{index}", ty) for index, ty in enumerate(step.carried)]
    captured = [relax.Var(f"captured_{index}", ty) for index, ty in enumerate(step.captured)]
    return relax.Var("counter", COUNTER), carried, captured


def joined(builder: relax.BlockBuilder, parts: list[Any]) -> Any:
    """Join stacks of rows."""
    return parts[0] if len(parts) == 1 else builder.emit(relax.op.concat(parts, 0))


def _leaf(builder: relax.BlockBuilder, value: Any) -> Any:
    return value if isinstance(value, relax.Var | tvm.ir.GenericConst) else builder.emit(value)
