"""Winograd convolutions of open extents give what onnxruntime gives, at the borders of tiles and of images too."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.open_winograd import OpenWinograd, pays_open_winograd
from tvm_ext.target import resolve_target

onnxruntime = pytest.importorskip("onnxruntime")

SIZES = (
    (1, 1, 1), (2, 1, 3), (1, 2, 7), (3, 3, 3), (1, 4, 4), (2, 5, 8), (1, 7, 17), (1, 31, 33), (5, 4, 9), (1, 64, 127),
)  # fmt: skip
"""Images, rows and columns."""


def network(inputs: int, outputs: int, pads: str, after: str) -> onnx.ModelProto:
    """Make a convolution between two others, so that blocks come in and go out."""
    rng = np.random.default_rng(inputs + outputs)

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")

    return graph(
        f"g (float[n,3,h,w] x) => (float[n,8,p,q] y) {{ a = Conv(x, first) b = Relu(a) "
        f"c = Conv <pads=[{pads}]> (b, middle, bias) {after} y = Conv(d, last) }}",
        first=weight(inputs, 3, 1, 1), middle=weight(outputs, inputs, 3, 3), bias=weight(outputs),
        last=weight(8, outputs, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "outputs", "pads", "after"),
    [
        (96, 24, "1,1,1,1", "d = Relu(c)"),
        (64, 64, "1,1,1,1", "s = Sigmoid(c) d = Mul(c, s)"),
        (48, 33, "2,0,1,3", "d = Identity(c)"),
        (65, 127, "0,0,0,0", "d = Tanh(c)"),
        (64, 64, "1,1,1,1", "d = Add(c, b)"),
    ],
)
def test_tiles_of_any_image(inputs: int, outputs: int, pads: str, after: str) -> None:
    if not pays_open_winograd(inputs, outputs, machine_of(resolve_target(None))):
        pytest.skip("this machine computes it directly")
    model = network(inputs, outputs, pads, after)
    compiled = tvm_ext.compile(model, dynamic="n=0..8,h=1..200,w=1..200")
    forms = [row["form"] for row in compiled.metadata["decisions"]["layout"]]
    assert "open winograd" in forms
    session = onnxruntime.InferenceSession(model.SerializeToString())
    least = 3 - sum(map(int, pads.split(",")[::2]))
    for seed, (batch, rows, columns) in enumerate(SIZES):
        if min(rows, columns) < least:
            continue
        x = np.random.default_rng(seed).standard_normal((batch, 3, rows, columns)).astype("float32")
        (want,) = session.run(None, {"x": x})
        got = compiled.run({"x": x})["y"]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(x.shape))
    assert compiled.run({"x": np.zeros((0, 3, 9, 9), "float32")})["y"].shape[0] == 0


def test_kernels_are_written_out() -> None:
    """A rule that fails leaves a kernel to loops that are right and slow."""
    module = import_model(network(64, 64, "1,1,1,1", "d = Relu(c)"), dynamic="*").mod
    lowered, *_ = lower(module, resolve_target(None), PipelineOptions())
    rules = {
        str(func.attrs["tvm_ext.schedule_rule"])
        for func in lowered.functions.values()
        if func.attrs and "tvm_ext.schedule_rule" in func.attrs
    }
    assert OpenWinograd.name in rules


def test_it_can_be_left_out() -> None:
    compiled = tvm_ext.compile(network(64, 64, "1,1,1,1", "d = Relu(c)"), dynamic="*", winograd=False)
    assert all("winograd" not in row["form"] for row in compiled.metadata["decisions"]["layout"])


def test_pixels_beyond_a_tile_stay_what_they_are() -> None:
    """NaN spreads over the tiles that it lies in, as far as they reach, and to no others."""
    model = network(64, 64, "1,1,1,1", "d = Identity(c)")
    compiled = tvm_ext.compile(model, dynamic="*")
    x = np.random.default_rng(0).standard_normal((1, 3, 24, 24)).astype("float32")
    clean = compiled.run({"x": x})["y"]
    x[0, :, 9, 9] = np.nan
    spoilt = compiled.run({"x": x})["y"]
    assert np.isnan(spoilt[0, 0, 8:11, 8:11]).all()
    far = np.ones((24, 24), bool)
    far[4:16, 4:16] = False
    np.testing.assert_array_equal(spoilt[..., far], clean[..., far])


def test_two_threads_share_a_model() -> None:
    compiled = tvm_ext.compile(network(64, 64, "1,1,1,1", "d = Relu(c)"), dynamic="*")
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((1 + k % 2, 3, 5 + 7 * k, 40 - 3 * k)).astype("float32") for k in range(6)]
    wanted = [compiled.run({"x": x})["y"] for x in inputs]
    wrong: list[int] = []

    def runs(offset: int) -> None:
        for k in range(30):
            at = (k + offset) % len(inputs)
            if not np.array_equal(compiled.run({"x": inputs[at]})["y"], wanted[at]):
                wrong.append(at)

    threads = [threading.Thread(target=runs, args=(3 * k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
