"""Loops that a condition may end, as Relax functions.

They are put together as those of :mod:`tvm_ext.frontend.relax.loop_functions`, but that the second of two calls is made
only if the condition still holds: ``twice(s) = once(once(s))`` or ``once(s)``, ``four(s) = twice(twice(s))`` or
``twice(s)``. Without a bound on the number of iterations the largest of these functions calls itself as long as the
condition holds. A stack is filled up to its largest size, and cut at the end.

A loop of few iterations would return through all functions for many. One without stacks therefore begins with the small
ones: one iteration, then up to four, then up to sixteen, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_ext.frontend.relax.loop_functions import LONGEST_UNBOUNDED, Step, add_function, chosen, joined, parameters_of

CONDITION = relax.TensorType((), "bool")


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
        As for :func:`tvm_ext.frontend.relax.loop_functions.repeat`.
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
    powers = [step.function]
    for number in range(1, exponent + 1):
        powers.append(_in_turn(builder, f"{name}_{number}", step, powers[-1], powers[-1], 1 << (number - 1)))
    largest = powers[-1] if most is not None else _endless(builder, f"{name}_endless", step, powers[-1])
    if not step.rows:
        for number in reversed(range(0, exponent, 2)):
            largest = _in_turn(builder, f"{name}_from_{number}", step, powers[number], largest, 0)
    start = _guarded(builder, f"{name}_start", step, largest, 1 << exponent)
    results = builder.emit(relax.Call(start, [condition, *carried, *captured]))
    first, row = step.results
    fields = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    return [*fields[first:row], *(_cut(builder, stack, fields[0]) for stack in fields[row:])]


def _in_turn(builder: relax.BlockBuilder, name: str, step: Step, first: Any, second: Any, rows: int) -> Any:
    """Add the function that calls one, and then another one, of so many rows, if the condition still holds."""
    counter, carried, captured = parameters_of(step)

    def build() -> list[Any]:
        results = builder.emit(relax.Call(first, [counter, *carried, *captured]))
        return chosen(
            builder,
            builder.emit(relax.TupleGetItem(results, 1)),
            lambda: _continued(builder, step, second, results, captured),
            lambda: _stopped(builder, step, results, rows),
        )

    return add_function(builder, name, [counter, *carried, *captured], build)


def _continued(
    builder: relax.BlockBuilder, step: Step, second: Any, results: Any, captured: Sequence[Any]
) -> list[Any]:
    """Make the second call."""
    first, row = step.results
    before = [builder.emit(relax.TupleGetItem(results, index)) for index in range(row + len(step.rows))]
    again = builder.emit(relax.Call(second, [before[0], *before[first:row], *captured]))
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
    # It is declared with the body of the other one, whose type it has, before it can name itself. The attribute keeps
    # the builder from taking the two for one function.
    itself = builder.add_func(builder.get()[body].with_attr("tvm_ext.declared", name), name)
    made = _in_turn(builder, f"{name}_body", step, body, itself, 0)
    builder.update_func(itself, builder.get()[made])
    return itself


def _guarded(builder: relax.BlockBuilder, name: str, step: Step, largest: Any, rows: int) -> Any:
    """Add the function that runs the whole loop, or returns at once if the first condition is false."""
    condition = relax.Var("condition", CONDITION)
    _, carried, captured = parameters_of(step)

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
        lambda: chosen(builder, condition, everything, nothing),
    )


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
