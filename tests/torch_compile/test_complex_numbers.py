"""Complex numbers between real tensors, inside compiled graphs: against PyTorch's own run."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontend.torch.test_complex_numbers import CASES, Rotary
from tests.torch_compile.eager import LENIENT, assert_like_eager, compiled

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-3, "atol": 1e-4}
CHOSEN = ("rotary embedding", "rotary embedding of halves", "filtered", "mixed tokens", "spectrogram", "pieces")


@pytest.mark.parametrize("case", CHOSEN)
def test_compiled_as_a_whole(case: str) -> None:
    function, arguments = CASES[case]
    assert_like_eager(function, arguments, **CLOSE)


def test_parts_that_are_returned() -> None:
    def run(x: Any) -> Any:
        spectrum = torch.fft.fft(x)
        return spectrum.real, spectrum.imag

    assert_like_eager(run, (torch.randn(5),), **CLOSE)


def test_rows_may_change() -> None:
    rows = [(torch.randn(count, 16),) for count in (3, 4, 1, 6)]
    assert_like_eager(lambda x: torch.fft.rfft(x).abs().sum(0), *rows, **CLOSE)


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.filterwarnings("ignore::tvm_ext.errors.TvmExtWarning")
def test_returned_ones_stay_with_torch() -> None:
    assert_like_eager(
        lambda x: (torch.fft.fft(x) * 2, torch.fft.fft(x).abs()), (torch.randn(5),), options=LENIENT, **CLOSE
    )


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.filterwarnings("ignore::tvm_ext.errors.TvmExtWarning")
def test_weights_that_change() -> None:
    module = Rotary()
    run, x = compiled(module, LENIENT), torch.randn(2, 7, 3, 8)
    with torch.no_grad():
        for _ in range(11):
            torch.testing.assert_close(run(x), module(x), **CLOSE)
            module.turns.mul_(1.1j)
