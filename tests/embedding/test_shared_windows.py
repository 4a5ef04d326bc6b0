"""Outputs that share windows are what they were, for any embedding of what the operator became."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.embedding.flows import flow
from tests.embedding.test_strategy import run, run_stored
from tvm_ext.embedding.program import relaxed
from tvm_ext.embedding.shared_windows import share_window
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import strategy
from tvm_ext.errors import EmbeddingError

GEMM = flow("C[x,y] += A[x,z] * B[y,z]", x=1, y=4, z=4)
NHWC = "C[n,h,w,o] += A[n,h+2*k,2*w+l,i] * B[o,i,k,l]"
EXTENTS = {"n": 1, "o": 4, "h": 3, "w": 5, "i": 1, "k": 2, "l": 3}


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (1, 9), (2, 3)])
@pytest.mark.parametrize("formula", [NHWC, "C[n,o,h,w] += A[n,i,3*h+2*k,2*w+3*l] * B[k,l,i,o]"])
def test_the_meaning_is_kept(formula: str, rows: int, columns: int) -> None:
    operator = flow(formula, **EXTENTS)
    rng = np.random.default_rng(rows)
    data, weights = (rng.integers(-9, 9, access.shape) for access in operator.inputs)
    expected = run(operator, data, weights)
    shared = operator
    for axis, turns in (("w", columns), ("h", rows)):
        if turns > 1:
            window = share_window(shared, axis, turns)
            shared, weights = window.operator, window.shifted(weights)
    assert shared.inputs[1].shape == weights.shape
    found = solve(shared, GEMM, relaxed((1,), 4))
    # An axis of a few parts is no place for the outputs of an instruction.
    found = [it for it in found if all(not shared.axes[digit.axis].name.endswith("_part") for digit in it.digits[1])]
    assert found
    for embedding in (found[0], found[-1]):
        np.testing.assert_array_equal(run_stored(strategy(embedding), data, weights), expected, str(embedding))


def test_lanes_that_were_padding_are_taps_of_the_next_outputs() -> None:
    operator = flow("C[w,o] += A[w+k] * B[o,k]", w=16, o=4, k=3)
    window = share_window(operator, "w", 2)
    assert str(window.operator) == "operator[w:8 o:4 k+:4 w_part:2] C[2*w+w_part, o] += A[2*w+k] * B[w_part, o, k]"
    before, after = (
        min(strategy(it).operands[0].elements for it in solve(flow_, GEMM, relaxed((1,), 4)))
        for flow_ in (operator, window.operator)
    )
    assert before == 2 * after


@pytest.mark.parametrize(
    ("formula", "axis", "why"),
    [
        ("C[m,n] += A[m,k] * B[k,n]", "m", "slides along no window"),
        ("C[c,w] += A[c,w+k] * B[c,k]", "c", "slides along no window"),
        ("C[w] += A[w+k+l] * B[k,l]", "w", "slides along no window"),
        ("C[w] += A[w+k] * B[2*k]", "w", "slides along no window"),
        ("C[w,v] += A[w+k] * B[k,w+v]", "w", "slides along no window"),
        ("C[w] += A[w+k] * B[k]", "v", "has no axis 'v'; it has [wk], [wk]"),
        ("C[w] += A[w+k] * B[k]", "w", "1 outputs of operator cannot share"),
    ],
)
def test_what_shares_no_window_is_refused(formula: str, axis: str, why: str) -> None:
    extents = dict.fromkeys(set(re.findall(r"\b[a-z]\b", formula)), 2)
    operator = flow(formula, **extents)
    with pytest.raises(EmbeddingError, match=why):
        share_window(operator, axis, 1 if "outputs" in why else 2)
