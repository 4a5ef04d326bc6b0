"""Searches end: by a count that is the same everywhere, or a time; what was found until then is kept."""

from __future__ import annotations

import contextlib

import pytest

from tests.embedding.flows import flow
from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.choice import Offer, choose, quantized
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.program import relaxed
from tvm_ext.embedding.ranking import naive_waste
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.errors import EmbeddingError, OptionError
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.rows import VMPA_WORDS, VRMPY, vta_gemm

CONV = "C[n,o,h,w] += A[n,i,h+k,w+l] * B[o,i,k,l]"
GEMM = flow("C[x,y] += A[x,z] * B[y,z]", x=1, y=4, z=4)
SEVEN = flow(
    "C[a,o,b,c,d,e] += A[a,i,b+j,c+k,d+l,e+m] * B[o,i,j,k,l,m]", a=3, o=5, b=5, c=7, d=5, e=6, i=3, j=3, k=2, l=3, m=2
)


def found(operator: Dataflow, budget: Budget | None = None) -> set:
    return {(item.digits, item.swapped) for item in solve(operator, GEMM, relaxed((1,), 4), budget=budget)}


@pytest.mark.parametrize("checks", [1, 8, 40])
def test_a_search_that_is_stopped_keeps_what_it_found(checks: int) -> None:
    operator = flow(CONV, n=3, o=5, h=7, w=6, i=3, k=3, l=2)
    everything = Budget(checks=10**9)
    whole = found(operator, everything)
    assert not everything.note()
    budget = Budget(checks)
    part = set()
    with contextlib.suppress(EmbeddingError):
        part = found(operator, budget)
    assert part <= whole
    assert f"stopped after {checks:,} checks" in budget.note()
    # Two settings, each once whole and then with 1, 2 and 3 axes fused; the last check may be one of sets.
    assert budget.used <= 8 * (checks + 51)


def test_what_is_stopped_is_the_same_every_time() -> None:
    operator = flow(CONV, n=3, o=5, h=7, w=6, i=3, k=3, l=2)
    first, second = Budget(3000), Budget(3000)
    assert found(operator, first) == found(operator, second)
    assert first.used == second.used


@pytest.mark.parametrize("row", [VRMPY, VMPA_WORDS, vta_gemm(4, 16)], ids=lambda row: row.name)
def test_operators_of_many_axes_end(row: Instruction) -> None:
    instruction = instruction_dataflow(row)
    operator = quantized(
        flow(
            "C[a,b,c,d,e,g] += A[a,g,i,b+j,c+k,d+l,e+m] * B[g,i,j,k,l,m]",
            "float32", "float32", a=3, b=5, c=7, d=5, e=6, g=3, i=3, j=3, k=2, l=3, m=2,
        ),
        row,
    )  # fmt: skip
    budget = Budget(checks=20_000)
    try:
        settings = relaxed(waste=naive_waste(operator, instruction, budget))
        assert solve(operator, instruction, settings, budget=budget)
    except EmbeddingError:
        pass
    assert budget.used <= 20 * 20_051


def test_a_choice_says_that_it_was_not_searched_to_the_end() -> None:
    def cost(found: object) -> float:
        return 1.0

    choice = choose(SEVEN, Offer(vta_gemm(1, 16), cost), budget=Budget(checks=500))
    assert choice.note.startswith("not searched to the end (stopped after 500 checks)")


def test_time_ends_a_search() -> None:
    budget = Budget(checks=10**9, seconds=0.001)
    with contextlib.suppress(EmbeddingError):
        solve(SEVEN, instruction_dataflow(vta_gemm(4, 16)), relaxed((1,), 16), budget=budget)
    assert "stopped after 0.001 seconds" in budget.note()


@pytest.mark.parametrize(("checks", "seconds"), [(0, 1.0), (-5, 1.0), (10, 0.0), (10, float("nan"))])
def test_budgets_of_nothing_are_refused(checks: int, seconds: float) -> None:
    with pytest.raises(OptionError, match="expected"):
        Budget(checks, seconds)


def test_nothing_found_until_then_is_a_reason() -> None:
    with pytest.raises(EmbeddingError, match=r"operator: not searched to the end .*, which is nothing"):
        solve(SEVEN, GEMM, relaxed((1,), 4), budget=Budget(checks=1))
