"""Embeddings that rewriting finds are ones that the constraint program accepts, and compute what the operator does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.embedding.flows import flow, random_case
from tests.embedding.test_strategy import run, run_stored
from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.program import Setting
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import strategy
from tvm_ext.embedding.top_down.engine import search
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.rows import ROWS

ONE_TO_ONE = Setting(pad_to=(1,))
CONV = "C[n,o,h,w] += A[n,i,h+k,w+l] * B[o,i,k,l]"
GEMM = flow("C[x,y] += A[x,z] * B[y,z]", x=1, y=4, z=4)


def rewritten(operator: Dataflow, instruction: Dataflow) -> tuple[Embedding, ...]:
    try:
        return search(operator, instruction).embeddings
    except EmbeddingError:
        return ()


def solved(operator: Dataflow, instruction: Dataflow) -> list[Embedding]:
    try:
        return solve(operator, instruction, [ONE_TO_ONE], limit=10**6)
    except EmbeddingError:
        return []


def placed(found: Embedding) -> tuple:
    """What lies on axes of more than a point: where single points lie makes no difference."""
    axes = found.instruction.axes
    return found.swapped, tuple(() if axis.extent == 1 else it for axis, it in zip(axes, found.digits, strict=True))


def compare(seed: int) -> tuple[int, int]:
    operator, instruction = random_case(seed)
    found = rewritten(operator, instruction)
    accepted = {placed(embedding) for embedding in solved(operator, instruction)}
    rng = np.random.default_rng(seed)
    left, right = (rng.integers(-9, 9, access.shape).astype(np.int8) for access in operator.inputs)
    expected = run(operator, left, right)
    for embedding in found:
        assert placed(embedding) in accepted, f"seed {seed}: {embedding}"
        np.testing.assert_array_equal(
            run_stored(strategy(embedding), left, right), expected, f"seed {seed}: {embedding}"
        )
    return len({placed(embedding) for embedding in found}), len(accepted)


def test_the_constraint_program_accepts_what_rewriting_finds() -> None:
    counts = [compare(seed) for seed in range(120)]
    both = sum(mine == theirs > 0 for mine, theirs in counts)
    more = sum(theirs > mine for mine, theirs in counts)
    assert both > 40
    assert more > 10, "windows are beyond rewriting"


@pytest.mark.slow
def test_the_constraint_program_accepts_what_rewriting_finds_in_many_cases() -> None:
    for seed in range(120, 1000):
        compare(seed)


@pytest.mark.parametrize(
    "formula", [CONV, "C[n,h,w,o] += A[n,h+k,w+l,i] * B[o,i,k,l]", "C[h,w,n,o] += A[h+k,w+l,n,i] * B[k,l,i,o]"]
)
def test_the_hand_written_layout_of_a_convolution(formula: str) -> None:
    operator = flow(formula, n=1, o=8, h=8, w=8, i=8, k=3, l=3)
    found = search(operator, GEMM)
    assert str(found.embeddings[0]) == "x <- n:1, y <- o:4, z <- i:4"
    assert found.candidates == 16  # batch and channels on two axes in either order, windows always in the way


def test_extents_are_padded_and_divided_afterwards() -> None:
    operator = flow("C[m,n] += A[m,k] * B[k,n]", m=1, n=7, k=9)
    texts = [str(embedding) for embedding in search(operator, GEMM).embeddings]
    assert texts[0] == "x <- m:1, y <- n:4 padded 7->8, z <- k:4 padded 9->12"


def test_every_row_fits_an_operator_of_its_own_form() -> None:
    for row in ROWS:
        instruction = instruction_dataflow(row)
        (first, *_) = search(instruction, instruction).embeddings
        assert first.calls == 1, row.name


def test_what_is_beyond_rewriting_has_a_reason() -> None:
    depthwise = flow("C[c,w] += A[c,w+k] * B[c,k]", c=4, w=4, k=3)
    with pytest.raises(EmbeddingError, match=r"none of \d+ candidates of operator matches the instruction"):
        search(depthwise, GEMM)
    floats = flow("C[m,n] += A[m,k] * B[k,n]", dtype="float32", result="float32", m=1, n=7, k=9)
    with pytest.raises(EmbeddingError, match="multiplies float32 and float32"):
        search(floats, GEMM)


def test_a_limit_ends_the_search_with_what_was_found() -> None:
    operator = flow(CONV, n=2, o=8, h=8, w=8, i=8, k=3, l=3)
    whole = search(operator, GEMM)
    assert search(operator, GEMM, budget=Budget(checks=1)).embeddings == whole.embeddings[:1]
