"""Networks that nobody built, as they are compiled for CUDA, give onnxruntime's values in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.whole_model import EmulatedModel
from tests.shapes import random_images, random_sequences
from tests.shapes.random_network import quiet
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

onnxruntime = pytest.importorskip("onnxruntime")

KINDS: dict[str, Any] = {"images": random_images, "sequences": random_sequences}
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fuse": "mapping-type", "rewrite": "fast"})


def check(kind: str, seed: int, is_open: bool) -> None:
    """Compile a network for some sizes, or for all, and run it with some."""
    network = KINDS[kind].draw(seed)
    size = KINDS[kind].SIZES[seed % 4]
    feeds = network.feeds(size, seed)
    model = network.model()
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), quiet()).run(None, feeds)
    shapes = {name: array.shape for name, array in feeds.items()}
    imported = import_model(model, **({"dynamic": network.dynamic} if is_open else {"input_shapes": shapes}))
    target = resolve_target({"kind": "cuda", "arch": ("sm_80", "sm_90")[seed // 4 % 2]})
    emulated = EmulatedModel(imported.mod, target, **OPTIONS[seed // 8 % 2])
    found = emulated(*(feeds[spec.name] for spec in imported.inputs))
    where = f"{kind} {seed} {size}"
    for want, have in zip(wanted, found, strict=True):
        assert (want.shape, want.dtype) == (have.shape, have.dtype), where
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-4 * scale, err_msg=where)
    assert not emulated.faults, where


@pytest.mark.parametrize(
    ("kind", "seed", "is_open"),
    [
        ("images", 263, False),  # an image that is repeated and turned round
        ("images", 1002, False),  # a convolution whose result is repeated
        ("sequences", 1098, False),  # what makes one axis of a padded convolution's
        ("images", 75, True),  # a bias behind a filter of one tap
        ("images", 2, True),  # a mean over open extents
        ("images", 40, True),  # indices of open extents that are multiples of an expression
        ("images", 225, True),  # a schedule that cannot be lowered
        ("sequences", 83, True),
        ("sequences", 58, True),
    ],
)
def test_random_networks(kind: str, seed: int, is_open: bool) -> None:
    check(kind, seed, is_open)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1100, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_networks(kind: str, start: int) -> None:
    for seed in range(start, start + 10):
        check(kind, seed, is_open=seed % 5 < 2)
