"""Loops as Relax functions: the body becomes a function, and functions that call it twice, four times, ... repeat it.

Relax has no loop. A function that calls itself would need a frame for every iteration; here the number of iterations is
put together from powers of two, so that calls nest as deep as the number has bits, and the machine calls about two
functions an iteration:

``twice(s) = once(once(s))``, ``four(s) = twice(twice(s))``, ...; 13 iterations are ``once(four(eight(s)))``.

Where a condition may end the loop, the second of two calls is made only if it still holds. Without a bound on the
number of iterations the largest of these functions calls itself as long as the condition holds.

Results that an iteration adds to a stack are joined pairwise on the way, so that every tensor is written once and has a
shape known beforehand. Where a condition may end the loop, the stack is filled up to its largest size and cut at the
end.
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
CONDITION = relax.TensorType((), "bool")


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

        found = _chosen(builder, is_set, computed, passed)
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
    counter, carried, captured = _parameters(step)

    def build() -> list[Any]:
        between, states, first = _call(builder, step, half, counter, carried, captured)
        after, states, second = _call(builder, step, half, between, states, captured)
        return [after, *states, *(joined(builder, list(pair)) for pair in zip(first, second, strict=True))]

    return add_function(builder, name, [counter, *carried, *captured], build)


def repeat_while(
    builder: relax.BlockBuilder,
    name: str,
    step: Step,
    condition: Any,
    carried: Sequence[Any],
    captured: Sequence[Any],
    most: int | None,
) -> list[Any]:
    """Run a loop as long as a condition holds.

    Parameters
    ----------
    builder, name, carried, captured
        As for :func:`repeat`.
    step : Step
        Conditional.
    condition : relax.Expr
        Whether there is a first iteration, a boolean scalar.
    most : int, optional
        There are never more iterations; needed if results are stacked.

    Returns
    -------
    list of relax.Expr
        What is carried out of the last iteration, then the stacks, whose first axis is only known at run time.
    """
    exponent = LONGEST_UNBOUNDED if most is None else max(0, most - 1).bit_length()
    largest = step.function
    for number in range(1, exponent + 1):
        largest = _doubled_while(builder, f"{name}_{number}", step, largest, 1 << (number - 1))
    if most is None:
        largest = _endless(builder, f"{name}_endless", step, largest)
    start = _guarded(builder, f"{name}_start", step, largest, 1 << exponent)
    results = builder.emit(relax.Call(start, [condition, *carried, *captured]))
    first, row = step.results
    fields = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    return [*fields[first:row], *(_cut(builder, stack, fields[0]) for stack in fields[row:])]


def _doubled_while(builder: relax.BlockBuilder, name: str, step: Step, half: Any, rows: int) -> Any:
    """Add the function that calls another one, and once more if the condition still holds."""
    counter, carried, captured = _parameters(step)

    def build() -> list[Any]:
        results = builder.emit(relax.Call(half, [counter, *carried, *captured]))
        return _chosen(
            builder,
            builder.emit(relax.TupleGetItem(results, 1)),
            lambda: _continued(builder, step, half, results, captured),
            lambda: _stopped(builder, step, results, rows),
        )

    return add_function(builder, name, [counter, *carried, *captured], build)


def _continued(builder: relax.BlockBuilder, step: Step, half: Any, results: Any, captured: Sequence[Any]) -> list[Any]:
    """Make the second call."""
    first, row = step.results
    before = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    again = builder.emit(relax.Call(half, [before[0], *before[first:row], *captured]))
    after = [builder.emit(relax.TupleGetItem(again, index)) for index in range(row + len(step.rows))]
    stacks = [joined(builder, list(pair)) for pair in zip(before[row:], after[row:], strict=True)]
    return [*after[:row], *stacks]


def _stopped(builder: relax.BlockBuilder, step: Step, results: Any, rows: int) -> list[Any]:
    """Leave the second call out; its rows are filled up."""
    _, row = step.results
    before = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    filled = []
    for stack, ty in zip(before[row:], step.rows, strict=True):
        widths = [0, rows] + [0, 0] * (len(ty.shape) - 1)
        filled.append(builder.emit(relax.op.nn.pad(stack, widths)))
    return [*before[:row], *filled]


def _endless(builder: relax.BlockBuilder, name: str, step: Step, body: Any) -> Any:
    """Add the function that calls another one, and then itself if the condition still holds."""
    counter, carried, captured = _parameters(step)
    # It is declared with the body of the other one, whose type it has, before it can name itself. The attribute keeps
    # the builder from taking the two for one function.
    itself = builder.add_func(builder.get()[body].with_attr("tvm_ext.declared", name), name)

    def build() -> list[Any]:
        results = builder.emit(relax.Call(body, [counter, *carried, *captured]))
        return _chosen(
            builder,
            builder.emit(relax.TupleGetItem(results, 1)),
            lambda: _continued(builder, step, itself, results, captured),
            lambda: _stopped(builder, step, results, 0),
        )

    made = add_function(builder, f"{name}_body", [counter, *carried, *captured], build)
    builder.update_func(itself, builder.get()[made])
    return itself


def _guarded(builder: relax.BlockBuilder, name: str, step: Step, largest: Any, rows: int) -> Any:
    """Add the function that runs the whole loop, or returns at once if the first condition is false."""
    condition = relax.Var("condition", CONDITION)
    _, carried, captured = _parameters(step)

    def nothing() -> list[Any]:
        stacks = []
        for ty in step.rows:
            shape = [rows, *list(ty.shape)[1:]]
            # Not a constant: it would be stored in the library, at its full size.
            zero = builder.emit(relax.op.astype(condition, str(ty.dtype)))
            stacks.append(builder.emit(relax.op.broadcast_to(zero, shape)))
        return [relax.const(0, "int64"), condition, *carried, *stacks]

    def everything() -> list[Any]:
        results = builder.emit(relax.Call(largest, [relax.const(0, "int64"), *carried, *captured]))
        _, row = step.results
        return [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]

    return add_function(
        builder,
        name,
        [condition, *carried, *captured],
        lambda: _chosen(builder, condition, everything, nothing),
    )


def _chosen(
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
    chosen = builder.emit(relax.If(condition, *branches))
    return [builder.emit(relax.TupleGetItem(chosen, index)) for index in range(len(chosen.ty.fields))]


def _parameters(step: Step) -> tuple[Any, list[Any], list[Any]]:
    carried = [relax.Var(f"carried_{index}", ty) for index, ty in enumerate(step.carried)]
    captured = [relax.Var(f"captured_{index}", ty) for index, ty in enumerate(step.captured)]
    return relax.Var("counter", COUNTER), carried, captured


def joined(builder: relax.BlockBuilder, parts: list[Any]) -> Any:
    """Join stacks of rows."""
    return parts[0] if len(parts) == 1 else builder.emit(relax.op.concat(parts, 0))


def _cut(builder: relax.BlockBuilder, stack: Any, count: Any) -> Any:
    """Take the rows that were computed: as many as the counter says."""
    # A function of its own, whose parameters tell the extent: who plans the memory of a function wants to know all its
    # extents at the beginning.
    rows = tvm.tirx.Var("rows", "int64")
    whole, extent = relax.Var("stack", stack.ty), relax.Var("extent", relax.ShapeType([rows]))
    builder._begin_binding_block()
    result = builder.emit(relax.op.strided_slice(whole, [0], [0], [rows], assume_inbound=True))
    body = relax.SeqExpr([builder._end_block()], result)
    cut = builder.add_func(relax.Function([whole, extent], body, result.ty, is_pure=True), "first_rows")
    computed = tvm.tirx.Var("computed", "int64")
    shape = builder.emit(relax.op.tensor_to_shape(builder.emit(relax.op.reshape(count, [1]))))
    builder.match_cast(shape, relax.ShapeType([computed]))
    return builder.emit(relax.Call(cut, [stack, relax.ShapeExpr([computed])]))


def _leaf(builder: relax.BlockBuilder, value: Any) -> Any:
    return value if isinstance(value, relax.Var | tvm.ir.GenericConst) else builder.emit(value)
