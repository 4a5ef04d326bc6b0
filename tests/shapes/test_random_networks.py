"""Networks that nobody built give onnxruntime's values at all sizes, alone and on two threads at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")

from tests.shapes import random_images, random_quantized, random_sequences  # noqa: E402
from tests.shapes.random_network import quiet  # noqa: E402

KINDS = {"images": random_images, "sequences": random_sequences, "quantized": random_quantized}
MOST_APART, FAR_APART = 0.1, 0.02
"""How far one result of a quantised network, and all together, may be from onnxruntime's, of the largest and of all."""

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fuse": "mapping-type", "rewrite": "fast", "winograd": False},
    {"fuse": "mapping-type", "rewrite": "strict", "memory": "optimal", "embed": "all"},
    {"memory": "stock", "prologues": False, "embed": "off"},
)


STEP = 1e-6
"""By what inputs are moved, relatively, to see which results hang on less than any two programs agree in."""


def compare(
    kind: str,
    want: np.ndarray,
    have: np.ndarray,
    where: str,
    tolerance: float = 1e-3,
    nearby: Sequence[np.ndarray] = (),
) -> None:
    """Compare results; of a quantised network, few may be off by a step, and what follows from it.

    With results of the reference for inputs nearby, few elements that jump between these count as equal: one that is
    rounded up may be 3 as well as 3.0000002.
    """
    assert (want.shape, want.dtype) == (have.shape, have.dtype), where
    if kind != "quantized":
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        jumps = np.zeros(want.shape, bool)
        for other in nearby:
            jumps |= ~np.isclose(other, want, rtol=tolerance, atol=tolerance / 10 * scale, equal_nan=True)
        if jumps.sum() <= max(1, jumps.size // 100):
            have = np.where(jumps, want, have)
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance / 10 * scale, err_msg=where)
        return
    wanted, found = want.astype("float64"), have.astype("float64")
    assert np.isfinite(found).all(), where
    apart = float(np.abs(found - wanted).max(initial=0))
    assert apart <= MOST_APART * max(float(np.abs(wanted).max(initial=0)), 1e-6), f"{where}: {apart}"
    assert np.linalg.norm(found - wanted) <= FAR_APART * np.linalg.norm(wanted) + 1e-6, where


def session_of(kind: str, model: onnx.ModelProto) -> Any:
    """Make a session of onnxruntime; optimised, it leaves roundings of a quantised network out."""
    options = quiet()
    if kind == "quantized":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def check(kind: str, seed: int, target: Any = None, is_open: bool = True, **options: Any) -> None:
    """Compile one network for all sizes, or for one, and run it."""
    network, sizes = KINDS[kind].draw(seed), KINDS[kind].SIZES
    model = network.model()
    session = session_of(kind, model)
    if not is_open:
        sizes = (sizes[seed % len(sizes)],)
    feeds = [network.feeds(size, seed) for size in sizes]
    shapes = {name: array.shape for name, array in feeds[0].items()}
    extents: dict[str, Any] = {"dynamic": network.dynamic} if is_open else {"input_shapes": shapes}
    compiled = tvm_ext.compile(model, target, **extents, **options)
    expected = [session.run(None, given) for given in feeds]
    beside = [[session.run(None, moved(given, step)) for step in (-STEP, STEP)] for given in feeds]
    with ThreadPoolExecutor(2) as pool:
        found: list[list[Any]] = [
            list(pool.map(lambda given: list(compiled.run(given).values()), feeds)) for _ in range(2)
        ]
    for results in found:
        for size, wanted, near, got in zip(sizes, expected, beside, results, strict=True):
            for want, have, *nearby in zip(wanted, got, *near, strict=True):
                compare(kind, want, have, f"{seed} {size}", nearby=nearby)


def moved(feeds: dict[str, np.ndarray], step: float) -> dict[str, np.ndarray]:
    """Multiply inputs of floats by ``1 + step``."""
    return {
        name: array * array.dtype.type(1 + step) if array.dtype.kind == "f" else array for name, array in feeds.items()
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_random_networks(kind: str, seed: int) -> None:
    check(kind, seed, **OPTIONS[seed % len(OPTIONS)])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 100, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_networks(kind: str, start: int) -> None:
    for seed in range(1000 + start, 1010 + start):
        check(kind, seed, **OPTIONS[seed % len(OPTIONS)])
