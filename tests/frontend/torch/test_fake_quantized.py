"""What training that is aware of quantisation leaves in a program: floats rounded to the steps of integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tvm_ext

FAKE_QUANTIZED = {
    "numbers": lambda x, scales, points: torch.fake_quantize_per_tensor_affine(x, 0.07, 3, -128, 127),
    "tensors": lambda x, scales, points: torch.fake_quantize_per_tensor_affine(x, scales[:1], points[:1], 0, 255),
    "channels": lambda x, scales, points: torch.fake_quantize_per_channel_affine(x, scales, points, 1, 0, 255),
}


@pytest.mark.parametrize("form", FAKE_QUANTIZED)
def test_fake_quantised_floats(form: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scales", torch.linspace(0.01, 0.2, 24))
            self.register_buffer("points", torch.arange(100, 124, dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FAKE_QUANTIZED[form](x, self.scales, self.points)

    x = torch.randn(16, 24, generator=torch.Generator().manual_seed(3)) * 8
    found = tvm_ext.compile(torch.export.export(Model(), (x,))).run({"x": x.numpy()})
    np.testing.assert_allclose(next(iter(found.values())), Model()(x).numpy(), rtol=1e-6, atol=0)
