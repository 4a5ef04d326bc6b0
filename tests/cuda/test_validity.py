"""What is known of kernels before they run, and the oracle that tuners ask."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_ext.backends.cuda.validity import kernel_fault, kernel_oracle
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import apply_rules
from tvm_ext.target import resolve_target
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.validity import Validity

TARGET = resolve_target("nvidia/a100")


def doubled(threads: int, vector: int, shared: bool = False) -> tirx.PrimFunc:
    """Schedule ``y = 2 x`` of 65536 numbers with a tile of ``threads`` times ``vector`` of them."""
    x = te.placeholder((65536,), name="x")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, te.compute((65536,), lambda i: x[i] * 2.0, name="y")]))
    block = schedule.get_sblock("y")
    (loop,) = schedule.get_loops(block)
    grid, thread, inner = schedule.split(loop, [None, threads, vector])
    schedule.bind(grid, "blockIdx.x")
    if shared:
        schedule.compute_at(schedule.cache_read(block, 0, "shared"), grid)
        (copy,) = schedule.get_producers(block)
        schedule.bind(schedule.split(schedule.get_loops(copy)[-1], [None, threads])[1], "threadIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(inner)
    return schedule.mod["main"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((256, 4), ""),
        ((1024, 4, True), ""),
        ((2048, 1), "has 2048 x 1 x 1 threads in a block"),
        ((1024, 16, True), "declares 65536 bytes of static shared memory"),
        ((256, 16), "vectors allow"),
    ],
)
def test_kernels(made: tuple[int, ...], words: str) -> None:
    found = kernel_fault(doubled(*made), TARGET)
    assert words in found
    assert bool(words) == bool(found)


def test_a_kernel_without_threads() -> None:
    x = te.placeholder((8,), name="x")
    func = te.create_prim_func([x, te.compute((8,), lambda i: x[i] * 2.0, name="y")])
    assert kernel_fault(func, TARGET)
    assert kernel_fault(apply_rules(func, TARGET, RULES), TARGET) == ""


def test_a_tuner_asks() -> None:
    space = ConfigSpace([Knob("threads", (256, 2048)), Knob("vector", (1, 4, 16))])

    def kernel_of(vector: np.ndarray) -> tirx.PrimFunc:
        threads, wide = (knob.choices[int(index)] for knob, index in zip(space.knobs, vector, strict=True))
        return doubled(int(threads), int(wide))

    validity = Validity(space, kernel_oracle(kernel_of, TARGET))
    vectors = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    answers = validity.ask(vectors)
    assert answers is not None
    assert answers.tolist() == [True, True, False, False, False]
