"""Draws networks of the blocks that trained networks are made of, in the forms in which their files come.

Random operators (`draw`) seldom add up to what fusion, layouts and integer arithmetic look for; blocks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper

from scripts.fuzz import image_blocks, token_blocks
from scripts.fuzz.forms import FORMS, in_form
from scripts.fuzz.layers import Layers, Value

OPSETS = (13, 15, 17, 18, 20)


@dataclass(frozen=True)
class Sizes:
    """How large networks are.

    Attributes
    ----------
    sides, tokens, features : tuple of int
        What the extents of images, sequences and their elements are drawn from.
    most_elements : int
        Of a value; what has more is made smaller before the next block.
    """

    sides: tuple[int, ...]
    tokens: tuple[int, ...]
    features: tuple[int, ...]
    most_elements: int


USUAL = Sizes(
    sides=(3, 5, 6, 7, 8, 9, 12, 14, 15, 16, 17, 20, 24, 28, 31, 32, 33, 40),
    tokens=(1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 50, 64),
    features=(4, 7, 8, 12, 16, 24, 31, 32, 33, 48, 64, 96),
    most_elements=40_000,
)
SMALL = Sizes(
    sides=(3, 5, 6, 7, 8, 9, 12), tokens=(1, 2, 3, 5, 7, 8, 16, 17), features=(4, 7, 8, 12, 16, 24, 31),
    most_elements=4_000,
)  # fmt: skip
"""For what is emulated."""


def draw_network(rng: np.random.Generator, sizes: Sizes = USUAL) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Draw a network and inputs of sensible size.

    Raises
    ------
    Exception
        Whatever onnxruntime's quantiser raises for a network that it cannot quantise.
    """
    form = str(rng.choice(FORMS))
    w = Layers(int(rng.choice(OPSETS)), rng, dtype="float16" if form == "float16" else "float32")
    batch = int(rng.choice((1, 1, 1, 2, 3, 5)))
    kind = str(rng.choice(("image", "image", "image", "tokens", "tokens", "patches", "sequence", "volume")))
    x = Value("x", _input_shape(rng, kind, batch, sizes))
    inputs, results = [x], []
    side = Value("side", (batch, int(w.choose(sizes.features)))) if w.chance(0.2) else None
    inputs += [side] if side else []
    x, outputs = _body(w, x, kind, side, sizes)
    results = [*outputs, *_head(w, x)]
    model = model_of(w, inputs, list(dict.fromkeys(results)))
    scale = float(rng.choice((0.3, 1.0, 1.0, 2.0)))
    feeds = {item.name: (rng.standard_normal(item.shape) * scale).astype(w.dtype) for item in inputs}
    return in_form(form, model, feeds, rng), feeds


def _input_shape(rng: np.random.Generator, kind: str, batch: int, sizes: Sizes) -> tuple[int, ...]:
    def side(most: int = 40) -> int:
        return int(rng.choice([size for size in sizes.sides if size <= most]))

    if kind == "tokens":
        return batch, int(rng.choice(sizes.tokens)), int(rng.choice(sizes.features))
    channels = int(rng.choice((1, 3, 3, 3, 4, 8, 16, 19)))
    return {
        "image": (batch, channels, side(), side()),
        "patches": (batch, channels, 4 * side(9), 4 * side(9)),
        "sequence": (batch, channels, 2 * side()),
        "volume": (batch, channels, side(9), side(12), side(12)),
    }[kind]


def _body(w: Layers, x: Value, kind: str, side: Value | None, sizes: Sizes) -> tuple[Value, list[Value]]:
    """Apply blocks, some of them to what came earlier; give the last value, and others that are outputs, too."""
    blocks = int(w.choose((1, 1, 2, 2, 3, 3, 4, 5)))
    switch = int(w.rng.integers(blocks + 1)) if kind == "patches" else None
    history, outputs = [x], []
    for index in range(blocks):
        if index == switch:
            x = _to_tokens(w, x, sizes)
            history = [x]
        if len(x.shape) == 3 and kind in ("tokens", "patches"):
            x = w.choose(token_blocks.BLOCKS)(w, x)
        else:
            x = _smaller(w, x, sizes.most_elements)
            x = w.choose(image_blocks.BLOCKS if len(x.shape) == 4 else image_blocks.ANY_RANK)(w, x)
        if side is not None and w.chance(0.4):
            x = _conditioned(w, x, side, channels_first=not (len(x.shape) == 3 and kind in ("tokens", "patches")))
        x = _skipped(w, x, history[:-1])
        history.append(x)
        if w.chance(0.08):
            outputs.append(x)
    return x, outputs


