"""A decoder made with TVM's own ``relax.frontend.nn`` and paged cache gives the tokens that TVM's pipeline gives."""

from typing import Any

import numpy as np
import pytest
import tvm

from tests.generation.paged_decoder import Session, Sizes, made
from tvm_ext.backends.cpu.target import native_target

PROMPTS = ([3, 5, 7, 11, 2], [42], list(range(30)))


def generated(executable: Any, weights: list[Any]) -> np.ndarray:
    """Logits of three sequences of different lengths that are decoded together."""
    session = Session(executable, weights, len(PROMPTS))
    logits = [np.concatenate([session.run("prefill", [i], ids) for i, ids in enumerate(PROMPTS)])]
    for _ in range(6):
        logits.append(session.run("decode", [0, 1, 2], [int(row.argmax()) for row in logits[-1]]))
    return np.stack(logits)


def test_equals_the_stock_pipeline(capfd: pytest.CaptureFixture[str]) -> None:
    mod, weights = made(Sizes(97, 48, 2, 4, 2, 12, 80))
    expected = generated(tvm.compile(mod, "llvm"), weights)
    capfd.readouterr()
    executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    assert "Warning" not in capfd.readouterr().err
    found = generated(executable, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
