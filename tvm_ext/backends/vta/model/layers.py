"""Layers that VTA can run, as plain data: in floats, as a model has them, and in integers, as VTA computes them.

Tensors are called by name and have the form (N, C, H, W) here; a matrix (M, K) is (B, K, 1, M / B) with B rows to a
batch, or (M, K, 1, 1) if it has no more rows than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, inf
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tvm_ext.errors import GraphError

Shape: TypeAlias = tuple[int, int, int, int]
Kind: TypeAlias = Literal["conv2d", "conv2d_transpose", "max_pool2d"]

# A narrower integer would do for most layers; a sum of VTA has these bits.
ACCUMULATOR_BITS = 32


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer in floats: what it reads, adds, clips and gives.

    A matrix product is a convolution with a 1x1 window, a sum of two tensors one with the identity as weights, and an
    average one with equal weights.

    Attributes
    ----------
    name : str
        Of the tensor it gives.
    kind : str
    data : str
        Tensor it reads.
    in_shape, out_shape : tuple of int
        (N, C, H, W).
    kernel, stride, padding, groups : int
        The first three along columns, and along rows unless ``across`` says otherwise.
    weights : NDArray[np.float32], optional
        (O, I / groups, KH, KW), of a convolution, transposed or not.
    bias : NDArray[np.float32], optional
        (O,), of a convolution.
    residual : str, optional
        Tensor of the output's form that is added to the sums.
    low, high : float
        Bounds of the result.
    covers : tuple of str
        Variables of the model that it stands for; the last one is ``name``.
    operator : str
        What the model has, for people.
    across : tuple of int, optional
        Kernel, stride and padding along rows, where they are others.
    output_padding : int
        Further rows and columns, of a transposed convolution.
    unfold : tuple of int, optional
        Kernel, stride and padding along rows by which ``data`` is unfolded before the layer sees it as ``in_shape``
        (see :mod:`tvm_ext.backends.vta.model.unfold`).
    """

    name: str
    kind: Kind
    data: str
    in_shape: Shape
    out_shape: Shape
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    weights: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    residual: str | None = None
    low: float = -inf
    high: float = inf
    covers: tuple[str, ...] = ()
    operator: str = "conv2d"
    across: tuple[int, int, int] | None = None
    output_padding: int = 0
    unfold: tuple[int, int, int] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors it reads."""
        return (self.data,) if self.residual is None else (self.data, self.residual)

    @property
    def macs(self) -> int:
        """Multiply-adds; of a maximum, comparisons."""
        n, channels, height, width = self.out_shape
        if self.kind == "conv2d_transpose":
            height, width = self.in_shape[2:]
        window = self.kernel * (self.across or (self.kernel,))[0]
        return n * channels * height * width * window * (1 if self.weights is None else self.weights.shape[1])


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """A layer in integers.

    A convolution, transposed or not, gives
    ``clip((sum(weights * data) + bias + (residual << residual_shift)) >> shift, low, high)``; half of the last bit that
    is shifted out is part of the bias, so that results are rounded to the nearest. A maximum gives the maximum of
    integers.

    Attributes
    ----------
    layer : Layer
    weights : NDArray[np.int8], optional
        (O, I / groups, KH, KW).
    bias : NDArray[np.int32], optional
        (O,).
    shift, residual_shift : int
    low, high : int
    """

    layer: Layer
    weights: NDArray[np.int8] | None = None
    bias: NDArray[np.int32] | None = None
    shift: int = 0
    residual_shift: int = 0
    low: int = -128
    high: int = 127


@dataclass(frozen=True)
class IntegerNetwork:
    """Layers in integers, in an order in which they can run.

    Attributes
    ----------
    layers : tuple of IntegerLayer
    fractions : mapping
        Tensor to the bits of its values after the binary point: a value is its integer times ``2 ** -fraction``.
    scales : mapping
        Tensor to a factor for each channel, by which the model's values are multiplied first; a tensor that is missing
        has the factor 1 (see :mod:`tvm_ext.backends.vta.model.equalize`).
    """

    layers: tuple[IntegerLayer, ...]
    fractions: Mapping[str, int]
    scales: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def factors(self, tensor: str, rank: int) -> NDArray[np.float32]:
        """Return what the model's values are multiplied by before they are rounded, to broadcast to their rank."""
        factors = self.scales.get(tensor, np.ones(1)) * 2.0 ** self.fractions[tensor]
        return factors.astype(np.float32).reshape((1, -1, 1, 1) if rank == 4 else (-1,))

    def integers(self, tensor: str, values: NDArray) -> NDArray[np.int8]:
        """Round values of the model, halves upwards; what is too large is clipped."""
        scaled = values * self.factors(tensor, values.ndim)
        return np.clip(np.floor(scaled + 0.5), -128, 127).astype(np.int8)

    def floats(self, tensor: str, integers: NDArray[np.int8]) -> NDArray[np.float32]:
        """Return the values of the model that integers stand for."""
        return integers.astype(np.float32) / self.factors(tensor, integers.ndim)


