"""Random graphs of reductions, choices, gathers, scatters, truths and views, compiled in many ways, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from scripts.fuzz.options import runs_here
from tests.graph.random_values import draw

LEVELS = [level for level in ("haswell", "skylake-avx512", "x86-64-v2") if runs_here(level)]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"memory": "optimal"},
    {"fuse": "mapping-type"},
    {"opt_level": 3},
    {"memory": "stock"},
)


def check(seed: int, **options: Any) -> None:
    drawn = draw(seed)
    threads = 1 + seed % 2
    target = {"kind": "llvm", "mcpu": LEVELS[seed % len(LEVELS)], "num-cores": threads} if LEVELS else "native"
    options = {**OPTIONS[seed % len(OPTIONS)], **options}
    found = tvm_ext.compile(drawn.module, target, **options).run(drawn.inputs)
    for number, (value, wanted) in enumerate(zip(found.values(), drawn.results, strict=True)):
        told = f"seed {seed}, {target}, {options}, result {number}: {', '.join(drawn.steps)}"
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype), told
        np.testing.assert_array_equal(_plain(value), _plain(wanted), err_msg=told)


def _plain(value: np.ndarray) -> np.ndarray:
    """Give the bytes of truths, of which NumPy takes 254 for true."""
    return value.view("uint8") if value.dtype == bool else value


@pytest.mark.parametrize("block", range(9))
def test_graphs(block: int) -> None:
    for seed in range(4 * block, 4 * block + 4):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_graphs(block: int) -> None:
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_graphs_as_c_sources(block: int) -> None:
    for seed in range(5000 + 10 * block, 5010 + 10 * block):
        check(seed, emit="c")
