"""Values that many uses would compute again are stored; what fusion does else stays as it was."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, te

import tvm_ext
from tvm_ext.passes.limit_recomputation import MOST_AGAIN, Value, excess_without, parameter_loads, values_to_keep


def chain(links: int, width: int = 3) -> list[Value]:
    """Each value loads the one before it ``width`` times."""
    return [Value(number, {number - 1: width}, True) for number in range(1, links + 1)]


def loads_in_one_kernel(values: list[Value], kept: list[int]) -> int:
    """Count the loads of the largest expression, by walking through all of it."""
    known = {value.name: value for value in values}

    def walk(name: int) -> int:
        if name not in known or name in kept:
            return 1
        return expand(name)

    def expand(name: int) -> int:
        return sum(walk(operand) for operand, count in known[name].loads.items() for _ in range(count))

    return max(expand(value.name) for value in values)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_no_expression_outgrows_the_bound(width: int) -> None:
    values = chain(40, width)
    kept = values_to_keep(values)
    assert loads_in_one_kernel(values, kept) <= MOST_AGAIN + 1 + width
    assert len(kept) <= 40 * np.log(width) / np.log(MOST_AGAIN) * 1.6


def test_sums_of_many_tensors_stay_one_kernel() -> None:
    """Every load is of another tensor, and none comes twice."""
    values = [Value(f"s{number}", {f"s{number - 1}": 1, f"x{number}": 1}, True) for number in range(300)]
    assert values_to_keep(values) == []


def test_an_operator_that_loads_much_by_itself_keeps_what_costs_nothing() -> None:
    values = [Value("copy", {"x": 1}, True), Value("sampled", {"copy": 400, "grid": 300}, True)]
    assert values_to_keep(values) == []
    values = [Value("sum", {"x": 1, "y": 1}, True), Value("sampled", {"sum": 400, "grid": 300}, True)]
    assert values_to_keep(values) == ["sum"]


def test_results_of_convolutions_are_stored_anyway() -> None:
    values = [Value(number, {number - 1: 9}, number % 2 == 0) for number in range(1, 20)]
    assert loads_in_one_kernel(values, [value.name for value in values if not value.merges]) == 81
    assert all(number % 2 == 0 for number in values_to_keep(values))


@st.composite
def expressions(draw: st.DrawFn) -> list[Value]:
    """The last value uses all of the others, which stand operands first; names below zero are stored tensors."""
    values: list[Value] = []
    unused: set[int] = set()
    for number in range(draw(st.integers(2, 7))):
        operands = draw(st.sets(st.integers(-4, number - 1), min_size=1, max_size=3))
        unused = (unused - operands) | {number}
        values.append(Value(number, {operand: draw(st.integers(1, 3)) for operand in operands}, True))
    return [*values, Value(len(values), {number: draw(st.integers(1, 3)) for number in unused}, True)]


@given(expressions())
def test_what_storing_a_value_leaves_is_what_walking_through_all_of_the_expression_finds(values: list[Value]) -> None:
    *chain, value = values

    def loaded(name: int, kept: int) -> list[int]:
        if name < 0 or name == kept:
            return [name]
        return [leaf for operand, count in values[name].loads.items() for leaf in loaded(operand, kept) * count]

    def excess(kept: int) -> int:
        loads = loaded(value.name, kept)
        return len(loads) - max(len(set(loads)), sum(value.loads.values()))

    assert excess_without(value, chain) == [excess(kept) for kept in range(len(chain))]


def test_choices_take_time_in_proportion_to_the_chain() -> None:
    """A recurrent cell written out step by step: every operator loads the last one, every fourth the same bias.

    Expanding the expression anew for each choice took a hundred times as long.
    """
    values = [
        Value(number, {number - 1: 1, f"x{number}": 1, **({} if number % 4 else {"bias": 1})}, True)
        for number in range(2000)
    ]
    start = time.process_time()
    kept = values_to_keep(values)
    assert time.process_time() - start < 5
    assert len(kept) == 2000 // (4 * (MOST_AGAIN + 1))


def test_loads_are_counted_through_the_blocks_of_a_kernel() -> None:
    x = te.placeholder((8,), "float32", "x")
    bias = te.placeholder((8,), "float32", "bias")
    inner = te.compute((8,), lambda i: x[i] * x[i] + bias[i])
    outer = te.compute((8,), lambda i: inner[i] * te.tanh(inner[i] + x[i]))
    assert parameter_loads(te.create_prim_func([x, bias, outer])) == Counter({0: 5, 1: 2})


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
def test_gates_in_a_row_compile_in_linear_time(fuse: str) -> None:
    """Seven links fused into one kernel would compute two thousand tanh for each element."""
    links = 7
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 33), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(links):
                cube = builder.emit(relax.op.multiply(builder.emit(relax.op.multiply(value, value)), value))
                gate = builder.emit(relax.op.tanh(builder.emit(relax.op.add(value, cube))))
                value = builder.emit(relax.op.multiply(value, gate))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    array = np.linspace(-2, 2, 99).astype(np.float32).reshape(3, 33)
    start = time.process_time()
    compiled = tvm_ext.compile(
        builder.get(), target=tvm.target.Target({"kind": "llvm", "mcpu": "core-avx2"}), fuse=fuse
    )
    assert time.process_time() - start < 10
    expected = array.astype(np.float64)
    for _ in range(links):
        expected = expected * np.tanh(expected + expected**3)
    (found,) = compiled.run([array]).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
