"""Kernels of HVX around embedded instructions compute what the operator says, in about the packets estimated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.embedding.flows import flow
from tests.embedding.test_strategy import run
from tests.hexagon.emulated import TARGET, needs_emulator
from tvm_ext.backends.hexagon.code import build
from tvm_ext.backends.hexagon.embedded import embedded_kernel, form_of, scalars_of, tile_of
from tvm_ext.backends.hexagon.embedded_cost import kernel_packets, packet_cost
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.choice import Offer, by_constraints, choose, quantized
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.packing import pack, unpack
from tvm_ext.embedding.ranking import rank
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.instruction import Instruction

WORDS = (rows.VRMPY, rows.VMPA_WORDS, rows.VMPY_WORDS)
HALFWORDS = (rows.VMPA, rows.VMPY_SPLAT)
OPERATORS = {
    "product": flow("C[m,n] += A[m,k] * B[k,n]", m=37, n=10, k=9),
    "dilated": flow("C[o,h,w] += A[i,2*h+k,w+2*l] * B[o,i,k,l]", o=3, h=5, w=9, i=5, k=3, l=3),
    "depthwise": flow("C[c,h,w] += A[c,h+k,w+l] * B[c,k,l]", c=7, h=4, w=7, k=3, l=3),
}


def typed(operator: Dataflow, row: Instruction) -> Dataflow:
    """The operator in the types of a row."""
    left, right, result = (access.dtype for access in instruction_dataflow(row).operands)
    first, second = operator.inputs
    return replace(operator, inputs=(replace(first, dtype=left), replace(second, dtype=right)),
                   output=replace(operator.output, dtype=result))  # fmt: skip


def embedded(operator: Dataflow, row: Instruction) -> list[Strategy]:
    try:
        found, _ = by_constraints(operator, instruction_dataflow(row))
    except EmbeddingError:
        return []
    ranked, _ = rank(found)
    return [item.strategy for item in (*ranked[:1], *ranked[-1:])]


def emulate(found: Strategy, row: Instruction, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, int]:
    """The operator's result, and the packets of the kernel."""
    script = Script(build(tvm.IRModule({"embedded": embedded_kernel(found, row)}), TARGET))
    stored = [pack(values, operand) for values, operand in zip((left, right), found.operands, strict=False)]
    factors = [stored[found.embedding.operand(number)] for number in range(2)]
    result = np.zeros(found.operands[2].shape, found.embedding.operator.output.dtype)
    places = [
        script.array(factors[0]),
        script.array(scalars_of(factors[1], found, row)),
        script.allocate(result.nbytes),
    ]
    script.call("embedded", places)
    script.read(places[2], result.nbytes)
    counts, (answer,) = script.run()
    return unpack(np.frombuffer(answer, result.dtype).reshape(result.shape), found), counts[0].packets


@needs_emulator
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("row", [*WORDS, *HALFWORDS], ids=lambda row: row.name)
def test_kernels_compute_what_the_operator_says(row: Instruction, name: str) -> None:
    operator = typed(OPERATORS[name], row)
    random = np.random.default_rng(0)
    left = random.integers(0, 256, operator.inputs[0].shape).astype(np.uint8)
    right = random.integers(-64, 65, operator.inputs[1].shape).astype(np.int8)
    found = embedded(operator, row)
    if row in WORDS:
        assert found
    for item in found:
        result, packets = emulate(item, row, left, right)
        np.testing.assert_array_equal(result, run(operator, left, right).astype(operator.output.dtype))
        assert packets / 2 < kernel_packets(row, item) < packets * 2


def test_tiles_fit_into_registers_and_divide_their_loops() -> None:
    for row in WORDS:
        for operator in OPERATORS.values():
            for found in embedded(typed(operator, row), row):
                tile = tile_of(found, row)
                assert tile.results * form_of(row.name).registers <= 16
                for loop, turns in ((tile.left, tile.lefts), (tile.right, tile.rights)):
                    assert turns == 1 if loop < 0 else found.loops[loop].extent % turns == 0


def test_cost_grows_with_the_work() -> None:
    offer = Offer(rows.VRMPY, packet_cost(rows.VRMPY))
    small, large = (
        choose(typed(flow("C[m,n] += A[m,k] * B[k,n]", m=64, n=size, k=64), rows.VRMPY), offer) for size in (16, 64)
    )
    assert small.best is not None
    assert large.best is not None
    assert small.best.cost < large.best.cost < 5 * small.best.cost


def test_other_rows_are_refused() -> None:
    with pytest.raises(
        EmbeddingError, match=r"no kernel for HVX is made of arm\.smmla; expected one of hexagon\.vrmpy"
    ):
        packet_cost(rows.SMMLA)


def test_costs_are_packets_and_sums_of_16_bits_take_nothing_quantised() -> None:
    offers = backend_of(TARGET).instructions(TARGET)
    assert {offer.unit for offer in offers} == {"packets"}
    with pytest.raises(EmbeddingError, match=r"hexagon\.vmpa sums up in int16, which a quantised operator exceeds"):
        quantized(flow("C[m,n] += A[m,k] * B[k,n]", "float32", "float32", m=37, n=10, k=9), rows.VMPA)