def _smaller(w: Layers, x: Value, most: int) -> Value:
    while (prod(x.shape) > most and x.channels > 1) or x.channels > 160:
        if x.channels > 160 or min(x.shape[2:]) < 3:
            x = w.conv(x, 24 if x.channels > 24 else x.channels // 2, 1)
        else:
            x = w.pool(x, "MaxPool", 2, 2)
    return x


def _to_tokens(w: Layers, x: Value, sizes: Sizes) -> Value:
    """Make tokens of patches."""
    features = int(w.choose(sizes.features))
    if min(x.shape[2:]) >= 4 and prod(x.shape[2:]) > 64:
        weights = [w.weights(features, x.channels, 4, 4), w.weights(features, scale=0.3)]
        sides = [extent // 4 for extent in x.shape[2:]]
        rest = {"strides": [4, 4], "kernel_shape": [4, 4]}
        x = w.apply("Conv", x, *weights, shape=(x.shape[0], features, *sides), **rest)
    tokens = w.reshape(x, *x.shape[:2], prod(x.shape[2:]))
    return w.transpose(tokens, 0, 2, 1)


def _conditioned(w: Layers, x: Value, side: Value, *, channels_first: bool) -> Value:
    """Scale and shift by functions of the second input (FiLM)."""
    count = x.shape[1] if channels_first else x.features
    place = (count, *[1] * (len(x.shape) - 2)) if channels_first else (1, count)
    both = w.dense(w.activation(side), 2 * count)
    scale, shift = (w.reshape(part, side.shape[0], *place) for part in w.split(both, [count, count], 1))
    return w.join("Add", w.join("Mul", x, w.apply("Add", scale, w.scalar(1))), shift)


def _skipped(w: Layers, x: Value, earlier: Sequence[Value]) -> Value:
    """Join with an earlier value, where one fits."""
    same = [value for value in earlier if value.shape == x.shape]
    if same and w.chance(0.5):
        return w.join(w.choose(("Add", "Add", "Mul", "Sub", "Max")), x, w.choose(same))
    fits = [value for value in earlier if value.shape[2:] == x.shape[2:] and len(x.shape) > 3]
    if fits and w.chance(0.3):
        return w.concat([x, w.choose(fits)], 1)
    return x


def _head(w: Layers, x: Value) -> list[Value]:
    """End in classes, a map, or what is there."""
    kind = w.choose(("classes", "classes", "flat", "map", "none"))
    classes = int(w.choose((1, 2, 5, 10, 17, 33)))
    tokens = len(x.shape) == 3
    if kind == "classes":
        mean = w.reduce("ReduceMean", x, [1]) if tokens else w.average(x)
        count = x.features if tokens else x.channels
        x = w.dense(w.reshape(mean, x.shape[0], count), classes)
    elif kind == "flat" and prod(x.shape[1:]) < 4000:
        flat = (x.shape[0], prod(x.shape[1:]))
        x = w.apply("Flatten", x, shape=flat, axis=1) if w.chance(0.6) else w.reshape(x, *flat)
        x = w.dense(x, classes)
    elif kind == "map":
        x = w.dense(x, classes) if tokens else w.conv(x, classes, 1)
    ending = w.choose(("none", "none", "softmax", "sigmoid", "both"))
    if ending == "softmax":
        return [w.apply("Softmax", x, axis=w.choose((-1, 1)))]
    if ending == "sigmoid":
        return [w.apply("Sigmoid", x)]
    return [x, w.apply("Tanh", x)] if ending == "both" else [x]


def model_of(w: Layers, inputs: Sequence[Value], results: Sequence[Value]) -> onnx.ModelProto:
    """Make a model of what is written; inputs that nothing reads have a result of their own."""
    kind = onnx.TensorProto.FLOAT16 if w.dtype == "float16" else onnx.TensorProto.FLOAT

    def info(value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, kind, value.shape)

    made = {name for node in w.nodes for name in node.output}
    known = [value for value in results if value.name in made]
    if not known:  # blocks that leave a value as it is
        known = [w.apply("Neg", inputs[0])]
    read = {name for node in w.nodes for name in node.input}
    for value in inputs:
        if value.name not in read:
            known.append(w.apply("Abs", value))
    graph = helper.make_graph(
        w.nodes, "g", [info(value) for value in inputs], [info(value) for value in known], w.constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", w.opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model
