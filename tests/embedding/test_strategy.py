"""Stored operands, looped over with the instruction's meaning, give what the operator gives."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.embedding.flows import flow, random_case
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.packing import pack, unpack
from tvm_ext.embedding.program import STRICT, Setting, relaxed
from tvm_ext.embedding.ranking import naive_waste, rank, stored_macs, wasted
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import Strategy, strategy
from tvm_ext.errors import EmbeddingError


def run(operator: Dataflow, left: NDArray, right: NDArray) -> NDArray:
    """The operator's meaning, point by point."""
    result = np.zeros(operator.output.shape, np.int64)
    for point in product(*(range(axis.extent) for axis in operator.axes)):
        a, b = (tensor[access.at(point)] for tensor, access in zip((left, right), operator.inputs, strict=True))
        result[operator.output.at(point)] += int(a) * int(b)
    return result


def run_stored(found: Strategy, left: NDArray, right: NDArray) -> NDArray:
    """The loops that remain, and in each turn the instruction on lanes of stored operands."""
    embedding, instruction = found.embedding, found.embedding.instruction
    tensors = [pack(left, found.operands[0]), pack(right, found.operands[1])]
    tensors.append(np.zeros(found.operands[2].shape, np.int64))
    shapes = [access.shape for access in instruction.operands]

    def lanes(number: int, turn: tuple[int, ...]) -> NDArray:
        stored = found.operands[number]
        place = tuple(
            sum(turn[loop] * step for loop, step in dimension.loops)
            for dimension in stored.dimensions
            if dimension.lane is None
        )
        return tensors[number][(*place, ...)]

    for turn in product(*(range(loop.extent) for loop in found.loops)):
        operands = [lanes(embedding.operand(number), turn).reshape(shapes[number]) for number in (0, 1)]
        target = lanes(2, turn)
        total = run(instruction, *operands)
        target += total.reshape(target.shape)
    return unpack(tensors[2], found)


def check(operator: Dataflow, instruction: Dataflow, settings: tuple[Setting, ...], most: int = 6) -> int:
    try:
        embeddings = solve(operator, instruction, settings)
    except EmbeddingError:
        return 0
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-9, 9, access.shape).astype(np.int8) for access in operator.inputs)
    expected = run(operator, left, right)
    for embedding in [*embeddings[: most // 2], *embeddings[-most // 2 :]]:
        found = strategy(embedding)
        np.testing.assert_array_equal(run_stored(found, left, right), expected, str(embedding))
        assert wasted(found)[0] >= 0
    return len(embeddings)


SETTINGS = {
    "strict": (STRICT,),
    "padded": (Setting(pad_to=(1, 2)),),
    "relaxed": relaxed((1,), waste=4, swap=True),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_random_cases_keep_their_meaning(setting: str) -> None:
    assert sum(check(*random_case(seed), SETTINGS[setting], 4) for seed in range(60)) > 20


GEMM = flow("C[x,y] += A[x,z] * B[y,z]", x=1, y=2, z=4)
BATCHED = flow("C[x,y] += A[x,z] * B[y,z]", x=4, y=2, z=2)
CASES = {
    "dilated": ("C[n,o,h,w] += A[n,i,h+2*k,w+2*l] * B[o,i,k,l]", {"i": 4, "k": 2, "l": 2}),
    "dilated and strided": ("C[n,o,h,w] += A[n,i,2*h+3*k,3*w+2*l] * B[o,i,k,l]", {"i": 4, "k": 2, "l": 3}),
    "one channel": ("C[n,o,h,w] += A[n,i,2*h+k,w+l] * B[o,i,k,l]", {"i": 1, "k": 5, "l": 3}),
    "three channels": ("C[n,o,h,w] += A[n,i,h+k,2*w+l] * B[o,i,k,l]", {"i": 3, "k": 3, "l": 3}),
    "grouped channels": (
        "C[n,2*g+o,h,w] += A[n,2*g+i,h+k,w+l] * B[2*g+o,i,k,l]",
        {"g": 3, "o": 2, "i": 2, "k": 2, "l": 1},
    ),
    "grouped": ("C[g,o,h,w] += A[g,i,h+k,w+l] * B[g,o,i,k,l]", {"i": 2, "k": 2, "l": 1}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("instruction", [GEMM, BATCHED], ids=["gemm", "batched"])
def test_rewrites_of_table_4_1(case: str, instruction: Dataflow) -> None:
    formula, extents = CASES[case]
    extents = {"n" if "n" in formula else "g": 2, "o": 2, "h": 3, "w": 4, **extents}
    operator = flow(formula, **extents)
    assert check(operator, instruction, relaxed((1,), naive_waste(operator, instruction)), 8) >= 1


def test_features_name_the_rewrites() -> None:
    found = {}
    for case, (formula, extents) in CASES.items():
        operator = flow(formula, **{"n" if "n" in formula else "g": 2, "o": 2, "h": 4, "w": 4, **extents})
        embeddings = solve(operator, BATCHED, relaxed((1,), naive_waste(operator, BATCHED)))
        found[case] = {name for embedding in embeddings for name in strategy(embedding).features}
    assert {"dilate pack", "image pack"} <= found["dilated"]
    assert "stencil unroll" in found["one channel"]
    assert "pad" in found["one channel"]
    assert "fuse" in found["three channels"]


def test_ranking_orders_by_waste_or_by_a_cost_of_the_target() -> None:
    operator = flow(CASES["one channel"][0], n=2, o=2, h=3, w=4, **CASES["one channel"][1])
    embeddings = solve(operator, GEMM, relaxed((1, 2), naive_waste(operator, GEMM)))
    ranked, refused = rank(embeddings, weights=(1, 0))
    assert not refused
    assert [item.wasted_macs for item in ranked] == sorted(item.wasted_macs for item in ranked)
    assert ranked[0].wasted_macs < wasted(strategy(solve(operator, GEMM, [Setting(pad_to=(1,), swap=False)])[0]))[0]
    by_cost, _ = rank(embeddings, cost=lambda found: -stored_macs(found))
    assert stored_macs(by_cost[0].strategy) == max(stored_macs(item.strategy) for item in ranked)

    def picky(found: Strategy) -> float:
        if "stencil unroll" in found.features:
            raise EmbeddingError("too large")
        return 0.0

    _, refused = rank(embeddings, cost=picky)
    assert refused
    assert all(why == "too large" for _, why in refused)
