"""The axis form has the solutions of the scalar program; the constraints are those of the source's examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.embedding.flows import flow, random_case
from tests.embedding.scalar_program import expand, points, scalar_solutions
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.program import STRICT, Setting, asset_count, assets, relaxed, values
from tvm_ext.embedding.solver import solve
from tvm_ext.errors import EmbeddingError

EVERYTHING = Setting("all", 4, ordered=True, tiles=False, swap=False)
"""All that the scalar program knows: any stride, any fusion, no padding, no rule for what remains."""


def axis_solutions(operator: Dataflow, instruction: Dataflow, setting: Setting) -> set:
    try:
        return {expand(found) for found in solve(operator, instruction, [setting], limit=10**6)}
    except EmbeddingError:
        return set()


def straight(solution: tuple, operator: Dataflow, instruction: Dataflow) -> bool:
    """Whether each axis of the instruction runs along axes of its own kind, and none along a diagonal of others."""
    for point, place in zip(points(instruction), solution, strict=True):
        moved = [at for at, value in enumerate(point) if value]
        if len(moved) == 1:
            pattern = instruction.pattern(moved[0])
            if any(value and operator.pattern(at) != pattern for at, value in enumerate(place)):
                return False
    return True


def compare(seed: int, memory: bool) -> None:
    operator, instruction = random_case(seed)
    expected = scalar_solutions(operator, instruction, memory)
    if memory:  # diagonals always share what they need
        assert all(straight(solution, operator, instruction) for solution in expected)
    else:
        expected = {solution for solution in expected if straight(solution, operator, instruction)}
    found = axis_solutions(operator, instruction, replace(EVERYTHING, memory=memory))
    assert found == expected, f"seed {seed}: {operator} with {instruction}"


@pytest.mark.parametrize("memory", [True, False])
def test_axis_form_has_the_solutions_of_the_scalar_program(memory: bool) -> None:
    for seed in range(20):
        compare(seed, memory)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_axis_form_has_the_solutions_of_the_scalar_program_in_many_cases(memory: bool) -> None:
    for seed in range(20, 420):
        compare(seed, memory)


CONV = "C[n,o,h,w] += A[n,i,h+k,w+l] * B[o,i,k,l]"
GEMM = flow("C[x,y] += A[x,z] * B[y,z]", x=1, y=4, z=4)


def names(operator: Dataflow, instruction: Dataflow, *settings: Setting) -> list[str]:
    return [str(found) for found in solve(operator, instruction, settings)]


@pytest.mark.parametrize("extent", [8, 224])
@pytest.mark.parametrize(
    "formula",
    [CONV, "C[n,h,w,o] += A[n,h+k,w+l,i] * B[o,i,k,l]", "C[h,w,n,o] += A[h+k,w+l,n,i] * B[o,i,k,l]"],
)
@pytest.mark.parametrize("kernel", [1, 3])
def test_strict_gives_the_hand_written_layout_in_any_order_of_dimensions(
    extent: int, formula: str, kernel: int
) -> None:
    operator = flow(formula, n=1, o=8, h=extent, w=extent, i=8, k=kernel, l=kernel)
    assert names(operator, GEMM, STRICT) == ["x <- n:1, y <- o:4, z <- i:4"]


def test_axes_of_one_kind_share_an_axis_of_the_operator() -> None:
    tiles = flow("C[i,j] += A[i,q,r] * B[q,j,r]", i=2, j=2, q=4, r=2)
    operator = flow("C[m,n] += A[m,k] * B[k,n]", m=2, n=2, k=8)
    assert set(names(operator, tiles, STRICT)) == {
        "i <- m:2, j <- n:2, q <- k:4 by 2, r <- k:2",
        "i <- m:2, j <- n:2, q <- k:4, r <- k:2 by 4",
    }


def test_memory_access_of_figure_4_6() -> None:
    gemv = flow("C[z] += A[z,k] * B[k]", z=2, k=3)
    stencil = flow("C[h,w] += A[h,w+k] * B[k]", h=2, w=2, k=3)
    assert names(stencil, gemv, STRICT) == ["z <- h:2, k <- k:3"]
    # Without the constraint, rows that overlap are unrolled.
    free = Setting(memory=False, overlapping=True)
    assert names(stencil, gemv, free) == ["z <- h:2, k <- k:3", "z <- w:2, k <- k:3"]
    assert [found.unrolled for found in solve(stencil, gemv, [free])] == [True, True]


def test_neighbours_of_a_stencil_are_packed_only_far_apart() -> None:
    batched = flow("C[x,y] += A[x,z] * B[y,z]", x=4, y=4, z=4)
    operator = flow(CONV, n=1, o=4, h=16, w=16, i=4, k=3, l=3)
    found = names(operator, batched, relaxed()[0])
    assert "x <- h:2 by 8 x w:2 by 8, y <- o:4, z <- i:4" in found
    assert not any("h:4," in text or "w:4," in text for text in found)


def test_padding_is_bounded_by_waste() -> None:
    operator = flow(CONV, n=1, o=4, h=8, w=8, i=3, k=3, l=3)
    with pytest.raises(EmbeddingError, match=r"axis z of 4 does not divide i of 3, k of 3, l of 3"):
        solve(operator, GEMM)
    assert names(operator, GEMM, Setting(pad_to=(1,), swap=False)) == [
        f"x <- n:1, y <- o:4, z <- {axis}:4 padded 3->4" for axis in "ikl"
    ]
    with pytest.raises(EmbeddingError, match="does not divide"):
        solve(operator, GEMM, [Setting(pad_to=(1,), waste=1.2, swap=False)])


def test_types_must_fit() -> None:
    operator = flow(CONV, dtype="float32", result="float32", n=1, o=4, h=8, w=8, i=4, k=1, l=1)
    with pytest.raises(EmbeddingError, match="multiplies float32 and float32 into float32, the instruction int8"):
        solve(operator, GEMM)


def test_an_axis_without_a_counterpart_is_named() -> None:
    depthwise = flow("C[c,w] += A[c,w+k] * B[c,k]", c=8, w=8, k=3)
    with pytest.raises(EmbeddingError, match="axis y of 4 finds no axis of its kind"):
        solve(depthwise, GEMM)


def test_portfolio_has_equation_4_40_assets_and_changes_the_order_only() -> None:
    operator = flow(CONV, n=4, o=4, h=4, w=4, i=4, k=4, l=4)
    instruction = flow("C[x,y] += A[x,z] * B[y,z]", x=4, y=4, z=4)
    orders = list(assets(operator, instruction))
    assert len(orders) == len(set(orders)) == asset_count(operator, instruction) == 36
    setting = Setting(pad_to=(1,), memory=False, overlapping=True)
    expected = set(names(operator, instruction, setting))
    for order in orders[::7]:
        found = names(operator, instruction, replace(setting, order=order))
        assert set(found) == expected
        first = next(axis for axis in order if axis in "nhw")
        assert found[0].startswith(f"x <- {first}")


def test_a_bound_limits_fused_parts() -> None:
    operator = flow(CONV, n=1, o=4, h=8, w=8, i=4, k=2, l=2)
    setting = Setting(dimensions=2, memory=False, overlapping=True, bound=2)
    domain = list(values(operator, GEMM, 2, False, setting))
    assert domain
    assert all(digit.size <= 2 for fused in domain for digit in fused)
