"""Random small networks of what runs in parts: images in strips, slices of convolutions, features in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op


class _Maker:
    """Emits operators of a network whose weights and sizes are drawn."""

    def __init__(self, seed: int, builder: relax.BlockBuilder) -> None:
        self.random = np.random.default_rng(seed)
        self.emit = builder.emit

    def drawn(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def constant(self, *shape: int) -> Any:
        values = self.random.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        return relax.const(values.astype("float32"))

    def images(self, x: Any) -> Any:
        """Convolutions, sums, pools; the image becomes smaller, as in the first stages of a network."""
        for _ in range(int(self.random.integers(2, 6))):
            channels = int(x.ty.shape[1])
            match self.drawn("convolution", "convolution", "residual", "pool", "activation", "branches"):
                case "convolution":
                    taps, stride = self.drawn(1, 3, 5), self.drawn(1, 1, 2)
                    weight = self.constant(self.drawn(5, 8, 17), channels, taps, taps)
                    x = self.emit(op.nn.conv2d(x, weight, strides=stride, padding=taps // 2))
                case "residual":
                    y = self.emit(op.nn.conv2d(x, self.constant(channels, channels, 3, 3), padding=1))
                    x = self.emit(op.add(self.emit(op.nn.relu(y)), x))
                case "pool":
                    x = self.emit(self.drawn(op.nn.max_pool2d, op.nn.avg_pool2d)(x, (3, 3), (2, 2), (1, 1)))
                case "activation":
                    x = self.emit(self.drawn(op.nn.relu, op.tanh)(x))
                case _:
                    parts = [self.emit(op.nn.conv2d(x, self.constant(4, channels, 1, 1))) for _ in range(2)]
                    x = self.emit(op.concat(parts, axis=1))
        return x

    def halves(self, x: Any) -> Any:
        """A convolution of which two ranges of channels are squared and added, as of a spectrum."""
        half = self.drawn(7, 32)
        y = self.emit(op.nn.conv2d(x, self.constant(2 * half, int(x.ty.shape[1]), 3, 3), padding=1))
        parts = [self.emit(op.strided_slice(y, [1], [begin], [begin + half])) for begin in (0, half)]
        return self.emit(op.add(*(self.emit(op.multiply(part, part)) for part in parts)))

    def features(self, x: Any) -> Any:
        """Feed-forward blocks over the places of an image, with or without a residual."""
        channels, rows, columns = (int(x.ty.shape[axis]) for axis in (1, 2, 3))
        y = self.emit(op.permute_dims(self.emit(op.reshape(x, (1, channels, rows * columns))), [0, 2, 1]))
        for _ in range(int(self.random.integers(1, 4))):
            hidden = self.drawn(33, 48, 96)
            z = self.emit(op.add(self.emit(op.matmul(y, self.constant(channels, hidden))), self.constant(hidden)))
            z = self.emit(op.matmul(self.emit(self.drawn(op.nn.relu, op.tanh)(z)), self.constant(hidden, channels)))
            y = self.emit(op.nn.softmax(self.emit(op.add(z, y)) if self.drawn(True, False) else z))
        return y


def parted_net(seed: int) -> tvm.IRModule:
    """Make a network with one result or two, one of which may be an inner tensor."""
    builder = relax.BlockBuilder()
    maker = _Maker(seed, builder)
    size = maker.drawn((96, 33), (64, 48), (127, 7), (17, 16))
    x = relax.Var("x", relax.TensorType((1, 3, *size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            image = maker.images(x)
            sliced = maker.halves(image) if maker.drawn(True, False) else image
            inner = maker.features(sliced) if maker.drawn(True, True, False) else sliced
            ends = [inner, *([image] if maker.drawn(True, False, False) else [])]
            result = builder.emit_output(relax.Tuple([op.mean(ends[0], axis=[-1]), *ends[1:]]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())
