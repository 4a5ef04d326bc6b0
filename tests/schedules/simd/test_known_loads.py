"""Choices by what was loaded: loaded once, and never from where a condition around forbids it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tests.schedules.kernels import TARGETS
from tests.schedules.simd.test_loops import lowered, marked, run
from tvm_ext.schedules.simd.known_loads import KnownLoads

CASES: dict[str, tuple[Callable[..., Any], Callable[..., np.ndarray]]] = {
    "softplus": (
        lambda x, i, j: tirx.if_then_else(x[i, j] > 1, x[i, j], tirx.log1p(tirx.exp(x[i, j]))),
        lambda x: np.where(x > 1, x, np.log1p(np.exp(x))),
    ),
    "nested": (
        lambda x, i, j: tirx.if_then_else(
            x[i, j] > 0, tirx.if_then_else(x[i, j] > 1, x[i, j] * 2, x[i, j] - 1), x[i, j] + 3
        ),
        lambda x: np.where(x > 0, np.where(x > 1, x * 2, x - 1), x + 3),
    ),
    "another": (
        lambda x, i, j: tirx.if_then_else(x[i, j] > 0, x[4 - i, j], x[i, j]),
        lambda x: np.where(x > 0, x[::-1], x),
    ),
    "of a choice": (
        lambda x, i, j: tirx.if_then_else(
            tirx.if_then_else(i > 0, x[tirx.max(i - 1, 0), j], tirx.const(0.0, "float32")) > 0,
            x[tirx.max(i - 1, 0), j], x[i, j],
        ),
        lambda x: np.where(np.vstack([x[:1] * 0, x[:-1]]) > 0, np.vstack([x[:1], x[:-1]]), x),
    ),
}  # fmt: skip


def kernel(value: Callable[..., Any], columns: int) -> tirx.PrimFunc:
    x = te.placeholder((5, columns), "float32", "x")
    return te.create_prim_func([x, te.compute((5, columns), lambda i, j: value(x, i, j), name="chosen")])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 7, 16, 31, 33])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, columns: int, target: str) -> None:
    value, expected = CASES[name]
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype("float32") * 2
    x[2, columns // 2] = np.nan
    func = lowered(marked(kernel(value, columns), "chosen", 16), target)
    with np.errstate(all="ignore"):
        wanted = expected(x)
    np.testing.assert_allclose(run(func, [x], x.shape, "float32", target), wanted, rtol=1e-5, atol=1e-5)


def test_no_load_of_a_tail_says_the_condition_again() -> None:
    """In the condition, where it holds, and where it does not: not in the masks of the latter two."""
    text = lowered(marked(kernel(CASES["softplus"][0], 31), "chosen", 16)).script()
    assert text.count("masked_load") == 3, text


def test_what_only_some_lanes_or_rounds_load_is_not_known_to_others() -> None:
    x = tirx.decl_buffer((64,), "float32", "x")
    first, second = (tirx.BufferLoad(x, [tirx.const(place, "int64")]) for place in (0, 1))
    loads, widened = KnownLoads(), []

    def widen(load: Any) -> str:
        widened.append(load)
        return f"wide {len(widened)}"

    with loads.noted() as made:
        assert loads.once(first, widen) == "wide 1"
        with loads.known([]):  # a branch within the condition
            assert loads.once(second, widen) == "wide 2"
    with loads.known(made):
        again = tirx.BufferLoad(x, [tirx.const(0, "int64")])
        assert [loads.once(again, widen), loads.once(second, widen)] == ["wide 1", "wide 3"]
    assert loads.once(first, widen) == "wide 4"
