"""Quotients of indices that TVM's affine analysis gets wrong: kernels read the elements that NumPy reads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

import tvm_ext
from tvm_ext.passes.forward_indices import forward_indices
from tvm_ext.passes.hidden_quotients import hidden_quotients

Index = Callable[[Sequence[Any]], Any]
"""Makes an index of the variables of a block, or of numbers: ``//`` and ``%`` are those of both."""


def gathered(index: Index, extents: Sequence[int], split: Sequence[int] = ()) -> tuple[tirx.PrimFunc, np.ndarray]:
    """Make ``b[x, y, z] = a[index + offset]``, its loops split by factors, and the places that it reads."""
    i, j, k = full = (*extents, 1, 1)[:3]
    places = np.array([int(index(point)) for point in itertools.product(*map(range, full))])
    offset = int(-places.min())
    size = int(places.max()) + offset + 1

    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((size,), "int64"), b: T.Buffer((i, j, k), "int64")) -> None:
        for at_x, at_y, at_z in T.grid(T.int64(i), T.int64(j), T.int64(k)):
            with T.sblock("b"):
                x, y, z = T.axis.remap("SSS", [at_x, at_y, at_z])
                b[x, y, z] = a[index((x, y, z)) + offset]

    schedule = Schedule(func)
    for loop, factor in zip(schedule.get_loops("b"), split, strict=False):
        schedule.split(loop, [None, factor])
    return schedule.mod["main"], (places + offset).reshape(full)


def assert_right(kernels: Sequence[tuple[tirx.PrimFunc, np.ndarray]]) -> None:
    """Run kernels, all of one library."""
    named = {f"kernel{number}": func for number, (func, _) in enumerate(kernels)}
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in named.items()})
    library = tvm.compile(hidden_quotients()(forward_indices()(mod)), target="llvm")
    for name, (_, places) in zip(named, kernels, strict=True):
        table = np.arange(places.max() + 1) * 7
        found = tvm.runtime.tensor(np.full(places.shape, -1))
        library[name](tvm.runtime.tensor(table), found)
        np.testing.assert_array_equal(found.numpy(), table[places], err_msg=named[name].script())


CASES: dict[str, tuple[Index, tuple[int, ...], tuple[int, ...]]] = {
    "quotient of a remainder and a number": (lambda v: (v[0] % 2 + 1) // 2, (8,), ()),
    "quotient of a quotient of a sum": (lambda v: (v[0] + 3) // 2 // 2, (8,), ()),
    "remainder of a quotient of a sum": (lambda v: (v[0] + 3) // 2 % 2, (6,), ()),
    "quotients backwards": (lambda v: (3 - (v[0] + 7) // 3) % 3, (6,), ()),
    "an axis of one element before one that runs backwards": (lambda v: (v[0] * 8 + 11 - v[1]) % 8, (1, 8), ()),
    "an axis of one element behind": (lambda v: (7 - v[0] + v[1]) // 6, (4, 1), ()),
    "the rest of a loop that was split": (lambda v: (3 + (v[0] + v[1] + 2) // 6) % 2, (1, 6), (1, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_places_are_those_of_numpy(name: str) -> None:
    assert_right([gathered(*CASES[name])])


def test_some_are_wrong_without() -> None:
    wrong = 0
    for case in CASES.values():
        func, places = gathered(*case)
        mod = forward_indices()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        found = tvm.runtime.tensor(np.full(places.shape, -1))
        tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(np.arange(places.max() + 1)), found)
        wrong += not np.array_equal(found.numpy(), places)
    assert wrong  # else the pass is for an analysis of the past


def test_variables_of_blocks_may_begin_anywhere() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((2,), "int64"), b: T.Buffer((8,), "int64")) -> None:
        for i in range(T.int64(4)):
            with T.sblock("b"):
                v = T.axis.spatial(T.int64(8), i + T.int64(3))
                b[v] = a[v // T.int64(2) % T.int64(2)]

    mod = hidden_quotients()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert "truncmod" in mod.script()
    table, found = np.arange(2) + 5, tvm.runtime.tensor(np.zeros(8, "int64"))
    tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(table), found)
    np.testing.assert_array_equal(found.numpy()[3:7], table[np.arange(3, 7) // 2 % 2])


@pytest.mark.parametrize(
    "index",
    [
        lambda v: v[0] // 2 * 3 + v[0] % 2,
        lambda v: (v[0] * 4 + v[1]) // 8,
        lambda v: (v[0] + 3) // 4,
        lambda v: (v[0] + 8) // 4 % 2,
        lambda v: 9 - v[0],
    ],
)
def test_what_the_analysis_gets_right_stays(index: Index) -> None:
    func, _ = gathered(index, (8, 4))
    mod = tvm.IRModule({"main": func})
    tvm.ir.assert_structural_equal(hidden_quotients()(mod), mod)


def drawn(seed: int) -> tuple[tirx.PrimFunc, np.ndarray]:
    """Draw a kernel: a sum of its variables, divided up to three times, turned round or moved in between."""
    rng = random.Random(seed)
    extents = [rng.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(rng.choice([1, 2, 2, 3]))]
    base, scale, factors = rng.choice([0, 0, 1, 3, 5, 7, 11]), 1, [0, 0, 0]
    for axis in rng.sample(range(len(extents)), len(extents)):
        factors[axis] = rng.choice([scale, scale, -scale, rng.choice([1, 2, 3, -1, -2])])
        scale *= extents[axis]
    steps = [
        (rng.choice(["//", "%", "both"]), rng.choice([2, 3, 4, 6, 8]), rng.choice([16, -3, 2]), rng.choice("-+  "))
        for _ in range(rng.choice([1, 2, 2, 3]))
    ]
    number = rng.choice([1, 3, 7])

    def index(variables: Sequence[Any]) -> Any:
        value = sum(factor * variable for factor, variable in zip(factors, variables, strict=True)) + base
        for kind, divisor, factor, move in steps:
            parts = value // divisor, value % divisor
            value = parts[0] * factor + parts[1] if kind == "both" else parts[kind == "%"]
            value = {"-": number - value, "+": value + number}.get(move, value)
        return value

    return gathered(index, extents, [rng.choice([2, 3, 4]) for _ in range(3)] if rng.random() < 0.5 else ())


@pytest.mark.parametrize("block", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 20))])
def test_random_indices(block: int) -> None:
    assert_right([drawn(40 * block + number) for number in range(40)])


@pytest.mark.parametrize(("shape", "places"), [((2, 5, 7), 5), ((4, 3, 6), 7), ((3, 4, 5), 30), ((2, 33, 3), 100)])
def test_rolled_tensors_of_any_shape(shape: tuple[int, ...], places: int) -> None:
    """What a condition simplifies is divided when buffers are flattened: ``(s % 70 - 5) % 70 // 35`` where s >= 5."""
    count = int(np.prod(shape))
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            flat = bb.emit(relax.op.reshape(x, (count,)))
            parts = [(count - places, count), (0, count - places)]
            parts = [bb.emit(relax.op.strided_slice(flat, [0], [begin], [end])) for begin, end in parts]
            rolled = bb.emit_output(relax.op.reshape(bb.emit(relax.op.concat(parts, 0)), shape))
        bb.emit_func_output(rolled)
    data = np.arange(count, dtype="float32").reshape(shape)
    (found,) = tvm_ext.compile(bb.get()).run([data]).values()
    np.testing.assert_array_equal(found, np.roll(data, places))
