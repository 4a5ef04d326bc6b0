"""Fusion by mapping types in the pipeline that runs: never more kernels, never more bytes than with TVM's fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from scripts.compiled_counts import counted
from tests.fusion.relax.test_fuse import build
from tests.modules import MODULES, arguments, run
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.frontend import import_model
from tvm_ext.fusion.relax.module_effort import module_effort

TARGET = native_target()


def check(mod: tvm.IRModule) -> None:
    stock, ours = counted(mod, TARGET, {}), counted(mod, TARGET, {"fuse": "mapping-type"})
    assert ours.kernels <= stock.kernels
    assert ours.nbytes <= stock.nbytes


def weight(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32") * 0.1)


def inverted(channels: int) -> Callable[..., Any]:
    """Expansion, depthwise convolution and projection between 1 x 1 convolutions."""

    def make(emit, x):
        wide = 6 * channels
        data = emit(op.nn.relu(emit(op.nn.conv2d(x, weight(wide, channels, 1, 1)))))
        data = emit(op.nn.relu(emit(op.nn.conv2d(data, weight(wide, 1, 3, 3), padding=1, groups=wide))))
        return emit(op.add(emit(op.nn.conv2d(data, weight(channels, wide, 1, 1))), x))

    return make


# 24 channels are a block and a half: their indices have divisions that could be simplified beyond recognition.
@pytest.mark.parametrize("channels", [7, 16, 24, 33])
def test_later_passes_know_convolutions_again(channels: int) -> None:
    check(build(inverted(channels), (1, channels, 56, 56)))


def two_results(emit, x, y):
    """A concatenation of a row with what a convolution reads: one kernel of two results, or a prologue."""
    rows = emit(op.squeeze(x, [2]))
    joined = emit(op.concat([rows, y], 0))
    active = emit(op.nn.relu(x))
    pixels = emit(op.nn.conv2d(emit(op.reshape(active, (1, 31, 1, 1))), weight(17, 31, 1, 1)))
    return [joined, emit(op.mean(pixels, [1, 2, 3]))]


def test_prologues_are_not_lost() -> None:
    mod = build(two_results, (1, 31, 1), (1, 31))
    check(mod)
    values = arguments(mod)
    pipeline = relax.get_pipeline("tvm_ext", fuse="mapping-type")
    found, expected = (run(tvm.compile(mod, TARGET, relax_pipeline=way), values) for way in (pipeline, "default"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    check(MODULES[name])


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "tiny_cell", "tiny_transformer", "tiny_lstm"])
def test_models(name: str) -> None:
    check(import_model(get(name).onnx_path()).mod)


def test_views_and_joins_that_copy_nothing_are_not_counted() -> None:
    def make(emit, x, y):
        whole = emit(op.concat([emit(op.exp(x)), emit(op.exp(y))], 0))
        return emit(op.reshape(whole, (16, 4)))

    lowered = relax.transform.LegalizeOps()(build(make, (2, 16), (2, 16)))
    found = module_effort(lowered)
    assert (found.kernels, found.nbytes) == (2, 2 * 2 * 16 * 4)
    odd = relax.transform.LegalizeOps()(build(lambda emit, x, y: emit(op.concat([x, y], 1)), (3, 7), (3, 1)))
    assert (module_effort(odd).kernels, module_effort(odd).nbytes) == (1, 3 * 8 * 4)


@pytest.mark.parametrize("channels", [16, 17, 128])
@pytest.mark.parametrize("image", [1, 5])
def test_moves_that_are_a_view_together(channels: int, image: int) -> None:
    """Out of full blocks of one pixel and into another shape nothing moves."""

    def make(emit, x):
        active = emit(op.nn.relu(emit(op.nn.conv2d(x, weight(channels, 8, 1, 1)))))
        rows = emit(op.expand_dims(emit(op.squeeze(emit(op.reshape(active, (1, channels, image))), [0])), [0]))
        return emit(op.matmul(rows, weight(image, 9)))

    check(build(make, (1, 8, image, 1)))


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_sequence", "silero_vad_ifless"])
def test_models_of_small_kernels(name: str) -> None:
    entry = get(name)
    if reason := entry.missing():
        pytest.skip(reason)
    check(import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod)
