"""Attention and rotary embedding as matrix products, softmax and elementwise operators, known to every graph pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    concatenate,
    constant,
    dtype_of,
    element_type,
    emit,
    known,
    reshape,
    take_slice,
    transpose,
)


@dataclass(frozen=True)
class Scores:
    """Logits and probabilities of an attention, shape (B, N, S, T).

    Attributes
    ----------
    raw, capped, biased, probabilities : relax.Expr
        After the product, the soft cap, the bias and the softmax.
    """

    raw: Any
    capped: Any
    biased: Any
    probabilities: Any


def split_heads(node: Node, bb: relax.BlockBuilder, value: Any, heads: int, name: str) -> Any:
    """(B, S, N·H) -> (B, N, S, H); a value of 4 dimensions is in that form already."""
    shape = node.shape(value, name)
    if len(shape) == 4:
        return value
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        node.damaged(f"input {name} has shape {shape}, which {heads} heads do not divide")
    split = reshape(bb, value, (shape[0], shape[1], heads, shape[2] // heads))
    return transpose(bb, split, (0, 2, 1, 3))


def merge_heads(node: Node, bb: relax.BlockBuilder, value: Any) -> Any:
    """(B, N, S, H) -> (B, S, N·H)."""
    batch, heads, length, size = node.shape(value, "Y")
    return reshape(bb, transpose(bb, value, (0, 2, 1, 3)), (batch, length, heads * size))


def allowed_to_bias(bb: relax.BlockBuilder, allowed: Any, dtype: str, masked: float = -np.inf) -> Any:
    """Additive bias of a boolean mask: 0 where true, ``masked`` elsewhere; at once if the mask is an array."""
    if isinstance(allowed, np.ndarray):
        return np.where(allowed, 0.0, masked).astype(dtype)
    return bb.emit(relax.op.where(allowed, constant(0.0, dtype), constant(masked, dtype)))


def window_bias(
    queries: int, keys: int, offset: int, causal: bool, left: int = -1, right: int = -1, dtype: str = "float32"
) -> np.ndarray | None:
    """Bias that hides keys from queries by their distance.

    Parameters
    ----------
    offset : int
        Number of keys before the first query.
    causal : bool
        Hide later keys.
    left, right : int
        How far a query sees back and ahead; -1 is without limit.

    Returns
    -------
    np.ndarray or None
        Shape (queries, keys); None if nothing is hidden.
    """
    back = np.arange(queries)[:, None] + offset - np.arange(keys)[None, :]
    allowed = np.ones((queries, keys), bool)
    if causal:
        allowed &= back >= 0
    if left >= 0:
        allowed &= back <= left
    if right >= 0:
        allowed &= -back <= right
    return None if allowed.all() else np.where(allowed, 0.0, -np.inf).astype(dtype)


def attend(
    node: Node,
    bb: relax.BlockBuilder,
    query: Any,
    key: Any,
    value: Any,
    scale: float | None,
    bias: Any | None = None,
    softcap: float = 0.0,
    precision: str | None = None,
) -> tuple[Any, Scores]:
    """Attend with queries (B, N, S, H) to keys (B, M, T, H) and values (B, M, T, V), where M divides N.

    Parameters
    ----------
    scale : float, optional
        Of the products; 1 / sqrt(H) if None.
    bias : relax.Expr or np.ndarray, optional
        Broadcasts to (B, N, S, T). A query whose biases are all minus infinity gives zeros.
    softcap : float
        Bound of the products, approached as a hyperbolic tangent; 0 is none.
    precision : str, optional
        Element type of the softmax, if not that of the query.

    Returns
    -------
    relax.Expr
        Shape (B, N, S, V).
    Scores
    """
    heads, size = node.shape(query, "query")[1], node.shape(query, "query")[3]
    groups, dtype = node.shape(key, "key")[1], dtype_of(query)
    if groups < 1 or heads % groups:
        node.damaged(f"{groups} heads of keys do not divide {heads} heads of queries")
    if groups != heads:
        key, value = (bb.emit(relax.op.repeat(part, heads // groups, 1)) for part in (key, value))
    scale = size**-0.5 if scale is None else scale
    scaled = bb.emit(relax.op.multiply(query, constant(scale, dtype)))
    raw = bb.emit(relax.op.matmul(scaled, transpose(bb, key, (0, 1, 3, 2))))
    capped = raw
    if softcap > 0:
        capped = relax.op.tanh(relax.op.divide(raw, constant(softcap, dtype)))
        capped = bb.emit(relax.op.multiply(capped, constant(softcap, dtype)))
    biased = capped if bias is None else add(bb, capped, bias)
    logits = biased if precision is None else astype(bb, biased, precision)
    probabilities = bb.emit(relax.op.nn.softmax(logits, -1))
    if bias is not None and _may_hide_everything(bias):
        # Seen or not as numbers: a maximum of the biases themselves begins at the lowest finite one.
        seen = relax.op.astype(relax.op.greater(emit(bb, bias), constant(-np.inf, dtype_of(bias))), "float32")
        hidden = relax.op.equal(relax.op.max(seen, axis=-1, keepdims=True), constant(0.0, "float32"))
        probabilities = relax.op.where(hidden, constant(0.0, dtype_of(probabilities)), probabilities)
        probabilities = bb.emit(probabilities)
    probabilities = astype(bb, probabilities, dtype)
    return bb.emit(relax.op.matmul(probabilities, value)), Scores(raw, capped, biased, probabilities)


def _may_hide_everything(bias: Any) -> bool:
    if isinstance(bias, np.ndarray):
        return bool(np.isneginf(bias.astype("float32").max(axis=-1)).any())
    return True


class Attention(Converter):
    """Scaled dot-product attention with masks, grouped heads, a cache and windows."""

    op_type = "Attention"

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give Y, present_key, present_value and qk_matmul_output."""
        query, key, value, mask, past_key, past_value, lengths = (inputs[index] for index in range(7))
        merged = len(node.shape(query, "Q")) == 3
        query = split_heads(node, bb, query, node.integer("q_num_heads", 0), "Q")
        key = split_heads(node, bb, key, node.integer("kv_num_heads", 0), "K")
        value = split_heads(node, bb, value, node.integer("kv_num_heads", 0), "V")
        offset = 0
        if past_key is not None:
            offset = node.shape(past_key, "past_key")[2]
            key = concatenate(bb, [past_key, key], 2)
            value = concatenate(bb, [past_value, value], 2)
        bias = cls._bias(node, bb, query, key, mask, offset, lengths)
        scale = float(node.attributes["scale"]) if "scale" in node.attributes else None
        precision = node.attributes.get("softmax_precision")
        result, scores = attend(
            node,
            bb,
            query,
            key,
            value,
            scale,
            bias,
            node.number("softcap", 0.0),
            None if precision is None else element_type(int(precision)),
        )
        shown = (scores.raw, scores.capped, scores.biased, scores.probabilities)
        mode = node.integer("qk_matmul_output_mode", 0)
        if not 0 <= mode < len(shown):
            node.damaged(f"attribute qk_matmul_output_mode is {mode}, 0 to {len(shown) - 1} were expected")
        if merged:
            result = merge_heads(node, bb, result)
        return node.outputs([result, key, value, shown[mode]])

    @staticmethod
    def _bias(node: Node, bb: relax.BlockBuilder, query: Any, key: Any, mask: Any, offset: int, lengths: Any) -> Any:
        dtype, queries, keys = dtype_of(query), node.shape(query, "Q")[2], node.shape(key, "K")[2]
        causal = bool(node.integer("is_causal", 0))
        left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
        bias: Any = None
        if mask is not None:
            mask = known(node, mask)
            if dtype_of(mask) == "bool":
                mask = allowed_to_bias(bb, mask, dtype)
            shape = node.shape(mask, "attn_mask")
            if shape[-1] < keys:
                hidden = np.full((*shape[:-1], keys - shape[-1]), -np.inf, dtype)
                mask = concatenate(bb, [mask, hidden], len(shape) - 1)
            bias = mask
        if lengths is None:
            window = window_bias(queries, keys, offset, causal, left, right, dtype)
        else:
            # The cache is longer than what is in it: the number of keys of each sequence sets its frontier.
            window = None
            filled = reshape(bb, astype(bb, known(node, lengths), "int64"), (-1, 1, 1, 1))
            back = emit(bb, add(bb, filled, np.arange(queries)[:, None] - queries - np.arange(keys)[None, :]))
            position = constant(np.arange(keys)[None, :], "int64")
            allowed = relax.op.less(position, emit(bb, filled))
            zero = constant(0, "int64")
            if causal:
                allowed = relax.op.logical_and(allowed, relax.op.greater_equal(back, zero))
            if left >= 0:
                allowed = relax.op.logical_and(allowed, relax.op.less_equal(back, constant(left, "int64")))
            if right >= 0:
                allowed = relax.op.logical_and(allowed, relax.op.greater_equal(back, constant(-right, "int64")))
            padding = allowed_to_bias(bb, bb.emit(allowed), dtype)
            bias = padding if bias is None else add(bb, bias, padding)
        if window is None:
            return bias
        return window if bias is None else add(bb, bias, window)


