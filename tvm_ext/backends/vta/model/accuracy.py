"""How far integers are from the floats they stand for, layer by layer and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import IntegerNetwork


@dataclass(frozen=True)
class TensorAccuracy:
    """Accuracy of one tensor.

    Attributes
    ----------
    name : str
    operator : str
        What gives it.
    fraction : int, optional
        Bits after the binary point; None for a tensor in floats.
    signal_to_noise : float
        In decibels: the mean square of the values to that of the errors; infinite if there are none.
    largest_error, largest_value : float
    """

    name: str
    operator: str
    fraction: int | None
    signal_to_noise: float
    largest_error: float
    largest_value: float


@dataclass(frozen=True)
class AccuracyReport:
    """Accuracy of a model on some inputs, against the same model in floats.

    Attributes
    ----------
    layers : tuple of TensorAccuracy
        What layers on VTA give, with all errors of the layers before them.
    outputs : tuple of TensorAccuracy
        Of the model.
    same_largest : float, optional
        Share of the rows of the first output, along its last axis, whose largest value is at the same place: the
        agreement of a classifier's answers.
    """

    layers: tuple[TensorAccuracy, ...]
    outputs: tuple[TensorAccuracy, ...]
    same_largest: float | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'tensor':24} {'operator':14} {'fraction':>8} {'signal/noise':>12} {'largest error':>14}"
        for row in (*self.layers, *self.outputs):
            fraction = "" if row.fraction is None else str(row.fraction)
            error = f"{row.largest_error:.4g} of {row.largest_value:.4g}"
            yield f"{row.name:24} {row.operator:14} {fraction:>8} {row.signal_to_noise:9.1f} dB {error:>18}"
        if self.same_largest is not None:
            yield f"same answer as in floats: {self.same_largest:.1%}"


def compare(name: str, operator: str, fraction: int | None, expected: NDArray, found: NDArray) -> TensorAccuracy:
    """Compare a tensor with what it should be, both in floats."""
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    noise, signal = float(np.square(found - expected).mean()), float(np.square(expected).mean())
    ratio = np.inf if not noise else -np.inf if not signal else 10 * np.log10(signal / noise)
    return TensorAccuracy(
        name, operator, fraction, float(ratio), float(np.abs(found - expected).max()), float(np.abs(expected).max())
    )


def compare_layers(
    network: IntegerNetwork, expected: Mapping[str, NDArray], found: Mapping[str, NDArray[np.int8]]
) -> tuple[TensorAccuracy, ...]:
    """Compare what layers give with the floats.

    Parameters
    ----------
    network : IntegerNetwork
    expected : mapping
        Tensor to floats.
    found : mapping
        Tensor to int8, of the same shape.
    """
    rows = []
    for integer in network.layers:
        name = integer.layer.name
        fraction = network.fractions[name]
        values = network.floats(name, found[name])
        rows.append(compare(name, integer.layer.operator, fraction, expected[name], values))
    return tuple(rows)
