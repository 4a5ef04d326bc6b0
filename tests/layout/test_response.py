"""Local response normalisation of blocked tensors, against torch and numpy: values, and that it is one kernel."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tests.layout.test_blocked import TARGETS, check, kernels_of, sequence  # noqa: E402
from tvm_ext.compiler import lower  # noqa: E402
from tvm_ext.options import PipelineOptions  # noqa: E402
from tvm_ext.schedules.rule import RULE_ATTRIBUTE  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
IMAGES = {1: (33,), 2: (17, 31), 3: (3, 7, 5)}


def network(rank: int, channels: int, size: int, behind: nn.Module | None = None) -> nn.Sequential:
    convolution = CONVOLUTIONS[rank]
    return sequence(
        convolution(3, channels, 3, padding=1),
        nn.LocalResponseNorm(size, alpha=0.7, beta=0.75, k=1.5),
        behind or nn.Identity(),
        convolution(channels, 5, 1),
    )


def rules_of(module: nn.Module, image: torch.Tensor, target: object = None, **options: object) -> list[str]:
    imported = tvm_ext.import_model(module.eval(), example_inputs=(image,))
    lowered, _, _ = lower(imported.mod, resolve_target(target), PipelineOptions(**options))
    kernels = [func for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    return [str((func.attrs or {}).get(RULE_ATTRIBUTE, "")) for func in kernels]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("channels", "size"), [(1, 5), (3, 1), (7, 3), (16, 5), (33, 4), (96, 5), (31, 2)])
def test_values(channels: int, size: int, target: object) -> None:
    check(network(2, channels, size), torch.randn(2, 3, *IMAGES[2]), target=target)


@pytest.mark.parametrize("rank", CONVOLUTIONS)
@pytest.mark.parametrize("behind", [nn.ReLU(), nn.Sigmoid(), None])
def test_images_of_other_ranks_and_what_follows(rank: int, behind: nn.Module | None) -> None:
    check(network(rank, 33, 5, behind), torch.randn(2, 3, *IMAGES[rank]))


@pytest.mark.parametrize("image", [(1, 1), (1, 127), (127, 1), (5, 109), (2, 3000)])
def test_extents_that_do_not_divide(image: tuple[int, int]) -> None:
    check(network(2, 20, 5), torch.randn(1, 3, *image))


@pytest.mark.parametrize("size", [5, 4])
def test_it_is_one_kernel(size: int) -> None:
    module, image = network(2, 33, size), torch.randn(1, 3, 9, 10)
    assert "cpu.local_response" in rules_of(module, image)
    names = kernels_of(module, image)
    assert "local_response" in names
    assert not any("pool" in name for name in names)


def test_windows_wider_than_blocks_stay_poolings() -> None:
    module, image = network(2, 64, 35), torch.randn(1, 3, 9, 10)
    assert "cpu.local_response" not in rules_of(module, image)
    check(module, image)


def test_the_option_switches_it_off() -> None:
    module, image = network(2, 33, 5), torch.randn(1, 3, 9, 10)
    assert "cpu.local_response" not in rules_of(module, image, inverted_residuals=False)


class OfOthers(nn.Module):
    """Means of something else than squares of what is divided."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(3, 33, 3, padding=1), nn.Conv2d(3, 33, 1), nn.Conv2d(33, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        a, b = self.a(image), self.b(image)
        squares = (a * b).abs().unsqueeze(1)
        mean = nn.functional.avg_pool3d(squares, (3, 1, 1), 1, (1, 0, 0)).squeeze(1)
        plain = nn.functional.avg_pool3d((a * a).unsqueeze(1), (3, 1, 3), 1, (1, 0, 1)).squeeze(1)
        return self.c(a / (mean * 0.5 + 1).pow(0.75) + a / (plain * 0.5 + 1).pow(0.75))


def test_what_looks_alike_is_left_alone() -> None:
    module, image = OfOthers(), torch.randn(1, 3, 9, 10)
    assert "cpu.local_response" not in rules_of(module, image)
    check(module, image)


class ReadTwice(nn.Module):
    """What is before the division is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c = nn.Conv2d(3, 33, 3, padding=1), nn.Conv2d(33, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        a = self.a(image)
        mean = nn.functional.avg_pool3d((a * a).unsqueeze(1), (3, 1, 1), 1, (1, 0, 0)).squeeze(1)
        return self.c(a / (mean * 0.5 + 1).pow(0.75)) + mean.mean(1, keepdim=True)


def test_means_that_others_read() -> None:
    check(ReadTwice(), torch.randn(1, 3, 9, 10))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("bias", [1.5, 0.0])
def test_nan_infinities_and_zeros(target: object, bias: float) -> None:
    """They spread over the channels of the window, and zero divided by zero is NaN where the formula says so."""
    channels, size, alpha, beta = 33, 5, 0.5, 0.75
    weight = np.zeros((channels, channels, 1, 1), "float32")
    weight[range(channels), range(channels)] = 1.0
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("LRN", ["c"], ["y"], size=size, alpha=alpha, beta=beta, bias=bias),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 3, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    x = np.random.default_rng(0).standard_normal((1, channels, 3, 7)).astype("float32")
    x[0, :, 0, 0] = np.nan
    x[0, :, 1, 1] = np.inf
    x[0, :, 2, 2] = 0.0
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvm_ext.compile(model, target)
    (found,) = compiled.run([x]).values()
    # Sums of products with zeros spread NaN and infinities of a pixel over its channels.
    c = np.where(np.isfinite(x).all(1, keepdims=True), x, np.nan).astype("float64")
    squares = np.pad(c * c, ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
    mean = np.lib.stride_tricks.sliding_window_view(squares, size, axis=1).mean(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = c / (alpha * mean + bias) ** beta
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
