"""A strategy as TIR computes what the operator computes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.embedding.flows import flow
from tests.embedding.test_strategy import BATCHED, CASES, GEMM, run
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.function import stored_function, stored_shape, whole_function
from tvm_ext.embedding.packing import pack, unpack
from tvm_ext.embedding.program import relaxed
from tvm_ext.embedding.ranking import naive_waste
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import strategy

SPLIT = flow("C[p,m] += A[m,p,q] * B[q]", p=2, m=2, q=2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("instruction", [GEMM, BATCHED, SPLIT], ids=["gemm", "batched", "split"])
def test_functions_compute_the_operator(case: str, instruction: Dataflow) -> None:
    formula, extents = CASES[case]
    operator = flow(formula, **{"n" if "n" in formula else "g": 2, "o": 2, "h": 3, "w": 4, **extents})
    embeddings = solve(operator, instruction, relaxed((1,), naive_waste(operator, instruction)))
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-9, 9, access.shape).astype(np.int8) for access in operator.inputs)
    expected = run(operator, left, right)
    for embedding in (embeddings[0], embeddings[-1]):
        found = strategy(embedding)
        functions = {"whole": whole_function(found), "stored": stored_function(found)}
        compiled = tvm.compile(
            tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()}), "llvm"
        )
        result = tvm.runtime.tensor(np.zeros(operator.output.shape, np.int32))
        compiled["whole"](tvm.runtime.tensor(left), tvm.runtime.tensor(right), result)
        np.testing.assert_array_equal(result.numpy(), expected, str(embedding))
        operands = [pack(values, stored) for values, stored in zip((left, right), found.operands, strict=False)]
        tensors = [
            tvm.runtime.tensor(operands[embedding.operand(number)].reshape(stored_shape(found, number)))
            for number in range(2)
        ]
        stored = tvm.runtime.tensor(np.zeros(stored_shape(found, 2), np.int32))
        compiled["stored"](*tensors, stored)
        back = unpack(stored.numpy().reshape(found.operands[2].shape), found)
        np.testing.assert_array_equal(back, expected, str(embedding))
