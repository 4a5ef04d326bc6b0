"""Embedded layers on the simulator: any rewrite gives, byte for byte, what the convolution gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.embedding.flows import flow
from tests.embedding.test_strategy import run
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.embedded import embedded_layer
from tvm_ext.backends.vta.codegen.embedded_program import (
    embedded_program,
    estimated_cycles,
    run_embedded,
    transform_cycles,
)
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.program import relaxed
from tvm_ext.embedding.ranking import naive_waste, rank, stored_macs
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.shared_windows import share_window
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.rows import vta_gemm

CASES = {
    "strict": ("C[n,o,h,w] += A[n,i,h+k,w+l] * B[o,i,k,l]", {"n": 2, "o": 16, "i": 16, "h": 3, "w": 4, "k": 2, "l": 1}),
    "nhwc": ("C[n,h,w,o] += A[n,2*h+k,w+l,i] * B[k,l,i,o]", {"n": 1, "o": 17, "i": 9, "h": 3, "w": 3, "k": 1, "l": 3}),
    "one channel": ("C[n,o,h,w] += A[n,i,2*h+k,2*w+l] * B[o,i,k,l]", {"o": 16, "i": 1, "h": 5, "w": 4, "k": 5, "l": 4}),
    "dilated": ("C[n,o,h,w] += A[n,i,h+2*k,w+3*l] * B[o,i,k,l]", {"o": 16, "i": 16, "h": 5, "w": 7, "k": 3, "l": 3}),
    "grouped": ("C[g,o,h,w] += A[g,i,h+k,w+l] * B[g,o,i,k,l]", {"g": 3, "o": 8, "i": 16, "h": 3, "w": 3, "k": 2,
                 "l": 2}),
    "matmul": ("C[m,o] += A[m,i] * B[o,i]", {"m": 7, "o": 33, "i": 31}),
    "conv1d": ("C[o,w] += A[i,w+l] * B[o,i,l]", {"o": 16, "i": 7, "w": 9, "l": 3}),
}  # fmt: skip
COSTS = costs_named("chisel")
EPILOGUE = Epilogue(4, -100, 100)


def operator_of(case: str) -> Dataflow:
    formula, extents = CASES[case]
    return flow(formula, **({"n": 1} if "n," in formula else {}) | extents)


def expected(operator: Dataflow, data: NDArray, weights: NDArray) -> NDArray:
    return np.clip(run(operator, data, weights) >> EPILOGUE.shift, EPILOGUE.low, EPILOGUE.high).astype(np.int8)


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "sim") for case in CASES), *((case, "sim_8x8") for case in ("strict", "one channel", "conv1d"))],
)
def test_embedded_layers_are_exact_on_the_simulator(case: str, name: str) -> None:
    config, operator = load_config(name), operator_of(case)
    instruction = instruction_dataflow(vta_gemm(config.batch, config.block))
    found = solve(operator, instruction, relaxed((1, 4), naive_waste(operator, instruction)))
    rng = np.random.default_rng(0)
    data, weights = (rng.integers(-128, 128, access.shape).astype(np.int8) for access in operator.inputs)
    right, features = expected(operator, data, weights), set()
    by_features = {strategy(embedding).features: embedding for embedding in found}
    for embedding in [*by_features.values()][:4]:
        layer = embedded_layer(strategy(embedding), config)
        program = embedded_program(layer, config, COSTS, data, weights, EPILOGUE)
        result, steps = run_embedded(program, layer)
        np.testing.assert_array_equal(result, right, str(embedding))
        assert steps["gemm"] <= stored_macs(layer.strategy) // instruction.macs
        features |= set(layer.strategy.features)
    assert (case, name) != ("dilated", "sim") or "dilate pack" in features


DIRECT = {
    "nhwc": ("C[n,h,w,o] += A[n,2*h+k,w+l,i] * B[k,l,i,o]", {"n": 2, "o": 48, "i": 3, "h": 3, "w": 2, "k": 2, "l": 3}),
    "hwnc": ("C[h,w,n,o] += A[h+k,w+l,n,i] * B[o,i,k,l]", {"n": 3, "o": 32, "i": 3, "h": 3, "w": 4, "k": 3, "l": 3}),
    "grouped": ("C[n,h,w,g,o] += A[n,h+k,w+l,g,i] * B[g,o,i,k,l]", {"n": 1, "g": 3, "o": 32, "i": 5, "h": 3, "w": 3,
                 "k": 2, "l": 2}),
    "dilated": ("C[h,w,o] += A[h+2*k,w+3*l,i] * B[o,i,k,l]", {"o": 32, "i": 16, "h": 4, "w": 6, "k": 3, "l": 3}),
    "matmul": ("C[m,o] += A[m,i] * B[o,i]", {"m": 7, "o": 32, "i": 31}),
}  # fmt: skip


@pytest.mark.parametrize("shared", [(1, 1), (2, 2)])
@pytest.mark.parametrize("case", DIRECT)
def test_vta_stores_the_result_of_the_operator_itself(case: str, shared: tuple[int, int]) -> None:
    formula, extents = DIRECT[case]
    if shared != (1, 1) and case in ("dilated", "matmul"):
        pytest.skip("no windows without holes")
    extents = extents | {axis: extents[axis] * turns for axis, turns in zip("hw", shared, strict=True) if turns > 1}
    config, operator = load_config("sim"), flow(formula, **extents)
    rng = np.random.default_rng(0)
    data, weights = (rng.integers(-128, 128, access.shape).astype(np.int8) for access in operator.inputs)
    right = expected(operator, data, weights)
    for axis, turns in zip("hw", shared, strict=True):
        if turns > 1:
            window = share_window(operator, axis, turns)
            operator, weights = window.operator, window.shifted(weights)
    instruction = instruction_dataflow(vta_gemm(1, 16))
    ranked, _ = rank(solve(operator, instruction, relaxed((1, 4), naive_waste(operator, instruction))))
    direct = 0
    for item in ranked[:12]:
        layer = embedded_layer(item.strategy, config)
        if layer.direct_order() is None:
            continue
        direct += 1
        program = embedded_program(layer, config, COSTS, data, weights, EPILOGUE, direct=True)
        result, _ = run_embedded(program, layer, direct=True)
        np.testing.assert_array_equal(result, right, str(item.strategy.embedding))
        assert transform_cycles(layer, COSTS, direct=True) == pytest.approx(layer.elements(0))
        break
    assert direct


def test_results_that_have_to_be_cut_or_transposed_are_not_stored_directly() -> None:
    config, instruction = load_config("sim"), instruction_dataflow(vta_gemm(1, 16))
    for case in ("one channel", "nhwc", "dilated"):  # channels first, 17 of 32 channels, 5 rows in parts of 2
        operator = operator_of(case)
        found = solve(operator, instruction, relaxed((1,), naive_waste(operator, instruction)))
        assert all(embedded_layer(strategy(it), config).direct_order() is None for it in found)


def test_cost_of_the_target_ranks_unrolled_stencils_first_where_channels_are_few() -> None:
    config, operator = load_config("sim"), flow(CASES["one channel"][0], n=1, o=32, i=1, h=40, w=40, k=8, l=8)
    instruction = instruction_dataflow(vta_gemm(1, 16))
    embeddings = solve(operator, instruction, relaxed((1,), naive_waste(operator, instruction)))
    ranked, refused = rank(
        embeddings, cost=lambda found: estimated_cycles(embedded_layer(found, config), config, COSTS)
    )
    assert not refused
    assert "stencil unroll" in ranked[0].strategy.features
    layer = embedded_layer(ranked[0].strategy, config)
    # 100 MHz, 10 ns a value
    assert transform_cycles(layer, COSTS) == pytest.approx(layer.elements(0) + layer.elements(2))


def test_volumes_have_too_many_windows() -> None:
    operator = flow("C[o,d,h,w] += A[i,d+j,h+k,w+l] * B[o,i,j,k,l]", o=16, i=16, d=3, h=3, w=3, j=2, k=2, l=2)
    (embedding,) = solve(operator, instruction_dataflow(vta_gemm(1, 16)))
    with pytest.raises(EmbeddingError, match="has 3 windows"):
        embedded_layer(strategy(embedding), load_config("sim"))
