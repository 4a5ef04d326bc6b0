"""Networks that nobody built give onnxruntime's values at all sizes, alone and on two threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")

from tests.shapes.random_networks import draw, quiet  # noqa: E402

SIZES = ((1, 1, 1), (2, 7, 9), (1, 17, 1), (3, 1, 31), (4, 33, 40))


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fuse": "mapping-type", "rewrite": "fast", "winograd": False},
    {"fuse": "mapping-type", "rewrite": "strict", "memory": "optimal", "embed": "all"},
    {"memory": "stock", "prologues": False, "embed": "off"},
)


def check(seed: int, **options: Any) -> None:
    """Compile one network and run it at all sizes."""
    network = draw(seed)
    model = network.model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet())
    compiled = tvm_ext.compile(model, dynamic=network.dynamic, **options)
    feeds = [network.feeds(size, seed) for size in SIZES]
    expected = [session.run(None, given) for given in feeds]
    with ThreadPoolExecutor(2) as pool:
        found: list[list[Any]] = [
            list(pool.map(lambda given: list(compiled.run(given).values()), feeds)) for _ in range(2)
        ]
    for results in found:
        for size, wanted, got in zip(SIZES, expected, results, strict=True):
            for want, have in zip(wanted, got, strict=True):
                assert (want.shape, want.dtype) == (have.shape, have.dtype), (seed, size)
                scale = max(1.0, float(np.abs(want).max(initial=0)))
                np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4 * scale, err_msg=f"{seed} {size}")


@pytest.mark.parametrize("seed", range(4))
def test_random_networks(seed: int) -> None:
    check(seed, **OPTIONS[seed % len(OPTIONS)])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 200, 10))
def test_many_random_networks(start: int) -> None:
    for seed in range(start, start + 10):
        check(1000 + seed, **OPTIONS[seed % len(OPTIONS)])
