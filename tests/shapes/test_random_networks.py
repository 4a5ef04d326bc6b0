"""Networks that nobody built give onnxruntime's values at all sizes, alone and on two threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")

from tests.shapes import random_images, random_sequences  # noqa: E402
from tests.shapes.random_network import quiet  # noqa: E402

KINDS = {"images": random_images, "sequences": random_sequences}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fuse": "mapping-type", "rewrite": "fast", "winograd": False},
    {"fuse": "mapping-type", "rewrite": "strict", "memory": "optimal", "embed": "all"},
    {"memory": "stock", "prologues": False, "embed": "off"},
)


def check(kind: str, seed: int, **options: Any) -> None:
    """Compile one network and run it at all sizes."""
    network, sizes = KINDS[kind].draw(seed), KINDS[kind].SIZES
    model = network.model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet())
    compiled = tvm_ext.compile(model, dynamic=network.dynamic, **options)
    feeds = [network.feeds(size, seed) for size in sizes]
    expected = [session.run(None, given) for given in feeds]
    with ThreadPoolExecutor(2) as pool:
        found: list[list[Any]] = [
            list(pool.map(lambda given: list(compiled.run(given).values()), feeds)) for _ in range(2)
        ]
    for results in found:
        for size, wanted, got in zip(sizes, expected, results, strict=True):
            for want, have in zip(wanted, got, strict=True):
                assert (want.shape, want.dtype) == (have.shape, have.dtype), (seed, size)
                scale = max(1.0, float(np.abs(want).max(initial=0)))
                np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4 * scale, err_msg=f"{seed} {size}")


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
