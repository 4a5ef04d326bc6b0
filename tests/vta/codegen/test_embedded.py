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
