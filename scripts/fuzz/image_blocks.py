"""Blocks of networks for images: each takes an image ``(N, C, H, W)`` and gives one.

Those of :data:`ANY_RANK` take sequences ``(N, C, W)`` and volumes ``(N, C, D, H, W)``, too.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.fuzz.layers import Layers, Value

CHANNELS = (3, 4, 5, 7, 8, 12, 16, 16, 17, 24, 31, 32, 33, 36, 40, 48, 64, 72)

Block = Callable[[Layers, Value], Value]


def _divisor(w: Layers, number: int, *, most: int = 8) -> int:
    return int(w.choose([part for part in range(1, min(number, most) + 1) if number % part == 0]))


def _unit(w: Layers, x: Value, channels: int, kernel: int = 1, **rest: int) -> Value:
    """Convolution, normalisation and activation, in one of their usual orders."""
    normalised = w.chance(0.7)
    if w.chance(0.1):  # before the convolution, as in DenseNet
        return w.conv(w.activation(w.batch_norm(x)), channels, kernel, **rest)
    y = w.conv(x, channels, kernel, bias=not normalised or w.chance(0.3), **rest)
    return w.activation(w.batch_norm(y) if normalised else y)


def convolution(w: Layers, x: Value) -> Value:
    """Write a convolution of any kernel, stride, dilation and groups."""
    kernel = w.choose((1, 3, 3, 3, 5, 7, 2))
    channels = w.choose(CHANNELS)
    group = _divisor(w, x.channels) if w.chance(0.25) else 1
    channels = max(channels // group, 1) * group
    stride = w.choose((1, 1, 2, 3)) if min(x.shape[2:]) > 3 else 1
    dilation = w.choose((1, 1, 1, 2, 3)) if kernel > 1 else 1
    return _unit(w, x, channels, kernel, stride=stride, group=group, dilation=dilation)


def one_axis(w: Layers, x: Value) -> Value:
    """Convolutions along the height and the width, one after the other."""
    size, channels = w.choose((3, 5, 7)), w.choose(CHANNELS)
    return w.activation(w.conv(w.conv(x, channels, (size, 1)), channels, (1, size)))


def depthwise(w: Layers, x: Value) -> Value:
    """Write a depthwise convolution and one of single pixels."""
    y = _unit(w, x, x.channels * w.choose((1, 1, 2)), w.choose((3, 3, 5, 7)), group=x.channels)
    return _unit(w, y, w.choose(CHANNELS))


def bottleneck(w: Layers, x: Value) -> Value:
    """ResNet: three convolutions beside the identity."""
    inner = max(x.channels // 2, 1)
    y = _unit(w, _unit(w, x, inner), inner, 3)
    y = w.batch_norm(w.conv(y, x.channels, 1, bias=False))
    return w.activation(w.join("Add", *((y, x) if w.chance(0.5) else (x, y))))


def excited(w: Layers, x: Value) -> Value:
    """Squeeze and excitation."""
    inner = max(x.channels // 4, 1)
    mean = w.average(x)
    if w.chance(0.6):
        y = w.conv(w.activation(w.conv(mean, inner, 1)), x.channels, 1)
    else:
        flat = w.dense(w.activation(w.dense(w.reshape(mean, *mean.shape[:2]), inner)), x.channels)
        y = w.reshape(flat, *mean.shape)
    gate = w.apply("HardSigmoid", y, alpha=1 / 6) if w.chance(0.3) else w.apply("Sigmoid", y)
    return w.join("Mul", x, gate)


def inverted(w: Layers, x: Value) -> Value:
    """MobileNet: wide, depthwise, narrow, with the identity beside it."""
    y = _unit(w, x, x.channels * w.choose((2, 3, 4)))
    y = _unit(w, y, y.channels, w.choose((3, 5)), group=y.channels)
    y = excited(w, y) if w.chance(0.5) else y
    y = w.batch_norm(w.conv(y, x.channels, 1, bias=False))
    return w.join("Add", x, y) if w.chance(0.8) else y


def ghost(w: Layers, x: Value) -> Value:
    """GhostNet: half of the channels are cheap functions of the other half."""
    half = _unit(w, x, max(w.choose(CHANNELS) // 2, 1))
    return w.concat([half, _unit(w, half, half.channels, 3, group=half.channels)], 1)


def shuffle(w: Layers, x: Value) -> Value:
    """ShuffleNet: half of the channels pass; then groups are interleaved."""
    if x.channels % 2:
        return x
    n, c, height, width = x.shape
    left, right = w.split(x, [c // 2, c // 2], 1)
    right = _unit(w, w.conv(_unit(w, right, c // 2), c // 2, 3, group=c // 2), c // 2)
    y = w.reshape(w.concat([left, right], 1), n, 2, c // 2, height, width)
    return w.reshape(w.transpose(y, 0, 2, 1, 3, 4), n, c, height, width)


def dense_block(w: Layers, x: Value) -> Value:
    """DenseNet: each layer reads all before it."""
    values = [x]
    for _ in range(int(w.rng.integers(1, 4))):
        values.append(_unit(w, w.concat(values, 1) if len(values) > 1 else x, w.choose((4, 8, 12)), 3))
    return w.concat(values, 1)


def inception(w: Layers, x: Value) -> Value:
    """Inception: branches of several kernels and a pool, concatenated."""
    branches = [_unit(w, x, w.choose(CHANNELS[:8])), _unit(w, _unit(w, x, 8), w.choose(CHANNELS[:8]), 3)]
    if w.chance(0.7):
        branches.append(_unit(w, w.pool(x, w.choose(("MaxPool", "AveragePool")), 3, 1), w.choose(CHANNELS[:8])))
    if w.chance(0.3):
        branches.append(x)
    return w.concat(branches, 1)


def pooled(w: Layers, x: Value) -> Value:
    """Write a pool, or three in a row whose results are concatenated (YOLO)."""
    if w.chance(0.3):
        first = w.pool(x, "MaxPool", 5, 1)
        second = w.pool(first, "MaxPool", 5, 1)
        return w.concat([x, first, second], 1)
    kernel, stride = w.choose(((2, 2), (3, 2), (3, 1), (5, 3)))
    return w.pool(x, w.choose(("MaxPool", "MaxPool", "AveragePool")), kernel, stride) if min(x.shape[2:]) > 2 else x


def pyramid(w: Layers, x: Value) -> Value:
    """Write a feature pyramid: down, and up again to what was there before."""
    if min(x.shape[2:]) < 4:
        return x
    down = _unit(w, x, w.choose(CHANNELS), 3, stride=2)
    across = w.conv(x, down.channels, 1)
    up = w.resize(down, *x.shape[2:])
    y = w.join("Add", across, up) if w.chance(0.6) else w.concat([across, up], 1)
    return _unit(w, y, w.choose(CHANNELS), 3)


def transposed(w: Layers, x: Value) -> Value:
    """Write a transposed convolution, twice as large, and back."""
    n, c, height, width = x.shape
    channels = w.choose((4, 7, 8, 16))
    kernel = w.choose((2, 4))
    pads = [(kernel - 2) // 2] * 4
    weights = [w.weights(c, channels, kernel, kernel, scale=(c * kernel) ** -0.5), w.weights(channels, scale=0.3)]
    shape = (n, channels, 2 * height, 2 * width)
    y = w.activation(w.apply("ConvTranspose", x, *weights, shape=shape, strides=[2, 2], pads=pads))
    return _unit(w, y, w.choose(CHANNELS), 3, stride=2)


def to_space(w: Layers, x: Value) -> Value:
    """Pixels to channels and back: ``SpaceToDepth``, slices with steps, or ``DepthToSpace``."""
    n, c, height, width = x.shape
    if c % 4 == 0 and w.chance(0.5):
        mode = w.choose(("DCR", "CRD"))
        y = w.apply("DepthToSpace", x, shape=(n, c // 4, 2 * height, 2 * width), blocksize=2, mode=mode)
        return _unit(w, y, w.choose(CHANNELS), 3, stride=2)
    if height % 2 or width % 2:
        return x
    if w.chance(0.5):
        y = w.apply("SpaceToDepth", x, shape=(n, 4 * c, height // 2, width // 2), blocksize=2)
    else:
        rows = [w.slice(x, 2, start, height, 2) for start in (0, 1)]
        y = w.concat([w.slice(row, 3, start, width, 2) for start in (0, 1) for row in rows], 1)
    return _unit(w, y, w.choose(CHANNELS), w.choose((1, 3)))


def convnext(w: Layers, x: Value) -> Value:
    """ConvNeXt: a depthwise convolution, and two products with channels last."""
    y = w.transpose(w.conv(x, x.channels, w.choose((3, 7)), group=x.channels), 0, 2, 3, 1)
    y = w.dense(w.activation(w.dense(w.layer_norm(y), 2 * x.channels)), x.channels)
    if w.chance(0.5):
        y = w.apply("Mul", y, w.weights(x.channels, scale=1.0))
    return w.join("Add", x, w.transpose(y, 0, 3, 1, 2))


def attended(w: Layers, x: Value) -> Value:
    """CBAM: a gate for each pixel, of the largest and the mean of its channels."""
    y = w.concat([w.reduce("ReduceMean", x, [1]), w.reduce("ReduceMax", x, [1])], 1)
    return w.join("Mul", x, w.apply("Sigmoid", w.conv(y, 1, w.choose((3, 7)))))


def pooled_context(w: Layers, x: Value) -> Value:
    """ASPP: dilated branches, and the mean of the image spread over it."""
    channels = w.choose((4, 8, 15, 16))
    branches = [_unit(w, x, channels)] + [_unit(w, x, channels, 3, dilation=rate) for rate in (2, 3)]
    mean = _unit(w, w.average(x), channels)
    sides = w.constant([1, 1, *x.shape[2:]])
    branches.append(w.apply("Expand", mean, sides, shape=(*mean.shape[:2], *x.shape[2:])))
    return _unit(w, w.concat(branches, 1), w.choose(CHANNELS))


def gated(w: Layers, x: Value) -> Value:
    """NAFNet and the like: the product of the two halves of the channels."""
    y = w.conv(x, 2 * max(x.channels // 2, 1), 3)
    left, right = w.split(y, [y.channels // 2] * 2, 1)
    right = w.apply(w.choose(("Sigmoid", "Tanh")), right) if w.chance(0.5) else right
    return w.conv(w.join("Mul", left, right), x.channels, 1)


def grouped_norm(w: Layers, x: Value) -> Value:
    """Group or instance normalisation and a convolution, beside the identity (diffusion)."""
    groups = x.channels if w.chance(0.2) else _divisor(w, x.channels)
    y = w.conv(w.activation(w.group_norm(x, groups)), x.channels, 3)
    return w.join("Add", y, x)


def weighted(w: Layers, x: Value) -> Value:
    """Weights of kernels by the image itself: a softmax over branches (selective kernels)."""
    n, c = x.shape[:2]
    branches = [_unit(w, x, c, 3, group=c), _unit(w, x, c, 3, dilation=2, group=c)]
    mean = w.reshape(w.average(w.join("Add", *branches)), n, c)
    scores = w.reshape(w.dense(w.activation(w.dense(mean, max(c // 2, 1))), 2 * c), n, 2, c)
    shares = w.apply("Softmax", scores, axis=1)
    parts = [w.reshape(part, n, c, *[1] * (len(x.shape) - 2)) for part in w.split(shares, [1, 1], 1)]
    return w.join("Add", *(w.join("Mul", branch, part) for branch, part in zip(branches, parts, strict=True)))


def shifted(w: Layers, x: Value) -> Value:
    """Roll along an axis by two slices, beside the identity (Swin, temporal shift)."""
    axis = w.choose((2, 3))
    side = x.shape[axis]
    if side < 3:
        return x
    by = int(w.rng.integers(1, side))
    rolled = w.concat([w.slice(x, axis, by, side), w.slice(x, axis, 0, by)], axis)
    return w.join("Add", x, w.conv(rolled, x.channels, 1))


ANY_RANK: tuple[Block, ...] = (
    *(convolution,) * 4, *(depthwise,) * 2, bottleneck, inverted, excited, ghost, dense_block, inception, gated,
    grouped_norm, weighted,
)  # fmt: skip

BLOCKS: tuple[Block, ...] = (
    *(convolution,) * 4, one_axis, *(depthwise,) * 2, *(bottleneck,) * 2, *(inverted,) * 2, excited, ghost, shuffle,
    dense_block, inception, *(pooled,) * 2, pyramid, transposed, to_space, convnext, attended, pooled_context, gated,
    grouped_norm, weighted, shifted,
)  # fmt: skip
