"""Networks that nobody built, as they are compiled for CUDA, give onnxruntime's values in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.whole_model import EmulatedModel
from tests.shapes import random_images, random_quantized, random_sequences
from tests.shapes.random_network import quiet
from tests.shapes.test_random_networks import compare
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

onnxruntime = pytest.importorskip("onnxruntime")

KINDS: dict[str, Any] = {"images": random_images, "sequences": random_sequences, "quantized": random_quantized}
FLOATS = ("images", "sequences")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fuse": "mapping-type", "rewrite": "fast"})
FURTHER: tuple[dict[str, Any], ...] = (
    {"precision": "float16"},
    {"precision": "bfloat16", "fuse": "mapping-type", "rewrite": "strict", "memory": "optimal"},
    {"precision": "tf32", "memory": "stock"},
    {"fuse": "mapping-type", "rewrite": "fast", "memory": "optimal"},
    {"precision": "float16", "fuse": "mapping-type", "rewrite": "fast", "memory": "optimal"},
    {"precision": "bfloat16"},
)
TOLERANCES = {"float32": (2e-3, 2e-4), "tf32": (2e-3, 2e-3), "float16": (5e-3, 5e-3), "bfloat16": (2e-2, 2e-2)}
"""How far a result may be from onnxruntime's, of itself and of the largest one, by precision."""


def check(kind: str, seed: int, is_open: bool, arch: str, options: dict[str, Any]) -> None:
    """Compile a network for some sizes, or for all, and run it with some."""
    network = KINDS[kind].draw(seed)
    size = KINDS[kind].SIZES[seed % 4]
    feeds = network.feeds(size, seed)
    model = network.model()
    given = quiet()
    if kind == "quantized":  # optimised, it leaves roundings out
        given.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), given).run(None, feeds)
    shapes = {name: array.shape for name, array in feeds.items()}
    imported = import_model(model, **({"dynamic": network.dynamic} if is_open else {"input_shapes": shapes}))
    emulated = EmulatedModel(imported.mod, resolve_target({"kind": "cuda", "arch": arch}), **options)
    found = emulated(*(feeds[spec.name] for spec in imported.inputs))
    where = f"{kind} {seed} {size} {arch} {options}"
    precision = options.get("precision", "float32")
    relative, absolute = TOLERANCES[precision]
    for want, have in zip(wanted, found, strict=True):
        assert (want.shape, want.dtype) == (have.shape, have.dtype), where
        if kind == "quantized":
            compare(kind, want, have, where)
        elif precision == "float32" or want.dtype.kind == "f":  # places of what is about the same depend on rounding
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(have, want, rtol=relative, atol=absolute * scale, err_msg=where)
    assert not emulated.faults, where


def arch_of(seed: int) -> str:
    return ("sm_80", "sm_90")[seed // 4 % 2]


@pytest.mark.parametrize(
    ("kind", "seed", "is_open"),
    [
        ("images", 263, False),  # an image that is repeated and turned round
        ("images", 1002, False),  # a convolution whose result is repeated
        ("sequences", 1098, False),  # what makes one axis of a padded convolution's
        ("images", 75, True),  # a bias behind a filter of one tap
        ("images", 2, True),  # a mean over open extents
        ("images", 40, True),  # indices of open extents that are multiples of an expression
        ("images", 1035, True),  # a mean over open extents between kernels, by mapping types
        ("images", 225, True),  # a schedule that cannot be lowered
        ("images", 1060, True),  # padding at the end of an open axis
        ("sequences", 83, True),
        ("sequences", 58, True),
    ],
)
def test_random_networks(kind: str, seed: int, is_open: bool) -> None:
    check(kind, seed, is_open, arch_of(seed), OPTIONS[seed // 8 % 2])


@pytest.mark.parametrize(
    ("kind", "seed", "is_open", "arch", "options"),
    [
        ("images", 2035, False, "sm_90", FURTHER[5]),  # the largest elements and their places beside a convolution
        ("quantized", 3002, False, "sm_100", FURTHER[3]),
        ("sequences", 3004, False, "sm_80", FURTHER[0]),
        ("sequences", 3006, True, "sm_100", FURTHER[1]),
        ("images", 3005, True, "sm_80", FURTHER[2]),
    ],
)
def test_random_networks_otherwise(kind: str, seed: int, is_open: bool, arch: str, options: dict[str, Any]) -> None:
    """In other precisions, memory and fusion, and quantised."""
    check(kind, seed, is_open, arch, options)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1100, 10))
@pytest.mark.parametrize("kind", FLOATS)
def test_many_random_networks(kind: str, start: int) -> None:
    for seed in range(start, start + 10):
        check(kind, seed, seed % 5 < 2, arch_of(seed), OPTIONS[seed // 8 % 2])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(3000, 3100, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_networks_otherwise(kind: str, start: int) -> None:
    for seed in range(start, start + 10):
        options = dict(FURTHER[seed // 4 % len(FURTHER)])
        if kind == "quantized":  # whose integers have no other precision
            options.pop("precision", None)
        check(kind, seed, seed % 5 < 2, ("sm_80", "sm_90", "sm_100")[seed % 3], options)
