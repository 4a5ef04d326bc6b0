"""The nets written for exporters that keep every operator compute what their short forms in torch compute."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.zoo.nets import exported, exported_cnn, shape_graphs  # noqa: E402

pytestmark = pytest.mark.torch


def test_normalisation_and_activations() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    norm = exported.with_random_weights(exported.Norm(8))
    expected = torch.nn.functional.layer_norm(x, (8,), norm.weight, norm.bias, 1e-5)
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(exported.gelu(x), torch.nn.functional.gelu(x), rtol=1e-5, atol=1e-6)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(exported.gelu_tanh(x), expected, rtol=1e-5, atol=1e-6)


def test_attention() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    attention = exported.with_random_weights(exported.SelfAttention(8, 2))
    parts = (attention.query(x), attention.key(x), attention.value(x))
    heads = [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in parts]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x, x, torch.zeros(1)), expected, rtol=1e-5, atol=1e-6)


def test_gpt2_looks_back_only() -> None:
    net = exported.with_random_weights(exported.Gpt2(2, 24, 3, vocabulary=50, positions=16))
    tokens = torch.arange(12)[None]
    logits, *cache = net(tokens)
    assert logits.shape == (1, 12, 50)
    assert [tuple(present.shape) for present in cache] == [(2, 1, 3, 12, 8)] * 2
    changed = tokens.clone()
    changed[0, -1] = 40
    torch.testing.assert_close(net(changed)[0][:, :-1], logits[:, :-1], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(net(changed)[0][:, -1], logits[:, -1])


@pytest.mark.parametrize("shared", [False, True])
def test_encoders(shared: bool) -> None:
    sizes = exported.EncoderSizes(2, 24, 3, 48, 12 if shared else 24, vocabulary=50, positions=16)
    net = exported.with_random_weights(exported.Encoder(sizes, shared))
    tokens, mask = torch.arange(9)[None], torch.ones(1, 9, dtype=torch.long)
    hidden, pooled = net(tokens, mask, torch.zeros_like(tokens))
    assert hidden.shape == (1, 9, 24)
    assert pooled.shape == (1, 24)
    mask[0, 5:] = 0
    changed = tokens.clone()
    changed[0, 5:] = 3  # behind the mask
    first, second = net(tokens, mask, mask)[0], net(changed, mask, mask)[0]
    torch.testing.assert_close(first[:, :5], second[:, :5], rtol=1e-5, atol=1e-5)


def test_mobilebert() -> None:
    net = exported.with_random_weights(exported.MobileBert(layers=1, hidden=32, inner=16, heads=2))
    tokens = torch.arange(7)[None]
    assert net(tokens, torch.ones_like(tokens), torch.zeros_like(tokens)).shape == (1, 7, 32)


def test_values_stay_of_one_size() -> None:
    """MobileBERT divides by no deviation: with larger weights its values grow from layer to layer, to 1e13 at the end.

    The rounding of two compilations could not be compared then.
    """
    net = exported.with_random_weights(exported.MobileBert(layers=24, hidden=64, inner=32, heads=2))
    sizes: list[float] = []
    for layer in net.layers:
        layer.register_forward_hook(lambda _module, _inputs, output: sizes.append(float(output.std())))
    tokens = torch.arange(16)[None]
    net(tokens, torch.ones_like(tokens), torch.zeros_like(tokens))
    assert len(sizes) == 24
    assert 0.1 < min(sizes) <= max(sizes) < 5


def convolutions(net: torch.nn.Module) -> int:
    kinds = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d)
    return sum(isinstance(part, kinds) for part in net.modules())


def test_convolutional_nets() -> None:
    assert convolutions(exported_cnn.S3D()) == 78
    assert convolutions(exported_cnn.YoloV4()) == 110
    net = exported_cnn.UNet(width=4).eval()
    assert convolutions(net) == 23
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 37, 50)).shape == (1, 2, 37, 50)  # no multiples of 16
        shapes = [tuple(y.shape) for y in exported_cnn.YoloV4().eval()(torch.zeros(1, 3, 64, 96))]
    assert shapes == [(1, 255, 8, 12), (1, 255, 4, 6), (1, 255, 2, 3)]


def test_shape_graphs_have_the_arithmetic_of_the_nets() -> None:
    """Multiply-adds of the papers: 15.5 G for VGG-16, 38.5 G for C3D; the study prints twice as many operations."""
    assert round(shape_graphs.vgg16().flops.multiply / 1e9, 1) == 15.5
    assert round(shape_graphs.c3d().flops.multiply / 1e9, 1) == 38.5
