"""Families of operators that slide a window: convolutions of all kinds, pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import relax

from tests.guarded.cases import Draw, Sample, constant, family

op, nn = relax.op, relax.op.nn
CHANNELS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48)
SIDES = (1, 2, 3, 5, 7, 9, 14, 17, 23)


def _convolved(x: np.ndarray, weight: np.ndarray, strides: int, padding: int, dilation: int, groups: int) -> np.ndarray:
    """Convolve with NumPy, one tap after another."""
    rank = x.ndim - 2
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), *[(padding, padding)] * rank])
    taps = weight.shape[2:]
    sizes = [(x.shape[2 + d] - (taps[d] - 1) * dilation - 1) // strides + 1 for d in range(rank)]
    per_group, outs = x.shape[1] // groups, weight.shape[0] // groups
    result = np.zeros((x.shape[0], weight.shape[0], *sizes))
    for tap in np.ndindex(*taps):
        window = tuple(
            slice(tap[d] * dilation, tap[d] * dilation + (sizes[d] - 1) * strides + 1, strides) for d in range(rank)
        )
        part = x[(slice(None), slice(None), *window)]
        for group in range(groups):
            result[:, group * outs : (group + 1) * outs] += np.einsum(
                "nc...,oc->no...",
                part[:, group * per_group : (group + 1) * per_group],
                weight[(slice(group * outs, (group + 1) * outs), slice(None), *tap)].astype("float64"),
            )
    return result


@family
def convolution(draw: Draw) -> Sample:
    channels, outs, taps = draw.one(CHANNELS), draw.one(CHANNELS), draw.one((1, 1, 3, 3, 5, 7))
    dilation = draw.one((1, 1, 1, 2))
    least = (taps - 1) * dilation + 1
    height, width = (max(draw.one(SIDES), least) for _ in range(2))
    strides, padding = draw.one((1, 1, 2, 3)), draw.one((0, taps // 2, 1))
    weight, bias = draw.array((outs, channels, taps, taps)) * np.float32(0.2), draw.array((outs, 1, 1))
    return Sample(
        lambda a: nn.relu(
            nn.conv2d(a, constant(weight), strides=strides, padding=padding, dilation=dilation) + constant(bias)
        ),
        [draw.array((draw.one((1, 1, 2)), channels, height, width))],
        lambda a: np.maximum(_convolved(a, weight, strides, padding, dilation, 1) + bias, 0),
        2e-3,
    )


@family
def convolution_chain(draw: Draw) -> Sample:
    first, second, third = draw.one(CHANNELS), draw.one(CHANNELS), draw.one(CHANNELS)
    height, width = draw.one((3, 7, 14)), draw.one((1, 3, 9, 17))
    one, two = draw.array((second, first, 3, 3)) * np.float32(0.2), draw.array((third, second, 1, 1))
    return Sample(
        lambda a: nn.conv2d(nn.relu(nn.conv2d(a, constant(one), padding=1)), constant(two)),
        [draw.array((1, first, height, width))],
        lambda a: _convolved(np.maximum(_convolved(a, one, 1, 1, 1, 1), 0), two, 1, 0, 1, 1),
        2e-3,
    )


@family
def winograd(draw: Draw) -> Sample:
    channels, outs = draw.one((31, 32, 64)), draw.one((32, 33, 64))
    side = draw.one((7, 8, 14, 17, 28))
    weight = draw.array((outs, channels, 3, 3)) * np.float32(0.1)
    return Sample(
        lambda a: nn.relu(nn.conv2d(a, constant(weight), padding=1)),
        [draw.array((1, channels, side, side))],
        lambda a: np.maximum(_convolved(a, weight, 1, 1, 1, 1), 0),
        1e-2,
    )


@family
def depthwise(draw: Draw) -> Sample:
    channels, taps = draw.one(CHANNELS), draw.one((3, 3, 5))
    height, width = (max(draw.one(SIDES), taps) for _ in range(2))
    strides, padding = draw.one((1, 1, 2)), draw.one((0, taps // 2))
    weight = draw.array((channels, 1, taps, taps))
    return Sample(
        lambda a: nn.silu(nn.conv2d(a, constant(weight), strides=strides, padding=padding, groups=channels)),
        [draw.array((1, channels, height, width))],
        lambda a: (lambda r: r / (1 + np.exp(-r)))(_convolved(a, weight, strides, padding, 1, channels)),
        2e-3,
    )


@family
def grouped(draw: Draw) -> Sample:
    groups = draw.one((2, 3, 4))
    channels, outs = groups * draw.one((1, 3, 8)), groups * draw.one((1, 2, 7, 8))
    taps = draw.one((1, 3))
    weight = draw.array((outs, channels // groups, taps, taps))
    return Sample(
        lambda a: nn.conv2d(a, constant(weight), padding=taps // 2, groups=groups),
        [draw.array((1, channels, draw.one((3, 7, 9)), draw.one((1, 3, 17))))],
        lambda a: _convolved(a, weight, 1, taps // 2, 1, groups),
        2e-3,
    )


@family
def convolution_1d(draw: Draw) -> Sample:
    channels, outs, taps = draw.one(CHANNELS), draw.one(CHANNELS), draw.one((1, 3, 5))
    strides, padding = draw.one((1, 2)), draw.one((0, taps // 2))
    weight = draw.array((outs, channels, taps)) * np.float32(0.2)
    return Sample(
        lambda a: nn.conv1d(a, constant(weight), strides=strides, padding=padding),
        [draw.array((draw.one((1, 2)), channels, max(taps, draw.one((1, 3, 9, 33, 127)))))],
        lambda a: _convolved(a, weight, strides, padding, 1, 1),
        2e-3,
    )


@family
def convolution_3d(draw: Draw) -> Sample:
    channels, outs, taps = draw.one((1, 3, 8, 17)), draw.one((1, 3, 16, 17)), draw.one((1, 3))
    weight = draw.array((outs, channels, taps, taps, taps)) * np.float32(0.2)
    shape = (1, channels, draw.one((3, 4)), draw.one((3, 7)), draw.one((3, 5, 9)))
    return Sample(
        lambda a: nn.conv3d(a, constant(weight), padding=taps // 2),
        [draw.array(shape)],
        lambda a: _convolved(a, weight, 1, taps // 2, 1, 1),
        2e-3,
    )


@family
def convolution_of_variables(draw: Draw) -> Sample:
    channels, outs, taps = draw.one((1, 3, 17)), draw.one((1, 3, 16)), draw.one((1, 3))
    return Sample(
        lambda a, w: nn.conv2d(a, w, padding=taps // 2),
        [draw.array((1, channels, 7, draw.one((3, 9)))), draw.array((outs, channels, taps, taps))],
        lambda a, w: _convolved(a, w, 1, taps // 2, 1, 1),
        2e-3,
    )


@family
def transposed_convolution(draw: Draw) -> Sample:
    channels, outs, taps = draw.one((1, 3, 8, 17)), draw.one((1, 3, 16, 17)), draw.one((2, 3, 4))
    strides = draw.one((1, 2))
    height, width = draw.one((1, 3, 7)), draw.one((1, 5, 9))
    weight = draw.array((channels, outs, taps, taps)) * np.float32(0.2)

    def expected(a: np.ndarray) -> np.ndarray:
        result = np.zeros((1, outs, (height - 1) * strides + taps, (width - 1) * strides + taps))
        for h, w in np.ndindex(height, width):
            rows, columns = (slice(at * strides, at * strides + taps) for at in (h, w))
            result[:, :, rows, columns] += np.einsum("nc,cohw->nohw", a[:, :, h, w], weight)
        return result

    return Sample(
        lambda a: nn.conv2d_transpose(a, constant(weight), strides=strides),
        [draw.array((1, channels, height, width))],
        expected,
        2e-3,
    )


@family
def pooling(draw: Draw) -> Sample:
    taps, strides, channels = draw.one((2, 3)), draw.one((1, 2, 3)), draw.one(CHANNELS)
    height, width = (max(draw.one(SIDES), taps) for _ in range(2))
    padding = draw.one((0, 1))
    largest = bool(draw.random.random() < 0.5)

    def expected(a: np.ndarray) -> np.ndarray:
        fill = -np.inf if largest else 0.0
        padded = np.pad(a, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (2, 3))[:, :, ::strides, ::strides]
        return view.max((-1, -2)) if largest else view.sum((-1, -2)) / (taps * taps)

    def build(a: relax.Expr) -> relax.Expr:
        if largest:
            return nn.max_pool2d(a, (taps, taps), strides, padding)
        return nn.avg_pool2d(a, (taps, taps), strides, padding, count_include_pad=True)

    return Sample(build, [draw.array((draw.one((1, 2)), channels, height, width))], expected, 1e-4)


@family
def convolution_and_pooling(draw: Draw) -> Sample:
    channels, outs = draw.one(CHANNELS), draw.one(CHANNELS)
    weight = draw.array((outs, channels, 3, 3)) * np.float32(0.2)
    height, width = draw.one((3, 7, 14)), draw.one((3, 9, 17))

    def expected(a: np.ndarray) -> np.ndarray:
        r = np.pad(
            np.maximum(_convolved(a, weight, 1, 1, 1, 1), 0),
            [(0, 0), (0, 0), (1, 1), (1, 1)],
            constant_values=-np.inf,
        )
        return np.lib.stride_tricks.sliding_window_view(r, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2))

    return Sample(
        lambda a: nn.max_pool2d(nn.relu(nn.conv2d(a, constant(weight), padding=1)), (3, 3), 2, 1),
        [draw.array((1, channels, height, width))],
        expected,
        2e-3,
    )


@family
def global_pooling(draw: Draw) -> Sample:
    shape = (draw.one((1, 2)), draw.one(CHANNELS), draw.one(SIDES), draw.one(SIDES))
    return Sample(
        lambda a: nn.adaptive_avg_pool2d(nn.relu(a), (1, 1)),
        [draw.array(shape)],
        lambda a: np.maximum(a, 0).mean((2, 3), keepdims=True),
    )


@family
def quantized_convolution(draw: Draw) -> Sample:
    channels, outs, taps = draw.one(CHANNELS), draw.one(CHANNELS), draw.one((1, 3))
    is_depthwise = bool(draw.random.random() < 0.3)
    if is_depthwise:
        outs, taps = channels, 3
    groups = channels if is_depthwise else 1
    strides = draw.one((1, 1, 2))
    side, width = draw.one((3, 7, 9)), draw.one((3, 5, 17))
    weight = draw.random.integers(-127, 128, (outs, channels // groups, taps, taps)).astype("int8")
    scales = (0.01 + 0.01 * draw.random.random(outs)).astype("float32")
    zero, s = 128, np.float32(0.05)

    def build(a: relax.Expr) -> relax.Expr:
        left = op.dequantize(a, relax.const(s), relax.const(np.uint8(zero), "uint8"), axis=1)
        right = op.dequantize(constant(weight), constant(scales), constant(np.zeros(outs, "int8")), axis=0)
        result = nn.conv2d(left, right, strides=strides, padding=taps // 2, groups=groups)
        return op.quantize(
            result, relax.const(np.float32(1.5)), relax.const(np.uint8(100), "uint8"), axis=1, out_dtype="uint8"
        )

    def expected(a: np.ndarray) -> np.ndarray:
        real = (a.astype("float64") - zero) * s
        scaled = weight * scales.astype("float64")[:, None, None, None]
        return np.clip(np.rint(_convolved(real, scaled, strides, taps // 2, 1, groups) / 1.5) + 100, 0, 255)

    x = draw.random.integers(0, 256, (1, channels, side, width)).astype("uint8")
    return Sample(build, [x], expected, 1 / 255 + 1e-3)


@family
def open_quantized_convolution(draw: Draw) -> Sample:
    sample = quantized_convolution(draw)
    return replace(sample, open_axes=[draw.one(([(2, "h"), (3, "w")], [(0, "n"), (3, "w")]))])