def verify_network(network: IntegerNetwork) -> None:
    """Check that no layer can leave the bits it has, whatever its inputs are.

    Raises
    ------
    GraphError
        If a sum can be wider than an accumulator, or a shift or a bound is not possible.
    """
    for integer in network.layers:
        layer, where = integer.layer, f"layer {integer.layer.name!r}"
        if not -128 <= integer.low <= integer.high <= 127:
            raise GraphError(f"{where} is clipped to {integer.low}..{integer.high}; int8 has -128 to 127")
        if layer.kind == "max_pool2d":
            if network.fractions[layer.name] != network.fractions[layer.data]:
                raise GraphError(f"{where} gives other steps than its input has")
            continue
        if integer.weights is None or integer.bias is None:
            raise GraphError(f"{where} is a convolution without weights or bias")
        if integer.shift < 0 or integer.residual_shift < 0:
            raise GraphError(f"{where} shifts by {integer.shift} and {integer.residual_shift}; expected 0 or more")
        largest = 128 * np.abs(integer.weights.astype(np.int64)).sum(axis=(1, 2, 3)) + np.abs(
            integer.bias.astype(np.int64)
        )
        largest = largest + ((128 << integer.residual_shift) if layer.residual else 0)
        if int(largest.max()) >= 1 << (ACCUMULATOR_BITS - 1):
            raise GraphError(f"{where}: a sum can reach {int(largest.max())}, more than {ACCUMULATOR_BITS} bits hold")


@dataclass(frozen=True, eq=False)
class BlockedWeights:
    """Weights of a grouped convolution, groups put together until they fill blocks.

    Attributes
    ----------
    weights : NDArray
        (O', I', KH, KW) with zeros where groups that were put together do not see each other.
    groups : int
        Groups that are left; each has whole blocks.
    """

    weights: NDArray
    groups: int


def merge_groups(weights: NDArray, groups: int, block: int) -> BlockedWeights:
    """Put groups of a convolution together until they fill blocks of channels.

    Parameters
    ----------
    weights : NDArray
        (O, I / groups, KH, KW).
    groups, block : int
    """
    out_channels, each_in, height, width = weights.shape
    each_out = out_channels // groups
    if groups == 1:
        return BlockedWeights(weights, 1)
    together = _lcm(block // gcd(block, each_in), block // gcd(block, each_out))
    if together * each_in == block and together * each_out == block:
        left = -(-groups // together)  # the last block may be filled with zeros
    elif groups % together == 0:
        left = groups // together
    else:
        together, left = groups, 1
    merged = np.zeros((left * together, each_out, together, each_in, height, width), weights.dtype)
    for group in range(groups):
        merged[group, :, group % together] = weights[group * each_out : (group + 1) * each_out]
    return BlockedWeights(merged.reshape(-1, together * each_in, height, width), left)


def _lcm(a: int, b: int) -> int:
    return a * b // gcd(a, b)
