"""Round weights so that sums stay right on the data that a layer sees, rather than each weight to the nearest integer.

Weights are rounded one after the other; what rounding one adds to the sums is taken back by those that are still to
come, as far as their inputs go together with its own (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
Generative Pre-trained Transformers", ICLR 2023, equations 2 and 3; the order of the weights is left as it is). What is
left of the mean becomes part of the bias (Nagel et al., "Data-Free Quantization through Weight Equalization and Bias
Correction", ICCV 2019, section 4.2, from data here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.unfold import unfold_columns

# Places of a layer's results whose inputs are looked at, of all samples together.
PLACES = 2048
# Multiplications beyond which weights are rounded to the nearest: some seconds' worth.
LARGEST_WORK = 6e9
# Added to the inputs' powers as a share of their mean: so much is not known of inputs that go together.
DAMPING = 0.02
# Weights that are rounded before what they owe is handed to all that follow.
BLOCK = 64
# A value that is seen is clipped to this, so that the difference of two is finite in single precision.
LARGEST = np.float32(2.0**126)


@dataclass(frozen=True, eq=False)
class RoundedWeights:
    """Weights in integers.

    Attributes
    ----------
    integers : NDArray[np.int8]
        (O, I / groups, KH, KW).
    bias : NDArray[np.float64]
        (O,): what sums lack on average, to be added to the bias; of the steps of the weights, times the data.
    """

    integers: NDArray[np.int8]
    bias: NDArray[np.float64]


def windows_at(layer: Layer, data: NDArray, places: NDArray[np.int64]) -> NDArray:
    """Return what a convolution sees at some places of its result: (places, groups, weights of an output).

    Parameters
    ----------
    layer : Layer
        Not a transposed one.
    data : NDArray
        (N, C, H, W), not unfolded.
    places : NDArray[np.int64]
        Rows of batch, row and column.
    """
    if layer.unfold is not None:
        data = unfold_columns(data, layer.unfold)
    down = (layer.kernel, layer.stride, layer.padding)
    (kernel, stride, pad), (kernel_x, stride_x, pad_x) = down, layer.across or down
    data = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad_x, pad_x)))
    windows = np.lib.stride_tricks.sliding_window_view(data, (kernel, kernel_x), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride_x].transpose(0, 2, 3, 1, 4, 5)
    return windows[tuple(places.T)].reshape(len(places), layer.groups, -1)


class SeenInputs:
    """What layers see on calibration data.

    Parameters
    ----------
    samples : sequence of mapping
        Tensor to the floats of the model in the form (N, C, H, W), for each sample.
    """

    def __init__(self, samples: Sequence[Mapping[str, NDArray]]) -> None:
        self.samples = samples

    def of(self, layer: Layer, factors: NDArray[np.float64]) -> NDArray | None:
        """Return what a layer sees, at some places of its results: (places, groups, weights of an output).

        Parameters
        ----------
        layer : Layer
        factors : NDArray[np.float64]
            Of each channel of its data, or one for all.

        Returns
        -------
        NDArray or None
            None where the layer is no plain convolution, or nothing was seen.
        """
        if layer.kind != "conv2d" or not self.samples or layer.data not in self.samples[0]:
            return None
        n, _, rows, columns = layer.out_shape
        scale = factors.astype(np.float32).reshape(1, -1, 1, 1)
        count = -(-PLACES // len(self.samples))
        rng = np.random.default_rng(0)
        found = []
        for sample in self.samples:
            every = n * rows * columns
            chosen = np.arange(every) if every <= count else rng.choice(every, count, replace=False)
            places = np.stack(np.unravel_index(chosen, (n, rows, columns)), axis=1)
            found.append(windows_at(layer, np.clip(sample[layer.data] * scale, -LARGEST, LARGEST), places))
        return np.concatenate(found).astype(np.float32)


def round_weights(layer: Layer, fraction: int, seen: NDArray | None = None) -> RoundedWeights:
    """Round a layer's weights.

    Parameters
    ----------
    layer : Layer
        A convolution, transposed or not.
    fraction : int
        Bits after the binary point.
    seen : NDArray, optional
        What it sees, (places, groups, weights of an output); without it each weight is rounded to the nearest integer.
    """
    weights = layer.weights
    assert weights is not None
    wide = np.ldexp(weights.astype(np.float64), fraction)
    nearest = _nearest(wide)
    outputs = len(weights)
    if seen is None or not len(seen):
        return RoundedWeights(nearest.astype(np.int8), np.zeros(outputs))
    by_group = wide.reshape(layer.groups, outputs // layer.groups, -1)
    mean = seen.mean(axis=0, dtype=np.float64)
    taps = by_group.shape[2]
    integers = nearest.reshape(by_group.shape)
    if layer.groups * taps * taps * (taps + outputs // layer.groups) <= LARGEST_WORK and taps > 1:
        centred = np.ascontiguousarray((seen - mean.astype(np.float32)).transpose(1, 0, 2))
        # Only ratios matter: without a common power of two, products neither overflow nor vanish.
        centred = np.ldexp(centred, -int(np.frexp(np.abs(centred).max(initial=0.0))[1]))
        powers = (centred.transpose(0, 2, 1) @ centred).astype(np.float64) / len(seen)
        better = _compensated(by_group, powers, DAMPING + taps / len(seen) / 4)
        # Clipping may undo what it is for.
        loss = [
            np.einsum("gok,gkl,gol->go", by_group - x, powers, by_group - x, optimize=True) for x in (better, integers)
        ]
        integers = np.where((loss[0] < loss[1])[..., None], better, integers)
    missing = np.einsum("gok,gk->go", by_group - integers, mean)
    return RoundedWeights(integers.reshape(weights.shape).astype(np.int8), missing.reshape(-1))


def _nearest(values: NDArray) -> NDArray:
    return np.clip(np.floor(values + 0.5), -128, 127)


def _compensated(weights: NDArray, powers: NDArray, damping: float) -> NDArray:
    """Round (groups, outputs, taps) one tap after the other, and hand on what each owes."""
    groups, _, taps = weights.shape
    mean = powers.diagonal(axis1=1, axis2=2).mean(axis=1)
    damped = powers + (damping * mean + np.finfo(np.float64).tiny)[:, None, None] * np.eye(taps)
    damped[mean == 0] = np.eye(taps)
    inverse = np.linalg.inv(damped)
    upper = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).transpose(0, 2, 1)
    left, found = weights.copy(), np.empty_like(weights)
    for begin in range(0, taps, BLOCK):
        end = min(begin + BLOCK, taps)
        owed = np.empty((groups, weights.shape[1], end - begin))
        for tap in range(begin, end):
            found[:, :, tap] = _nearest(left[:, :, tap])
            share = (left[:, :, tap] - found[:, :, tap]) / upper[:, None, tap, tap]
            owed[:, :, tap - begin] = share
            left[:, :, tap:end] -= share[:, :, None] * upper[:, None, tap, tap:end]
        left[:, :, end:] -= owed @ upper[:, begin:end, end:]
    return found
