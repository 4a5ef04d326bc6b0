"""Scheduled with the instruction inside, an operator gives what it gave, and the code has the instruction."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.embedding.flows import flow
from tests.embedding.test_instructions import has
from tests.embedding.test_strategy import run
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.function import stored_shape
from tvm_ext.embedding.packing import pack, unpack
from tvm_ext.embedding.program import STRICT, relaxed
from tvm_ext.embedding.ranking import naive_waste
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.schedule import register_tile, schedule_strategy
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import Strategy, strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.instruction import Instruction

CASES = {
    "conv2d": ("C[n,o,h,w] += A[n,i,h+k,w+l] * B[o,i,k,l]", {"n": 1, "o": 16, "i": 3, "h": 3, "w": 6, "k": 2, "l": 3}),
    "odd": ("C[n,o,h,w] += A[n,i,2*h+k,w+l] * B[o,i,k,l]", {"n": 2, "o": 7, "i": 3, "h": 3, "w": 5, "k": 1, "l": 3}),
    "dilated": ("C[n,o,h,w] += A[n,i,h+2*k,w+2*l] * B[o,i,k,l]", {"o": 8, "i": 4, "h": 3, "w": 4, "k": 2, "l": 2}),
    "depthwise": ("C[n,c,h,w] += A[n,c,h+k,w+l] * B[c,k,l]", {"n": 1, "c": 24, "h": 3, "w": 4, "k": 3, "l": 3}),
    "conv1d": ("C[o,w] += A[i,w+l] * B[o,i,l]", {"o": 16, "i": 5, "w": 9, "l": 3}),
    "matmul": ("C[m,o] += A[m,i] * B[i,o]", {"m": 7, "o": 33, "i": 17}),
}
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


def settings(operator: Dataflow, instruction: Dataflow) -> tuple:
    try:
        waste = naive_waste(operator, instruction)
    except EmbeddingError:
        return ()
    return (STRICT, *relaxed((1,), waste, swap=True))


def run_scheduled(found: Strategy, row: Instruction, operands: list[np.ndarray]) -> tuple[np.ndarray, str]:
    compiled = tvm.compile(schedule_strategy(found, row, 12).mod, TARGET)
    instruction = found.embedding.instruction
    tensors = [
        tvm.runtime.tensor(
            pack(operands[at], found.operands[at])
            .astype(instruction.operands[number].dtype)
            .reshape(stored_shape(found, number))
        )
        for number, at in enumerate(map(found.embedding.operand, range(2)))
    ]
    tensors.append(tvm.runtime.tensor(np.zeros(stored_shape(found, 2), instruction.output.dtype)))
    compiled["main"](*tensors)
    back = unpack(tensors[2].numpy().reshape(found.operands[2].shape), found)
    return back, compiled.mod.inspect_source("asm")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["fma", "pmaddwd"])
def test_scheduled_operators_are_right(case: str, name: str) -> None:
    row = {"fma": rows.fma, "pmaddwd": rows.pmaddwd}[name](256, case != "depthwise")
    if not has(row):
        pytest.skip("needs AVX2")
    instruction = instruction_dataflow(row)
    formula, extents = CASES[case]
    types = ("float32", "float32") if name == "fma" else ("int8", "int32")
    operator = flow(formula, *types, **({"n": 1} if "n," in formula else {}) | extents)
    embeddings = solve(operator, instruction, settings(operator, instruction))
    rng = np.random.default_rng(0)
    operands = [rng.integers(-100, 100, access.shape).astype(access.dtype) for access in operator.inputs]
    expected = run(operator, *operands)
    for embedding in (embeddings[0], embeddings[-1]):
        found, code = run_scheduled(strategy(embedding), row, operands)
        np.testing.assert_array_equal(found, expected, str(embedding))
        assert ("vfmadd" if name == "fma" else "vpmaddwd") in code


def test_a_register_tile_reads_least_for_each_product() -> None:
    operator = flow(CASES["conv2d"][0], "float32", "float32", n=1, o=64, i=8, h=12, w=12, k=3, l=3)
    instruction = instruction_dataflow(rows.fma(256, True))
    found = strategy(next(it for it in solve(operator, instruction) if "i <- o:8" in str(it)))
    outer = [dimension.loops[0][0] for dimension in found.operands[2].dimensions if dimension.lane is None]
    tile = register_tile(found, outer, 12)
    assert sorted(size for size in tile if size > 1) == [3, 4]
    assert register_tile(found, outer, 1) == [1] * len(outer)


def test_rows_without_an_implementation_make_no_code() -> None:
    operator = flow("C[m,o] += A[m,i] * B[o,i]", m=16, o=16, i=64)
    embedding = solve(operator, instruction_dataflow(rows.amx("int8", "int8")))[0]
    with pytest.raises(EmbeddingError, match=r"no code is made of x86\.amx\.tdpbssd"):
        schedule_strategy(strategy(embedding), rows.amx("int8", "int8"), 4)
