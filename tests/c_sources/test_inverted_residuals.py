"""Inverted residuals in C: small ones, whose rows are vectors on the stack, and larger ones, put into the arena."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.fusion.relax.test_inverted_residuals import block


@pytest.mark.parametrize(
    "case",
    [
        {"channels": 8, "hidden": 24, "out": 8, "size": (24, 48)},
        {"channels": 16, "hidden": 96, "out": 24, "size": (40, 40), "stride": 2},
    ],
)
def test_values(case: dict[str, Any]) -> None:
    """The values are those of the library, up to rounding."""
    mod, _ = block(**case)
    x = np.random.default_rng(0).standard_normal((1, case["channels"], *case["size"])).astype("float32")
    sources, library = tvm_ext.compile(mod, emit="c"), tvm_ext.compile(mod)
    (found,), (expected,) = sources.run({"x": x}).values(), library.run({"x": x}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
