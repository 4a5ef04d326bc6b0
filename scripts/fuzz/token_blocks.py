"""Blocks of networks for sequences: each takes tokens ``(N, T, D)`` and gives as many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scripts.fuzz.layers import Layers, Value

Block = Callable[[Layers, Value], Value]


def _beside(w: Layers, x: Value, inner: Callable[[Value], Value]) -> Value:
    """Add the identity, with a normalisation before the block or behind the sum."""
    if w.chance(0.6):
        return w.join("Add", x, inner(w.layer_norm(x)))
    return w.layer_norm(w.join("Add", inner(x), x))


def _heads(w: Layers, x: Value) -> int:
    return int(w.choose([heads for heads in (1, 2, 3, 4, 8) if x.features % heads == 0]))


def _operands(w: Layers, x: Value, heads: int) -> list[Value]:
    """Write queries, keys and values ``(N, heads, T, D / heads)``, of one product or of three."""
    n, tokens, features = x.shape
    size = features // heads
    kind = w.choose(("three", "three", "split", "gather"))
    if kind == "three":
        parts = [w.reshape(w.dense(x, features), n, tokens, heads, size) for _ in range(3)]
        return [w.transpose(part, 0, 2, 1, 3) for part in parts]
    whole = w.dense(x, 3 * features)
    if kind == "split":
        parts = [w.reshape(part, n, tokens, heads, size) for part in w.split(whole, [features] * 3, 2)]
        return [w.transpose(part, 0, 2, 1, 3) for part in parts]
    y = w.transpose(w.reshape(whole, n, tokens, 3, heads, size), 2, 0, 3, 1, 4)
    shape = y.shape[1:]
    return [w.apply("Gather", y, w.constant(np.int64(index)), shape=shape, axis=0) for index in range(3)]


def _masked(w: Layers, scores: Value) -> Value:
    """Add to scores, or replace those behind the diagonal."""
    rows, columns = scores.shape[-2:]
    kind = w.choose(("none", "none", "added", "bias", "causal"))
    if kind == "added":
        lower = np.where(np.tril(np.ones((rows, columns))) > 0, 0.0, -1e4)
        return w.apply("Add", scores, w.constant(lower, w.dtype))
    if kind == "bias":
        return w.apply("Add", scores, w.weights(scores.shape[1], rows, columns, scale=0.5))
    if kind == "causal":
        mask = w.constant(np.tril(np.ones((1, 1, rows, columns), bool)), "bool")
        low = w.scalar(-1e4)
        return Value(w.value("Where", mask, scores.name, low), scores.shape)
    return scores


def attention(w: Layers, x: Value) -> Value:
    """Attention of several heads."""

    def inner(y: Value) -> Value:
        n, tokens, features = y.shape
        heads = _heads(w, y)
        queries, keys, values = _operands(w, y, heads)
        scale = (features // heads) ** -0.5
        if w.chance(0.3):
            queries = w.scaled(queries, scale)
            scores = w.matmul(queries, w.transpose(keys, 0, 1, 3, 2))
        else:
            scores = w.scaled(w.matmul(queries, w.transpose(keys, 0, 1, 3, 2)), scale)
        shares = w.apply("Softmax", _masked(w, scores), axis=-1)
        made = w.transpose(w.matmul(shares, values), 0, 2, 1, 3)
        return w.dense(w.reshape(made, n, tokens, features), features)

    return _beside(w, x, inner)


def linear_attention(w: Layers, x: Value) -> Value:
    """Attention without softmax over scores: values are summed by keys first."""

    def inner(y: Value) -> Value:
        n, tokens, features = y.shape
        queries, keys, values = _operands(w, y, _heads(w, y))
        if w.chance(0.5):
            queries, keys = (w.apply("Relu", part) for part in (queries, keys))
        else:
            queries, keys = w.apply("Softmax", queries, axis=-1), w.apply("Softmax", keys, axis=2)
        context = w.matmul(w.transpose(keys, 0, 1, 3, 2), values)
        made = w.transpose(w.matmul(queries, context), 0, 2, 1, 3)
        return w.dense(w.reshape(made, n, tokens, features), features)

    return _beside(w, x, inner)


def perceptron(w: Layers, x: Value) -> Value:
    """Two products with an activation between them, or a gate (Llama, T5)."""

    def inner(y: Value) -> Value:
        wide = int(w.choose((1, 2, 3, 4)) * y.features)
        hidden = w.activation(w.dense(y, wide))
        if w.chance(0.4):
            hidden = w.join("Mul", hidden, w.dense(y, wide, bias=False))
        return w.dense(hidden, y.features)

    return _beside(w, x, inner)


def mixer(w: Layers, x: Value) -> Value:
    """Products along the tokens (MLP-Mixer)."""

    def inner(y: Value) -> Value:
        turned = w.transpose(y, 0, 2, 1)
        return w.transpose(w.dense(w.activation(w.dense(turned, 2 * y.shape[1])), y.shape[1]), 0, 2, 1)

    return _beside(w, x, inner)


def convolved(w: Layers, x: Value) -> Value:
    """Write a convolution along the tokens, with a gate (Conformer, Mamba)."""

    def inner(y: Value) -> Value:
        features = y.features
        if w.chance(0.5):
            left, right = w.split(w.dense(y, 2 * features), [features] * 2, 2)
            y = w.join("Mul", left, w.apply("Sigmoid", right))
        turned = w.transpose(y, 0, 2, 1)
        group = features if w.chance(0.6) else 1
        made = w.conv(turned, features, w.choose((3, 5, 7)), group=group, dilation=w.choose((1, 1, 2)))
        made = w.batch_norm(made) if w.chance(0.4) else made
        return w.dense(w.transpose(w.activation(made), 0, 2, 1), features)

    return _beside(w, x, inner)


def recurrent(w: Layers, x: Value) -> Value:
    """Write a recurrent layer over the tokens, in one direction or in both."""
    n, tokens, features = x.shape
    kind = w.choose(("LSTM", "GRU"))
    both = w.chance(0.4)
    directions, hidden = 1 + both, int(w.choose((4, 7, 16, 24)))
    gates = {"LSTM": 4, "GRU": 3}[kind] * hidden
    scale = hidden**-0.5
    weights = [w.weights(directions, gates, side, scale=scale) for side in (features, hidden)]
    weights.append(w.weights(directions, 2 * gates, scale=0.2))
    turned = w.transpose(x, 1, 0, 2)
    rest = {"direction": "bidirectional" if both else w.choose(("forward", "reverse")), "hidden_size": hidden}
    rest |= {"linear_before_reset": 1} if kind == "GRU" else {}
    made = w.apply(kind, turned, *weights, shape=(tokens, directions, n, hidden), **rest)
    if both:
        made = w.transpose(made, 2, 0, 1, 3)
    else:
        squeezed = w.apply("Squeeze", made, w.constant([1]), shape=(tokens, n, hidden))
        made = w.transpose(squeezed, 1, 0, 2)
    return w.dense(w.reshape(made, n, tokens, directions * hidden), features)


def rotated(w: Layers, x: Value) -> Value:
    """Rotary positions: halves of the features are turned by angles of the positions."""
    if x.features % 2:
        return x
    tokens, half = x.shape[1], x.features // 2
    angles = np.outer(np.arange(tokens), 0.1 ** (np.arange(half) / half))
    both = np.concatenate([angles, angles], axis=1)
    left, right = w.split(x, [half, half], 2)
    turned = w.concat([w.apply("Neg", right), left], 2)
    cosine, sine = (w.constant(function(both), w.dtype) for function in (np.cos, np.sin))
    return w.join("Add", w.apply("Mul", x, cosine), w.apply("Mul", turned, sine))


def placed(w: Layers, x: Value) -> Value:
    """Learnt positions are added."""
    return w.apply("Add", x, w.weights(1, *x.shape[1:], scale=0.5))


def running(w: Layers, x: Value) -> Value:
    """Write a running mean over the tokens, or a decay of what was before."""
    if w.dtype == "float16":  # onnxruntime has no kernel
        return x
    sums = w.apply("CumSum", x, w.constant(np.int64(1)))
    counts = w.constant(np.arange(1, x.shape[1] + 1).reshape(-1, 1), w.dtype)
    return w.join("Add", x, w.apply("Div", sums, counts))


BLOCKS: tuple[Block, ...] = (
    *(attention,) * 4, *(perceptron,) * 3, linear_attention, mixer, *(convolved,) * 2, recurrent, rotated, placed,
    running,
)  # fmt: skip
