"""Exported programs with complex numbers between real tensors: rotary embeddings and spectra, against torch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn

import tvm_ext
from tests.torch_compile.eager import TARGET
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.torch import fourier

pytestmark = pytest.mark.torch

_DRAWS = torch.Generator().manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=_DRAWS, dtype=dtype)


class Rotary(nn.Module):
    """Rotary embedding as Llama's first code wrote it, with a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(7.0), 0.5 ** torch.arange(4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[:, None]).flatten(3).type_as(x)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def spectrogram(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs()


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rotary embedding": (Rotary(), (random(2, 7, 3, 8),)),
    "rotary embedding of halves": (Rotary(), (random(2, 7, 3, 8).half(),)),
    "turned by angles that are computed": (
        lambda x, a: torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones_like(a), a)),
        (random(3, 5, 2), random(3, 5)),
    ),
    "moved to the device where they are": (  # torch asserts of complex numbers what it asserts of others
        lambda x, a: torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones_like(a), a).to(x.device)),
        (random(3, 5, 2), random(3, 5)),
    ),
    "powers": (
        lambda x: torch.stack(
            [torch.view_as_real(torch.fft.rfft(x) ** power) for power in (1, 2, 3, -1, -2, 0, 0.5, -0.5, 1.75)]
        ),
        (random(3, 7),),
    ),
    "magnitudes": (lambda x: torch.fft.rfft(x).abs(), (random(3, 17),)),
    "of a vector": (lambda x: torch.fft.irfft(torch.fft.fft(torch.fft.ifft(x)).conj()[:4] * x[:4]), (random(7),)),
    "angles": (lambda x: torch.fft.rfft(x, n=20).angle(), (random(3, 17),)),
    "filtered": (lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * w, n=17), (random(3, 17), random(9))),
    "orthonormal": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * 2j), (random(2, 6, 8),)),
    "of all axes": (lambda x: torch.fft.fftn(x).real, (random(3, 4, 5),)),
    "mixed tokens": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, (random(2, 7, 12),)),
    "there and back": (lambda x: torch.view_as_real(torch.fft.ifft(torch.fft.fft(x))), (random(3, 7),)),
    "in double precision": (lambda x: torch.view_as_real(torch.fft.rfft(x)), (random(3, 31, dtype=torch.float64),)),
    "spectrogram": (spectrogram, (random(2, 64),)),
    "conjugates, quotients, powers": (
        lambda x, y: torch.view_as_real((torch.complex(x, y).conj() / (torch.complex(y, x) + 3)).exp() * 1j + x),
        (random(3, 5), random(3, 5)),
    ),
    "pieces": (
        lambda x: torch.cat([part.flip(0) for part in torch.fft.fft(x).split(2)], -1)[:, 1:].imag.sum(0),
        (random(4, 6),),
    ),
    "a product": (lambda x, y: (torch.fft.fft(x) @ torch.complex(y, y)).abs(), (random(3, 4), random(4, 5))),
}


@pytest.mark.parametrize("case", CASES)
def test_as_in_torch(case: str) -> None:
    function, arguments = CASES[case]
    module = function if isinstance(function, nn.Module) else Function(function)
    with torch.no_grad():
        expected = module(*arguments).numpy()
    program = torch.export.export(module.eval(), arguments)
    (found,) = tvm_ext.compile(program, target=TARGET).run(arguments).values()
    assert found.dtype == expected.dtype
    tolerance = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-12}[str(found.dtype)]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


OPEN = {
    "one side": lambda x: torch.view_as_real(torch.fft.rfft(x, norm="ortho")),
    "a long convolution": lambda x: torch.fft.irfft(
        torch.fft.rfft(x, n=2 * x.shape[-1]) * torch.fft.rfft(x[0].tanh(), n=2 * x.shape[-1]), n=2 * x.shape[-1]
    )[..., : x.shape[-1]],
    "of two axes": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2j, s=x.shape[-2:], norm="ortho"),
}


@pytest.mark.parametrize("case", OPEN)
def test_of_open_length(case: str) -> None:
    class Spectral(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return OPEN[case](x)

    module = Spectral()
    compiled = tvm_ext.compile(module, TARGET, example_inputs=(random(2, 3, 8),), dynamic={"x:2": (2, None)})
    for count in (2, 3, 8, 9, 50):
        signal = random(2, 3, count)
        (found,) = compiled.run((signal,)).values()
        np.testing.assert_allclose(found, module(signal.double()).numpy(), atol=1e-4)


def test_an_argument_may_have_a_name_of_python() -> None:
    class Filtered(nn.Module):
        def forward(self, input: Tensor, filter: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(input) * torch.fft.rfft(filter), n=8)

    signal, other = torch.randn(2, 8), torch.randn(8)
    compiled = tvm_ext.compile(torch.export.export(Filtered(), (signal, other)), TARGET)
    (result,) = compiled.run({"input": signal, "filter": other}).values()
    np.testing.assert_allclose(result, Filtered()(signal, other).numpy(), atol=1e-5)


def test_weights_that_are_complex_are_not_changed() -> None:
    module = Rotary()
    before = module.turns.clone()
    tvm_ext.compile(torch.export.export(module.eval(), (random(2, 7, 3, 8),)), target=TARGET)
    assert torch.equal(module.turns, before)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (torch.fft.fft, random(4), "it is returned; return its parts"),
        (torch.abs, torch.complex(random(4), random(4)), "it is an input; take its parts"),
        (lambda x: torch.linalg.inv(torch.fft.fft(x)).real, random(4, 4), "linalg_inv_ex"),
    ],
    ids=["output", "input", "operator"],
)
def test_what_stays_complex_is_refused(function: Callable[..., Any], argument: Tensor, message: str) -> None:
    program = torch.export.export(Function(function), (argument,))
    with pytest.raises(UnsupportedOperatorError, match=message):
        tvm_ext.import_model(program)


def test_a_length_that_asks_for_too_large_a_matrix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "LARGEST_MATRIX", 100)
    program = torch.export.export(Function(lambda x: torch.fft.rfft(x).abs()), (random(20),))
    with pytest.raises(UnsupportedOperatorError, match="its length 20 asks for a matrix of 20 x 11 elements"):
        tvm_ext.import_model(program)
