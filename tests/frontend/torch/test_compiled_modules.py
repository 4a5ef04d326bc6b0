"""``tvm_ext.compile`` of modules with embeddings, in every precision: from example inputs to results."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn

import tvm_ext
from tvm_ext.errors import InputError

pytestmark = pytest.mark.torch


class Tagger(nn.Module):
    """Token and position embedding, an encoder layer, and tags for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(50, 16), nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        tags = self.head(self.layer(self.token(ids) + self.position(torch.arange(ids.shape[1]))))
        return tags, tags.argmax(-1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2), (torch.float64, 1e-12)],
    ids=str,
)
def test_embeddings_in_every_precision(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    module = Tagger().eval().to(dtype)
    ids = torch.randint(50, (2, 8))
    compiled = tvm_ext.compile(module, example_inputs=(ids,))
    for given in (ids, torch.randint(50, (2, 8))):
        tags, best = compiled.run({"ids": given}).values()
        with torch.no_grad():
            expected = module(given)[0].double().numpy()
        assert tags.dtype.name == str(dtype).removeprefix("torch.")
        assert np.abs(tags.astype("float64") - expected).max() <= tolerance * expected.std()
        np.testing.assert_array_equal(best, tags.astype("float64").argmax(-1))
    with pytest.raises(InputError, match="50"):
        compiled.run([torch.full((2, 8), 50)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_inputs_of_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(17, 33), nn.SiLU(), nn.LayerNorm(33), nn.Linear(33, 7)).eval().to(dtype)
    x = torch.randn(3, 17).to(dtype)
    compiled = tvm_ext.compile(module, example_inputs=(x,))
    assert [spec.dtype for spec in compiled.inputs] == [str(dtype).removeprefix("torch.")]
    with torch.no_grad():
        expected = module(x).float().numpy()
    assert np.abs(compiled.run([x])["output"].astype("float32") - expected).max() <= 0.03


class RootMeanSquare(nn.Module):
    """As Llama writes it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """The second half of a layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RootMeanSquare(64)
        self.gate, self.up, self.down = nn.Linear(64, 160), nn.Linear(64, 160), nn.Linear(160, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_kernels_of_a_linear_layer_end_with_what_follows_it() -> None:
    """Linear layers of three axes are exported as products of two, between reshapes."""
    torch.manual_seed(0)
    module, x = Block().eval(), torch.randn(2, 17, 64)
    compiled = tvm_ext.compile(module, example_inputs=(x,))
    with torch.no_grad():
        np.testing.assert_allclose(compiled.run([x])["output"], module(x).numpy(), rtol=1e-4, atol=1e-5)
    kernels = [line.split()[1] for line in compiled.executable.as_text().splitlines() if line.startswith("  call")]
    kernels = [name for name in kernels if not name.startswith(("vm.", "reshape"))]  # a reshape of the result copies
    assert len(kernels) == 4, kernels  # the norm, and three products
    assert sum("rms_norm" in name for name in kernels) == 1