def rotate(node: Node, bb: relax.BlockBuilder, x: Any, cosine: Any, sine: Any, interleaved: bool) -> Any:
    """Turn pairs of features by an angle that depends on the position.

    Parameters
    ----------
    x : relax.Expr
        Shape (B, N, S, H).
    cosine, sine : relax.Expr
        Shape (B or 1, S, R / 2), where the first R of the H features are turned.
    interleaved : bool
        A pair is (2 i, 2 i + 1), else (i, i + R / 2).
    """
    batch, heads, length, size = node.shape(x, "X")
    half = node.shape(cosine, "cos_cache")[-1]
    if 2 * half > size:
        node.damaged(f"{half} angles turn {2 * half} features, there are only {size}")
    turned = take_slice(bb, x, 3, 0, 2 * half)
    order = (0, 1, 2, 3, 4) if interleaved else (0, 1, 2, 4, 3)
    pairs = (half, 2) if interleaved else (2, half)
    turned = transpose(bb, reshape(bb, turned, (batch, heads, length, *pairs)), order)
    first, second = (bb.emit(relax.op.take(turned, constant(part, "int64"), axis=4)) for part in (0, 1))
    rows = node.shape(cosine, "cos_cache")[0]
    cosine, sine = (emit(bb, reshape(bb, known(node, value), (rows, 1, length, half))) for value in (cosine, sine))
    left = relax.op.subtract(relax.op.multiply(first, cosine), relax.op.multiply(second, sine))
    right = relax.op.add(relax.op.multiply(first, sine), relax.op.multiply(second, cosine))
    if interleaved:
        result = relax.op.stack([bb.emit(left), bb.emit(right)], axis=4)
    else:
        result = relax.op.concat([bb.emit(left), bb.emit(right)], axis=3)
    result = reshape(bb, bb.emit(result), (batch, heads, length, 2 * half))
    if 2 * half == size:
        return result
    return concatenate(bb, [result, take_slice(bb, x, 3, 2 * half, size)], 3)


class RotaryEmbedding(Converter):
    """Rotary position embedding, on (B, N, S, H) or (B, S, N·H)."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the turned features."""
        x, cosine, sine, positions = (inputs[index] for index in range(4))
        return embed(node, bb, emit(bb, x), cosine, sine, positions)


def embed(node: Node, bb: relax.BlockBuilder, x: Any, cosine: Any, sine: Any, positions: Any | None) -> Any:
    """Look up the angles of the positions and turn the features by them."""
    shape = node.shape(x, "X")
    merged = len(shape) == 3
    heads = node.integer("num_heads", 0)
    if merged and heads == 0:
        width = node.shape(cosine, "cos_cache")[-1] * 2
        heads = shape[2] // width if width else 0
    x = split_heads(node, bb, x, heads, "X")
    if positions is not None:
        cosine, sine = (bb.emit(relax.op.take(table, positions, axis=0)) for table in (cosine, sine))
    result = rotate(node, bb, x, cosine, sine, bool(node.integer("interleaved", 0)))
    return merge_heads(node, bb, result) if merged else result


CONVERTERS: dict[tuple[str, str], type] = {("", "Attention"): Attention, ("", "RotaryEmbedding"): RotaryEmbedding}
