"""The windows of the phases of transposed convolutions: every tap once, at the input that it meets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tvm_ext.schedules.compute.transposed_convolution import PhaseAxis


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 8))
def test_taps_meet_their_inputs(extent: int, stride: int, before: int) -> None:
    axis = PhaseAxis.of(extent, stride, before)
    met = []
    for phase, taps in enumerate(axis.taps):
        assert len(taps) == -(-extent // stride)
        first = axis.first + (phase + axis.lead) // stride
        for place, tap in enumerate(taps):
            if tap >= 0:
                met.append(tap)
                # Result `phase` is the sum of x[i] * w[k] with phase = stride * i + k - before.
                assert stride * (first + place) + tap - before == phase
    assert sorted(met) == list(range(extent))
    assert axis.lead == 0 or all((before + zeros) % stride for zeros in range(-extent % stride + 1))


CASES = [  # taps, stride, padding, extents
    (4, 2, 1, (4, 7)), (3, 2, 1, (1, 5)), (5, 2, 2, (3, 1)), (6, 3, 1, (5, 4)), (2, 3, 0, (3, 3)), (4, 1, 2, (7, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("taps", "stride", "padding", "extents"), CASES)
def test_in_the_pipeline(taps: int, stride: int, padding: int, extents: tuple[int, int]) -> None:
    rng = np.random.default_rng(taps)
    x = rng.standard_normal((2, 17, *extents)).astype("float32")
    weight = rng.standard_normal((17, 33, taps, taps)).astype("float32")
    extra = -(taps - stride - 2 * padding) % stride  # whole phases
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            options = {"strides": stride, "padding": padding, "output_padding": extra}
            result = builder.emit_output(relax.op.nn.conv2d_transpose(data, relax.const(weight), **options))
        builder.emit_func_output(result)
    compiled = tvm_ext.compile(builder.get())
    assert any(row["form"] == "phases" for row in compiled.metadata["decisions"]["layout"])
    (found,) = compiled.run([x]).values()
    operands = torch.from_numpy(x), torch.from_numpy(weight)
    expected = torch.nn.functional.conv_transpose2d(*operands, None, stride, padding, extra).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    # Where a phase has no tap, nothing is multiplied: not even infinity by zero.
    x[0, 3, -1, 0] = np.inf
    (found,) = compiled.run([x]).values()
    expected = torch.nn.functional.conv_transpose2d(*operands, None, stride, padding, extra).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
