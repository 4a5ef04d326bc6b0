"""Networks whose planned bytes are held: what waits for many addends, gates, and networks of the zoo with either."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these networks are torch's")
from torch import nn  # noqa: E402

from tests.layout.test_gated import Gated  # noqa: E402
from tests.zoo import get  # noqa: E402
from tvm_ext.compiler import lower  # noqa: E402
from tvm_ext.frontend import import_model  # noqa: E402
from tvm_ext.fusion.relax import inverted_residuals  # noqa: E402
from tvm_ext.options import PipelineOptions  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

AVX512 = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}
"""The processor that the bytes of the zoo's networks are of, whatever machine runs the tests."""


class Separable(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.window = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
        self.project = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return self.project(self.window(x))


class RandomlyWired(nn.Module):
    """Two separable convolutions halve an image; the result of one is added to all that comes from the other."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.early, self.late = Separable(channels, 2), Separable(channels, 2)
        self.layers = nn.ModuleList(Separable(channels, 1) for _ in range(layers))

    def forward(self, image: Any) -> Any:
        image = torch.relu(self.stem(image))
        values = [self.early(image)]
        for layer in self.layers:
            values.append(layer(torch.relu(values[-1])))
        total = self.late(image)
        for value in values[1:]:
            total = total + value
        return torch.relu(total).mean((2, 3))


def planned(module: Any, shape: tuple[int, ...]) -> int:
    imported = import_model(module.eval(), example_inputs=[torch.randn(*shape)])
    return planned_bytes(imported.mod)


def planned_bytes(mod: Any) -> int:
    statistics = lower(mod, resolve_target(AVX512), PipelineOptions())[1]
    assert statistics is not None
    return int(statistics.planned_bytes)


def test_a_larger_image_does_not_wait_for_addends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one kernel with its projection, the depthwise convolution would read the image when the addends are there."""
    module, shape = RandomlyWired(32, 6), (1, 3, 56, 56)
    found = planned(module, shape)
    image = 4 * 32 * 56 * 56
    assert found == image + 2 * image // 4  # and the two results of the depthwise convolutions
    monkeypatch.setattr(inverted_residuals, "_keeps_larger", lambda *_: False)
    assert planned(module, shape) > 1.4 * found


@pytest.mark.parametrize(("out", "side", "is_scaled"), [(40, 7, False), (64, 7, False), (16, 14, True)])
def test_scaled_weights_are_not_there_beside_a_small_image(out: int, side: int, is_scaled: bool) -> None:
    """Of more weights than half the image, the image is scaled in place."""
    found = planned(Gated(48, out, torch.sigmoid), (1, 3, side, side))
    image, result, weights = 4 * 48 * side**2, 4 * out * side**2, 4 * 48 * out
    assert found >= image + result
    assert (found >= image + result + weights) is is_scaled


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("randwire_er", 4_766_720), ("ppocr_rec", 1_966_080)])
def test_zoo(name: str, most: int) -> None:
    """``planned_vs_tflite_like`` of ``docs/results/memory.json`` is of these bytes."""
    entry = get(name)
    if reason := entry.missing():
        pytest.skip(reason)
    shapes = {key: list(array.shape) for key, array in entry.inputs(0).items()}
    assert planned_bytes(import_model(entry.onnx_model(), input_shapes=shapes).mod) <= most
