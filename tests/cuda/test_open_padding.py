"""Padding at the end of an open axis, fused to what it pads: zeros are written, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import relax as R

from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph

N = tvm.tirx.Var("n", "int64")
IMAGE = ((2, 8, N, 9), "float32")
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "product": (lambda _, x, w: R.matmul(x, w), [((2, 8, N, 2), "float32"), ((2, 32), "float32")]),
    "convolution": (lambda _, x, w: R.nn.conv2d(x, w, padding=1), [IMAGE, ((4, 8, 3, 3), "float32")]),
    "channels": (lambda _, x, w: R.nn.conv2d(x, w, padding=1, groups=8), [IMAGE, ((8, 1, 3, 3), "float32")]),
    "maxima": (lambda _, x: R.nn.max_pool2d(x, (2, 2), padding=1), [IMAGE]),
    "softmax": (lambda _, x: R.nn.softmax(x), [IMAGE]),
}


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
@pytest.mark.parametrize("widths", [(0, 1, 0, 0), (0, 2, 0, 1), (1, 0, 0, 0)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_padding(name: str, widths: tuple[int, ...], fuse: str) -> None:
    build, inputs = CASES[name]
    padded = EmulatedModel(graph(lambda *x: R.nn.pad(build(*x), (0, 0, 0, 0, *widths)), inputs), fuse=fuse)
    plain = EmulatedModel(graph(build, inputs))
    for size in (1, 5):
        arrays = [
            np.random.default_rng(place)
            .standard_normal([extent if isinstance(extent, int) else size for extent in shape])
            .astype(dtype)
            for place, (shape, dtype) in enumerate(inputs)
        ]
        (found,), (expected,) = padded(*arrays), plain(*arrays)
        expected = np.pad(expected, [(0, 0), (0, 0), widths[:2], widths[2:]])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not padded.faults
