"""Attention and rotary embedding as matrix products, softmax and elementwise operators, known to every graph pass."""

from __future__ import annotations

from collections.abc import Sequence
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
    subtract,
    take_slice,
    transpose,
)
from tvm_ext.frontend.onnx.ops.extents import as_tensor, can_prove, is_number, normal, taken_as


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
    """(B, S, N·H) -> (B, N, S, H); a value of 4 dimensions is in that form already. B and S may be open."""
    shape = node.dims(value, name)
    if len(shape) == 4:
        return value
    if len(shape) != 3 or heads < 1 or node.fixed(shape[2], name, 2) % heads:
        node.damaged(f"input {name} has shape {shape}, which {heads} heads do not divide")
    split = reshape(bb, value, (shape[0], shape[1], heads, shape[2] // heads))
    return transpose(bb, split, (0, 2, 1, 3))


def merge_heads(node: Node, bb: relax.BlockBuilder, value: Any) -> Any:
    """(B, N, S, H) -> (B, S, N·H)."""
    batch, heads, length, size = node.dims(value, "Y")
    return reshape(bb, transpose(bb, value, (0, 2, 1, 3)), (batch, length, heads * size))


def allowed_to_bias(bb: relax.BlockBuilder, allowed: Any, dtype: str, masked: float = -np.inf) -> Any:
    """Additive bias of a boolean mask: 0 where true, ``masked`` elsewhere; at once if the mask is an array."""
    if isinstance(allowed, np.ndarray):
        return np.where(allowed, 0.0, masked).astype(dtype)
    return bb.emit(relax.op.where(allowed, constant(0.0, dtype), constant(masked, dtype)))


def places(bb: relax.BlockBuilder, count: Any, dtype: str = "int64") -> Any:
    """Give 0, 1, ... up to a number that may be open; an array if it is known."""
    return np.arange(count, dtype=dtype) if isinstance(count, int) else bb.emit(relax.op.arange(0, count, 1, dtype))


def distances(bb: relax.BlockBuilder, queries: Any, keys: Any, offset: Any) -> Any:
    """How many keys lie between each key and the query, shape (queries, keys); an array if all extents are known."""
    rows = reshape(bb, places(bb, queries), (queries, 1))
    if not isinstance(offset, int) or offset:
        rows = add(bb, rows, np.array(offset, "int64") if isinstance(offset, int) else as_tensor(bb, offset))
    return subtract(bb, rows, places(bb, keys))


def window_bias(
    bb: relax.BlockBuilder,
    queries: Any,
    keys: Any,
    offset: Any,
    causal: bool,
    left: int = -1,
    right: int = -1,
    dtype: str = "float32",
) -> Any | None:
    """Bias that hides keys from queries by their distance.

    Parameters
    ----------
    queries, keys : int or tvm.tirx.Expr
    offset : int or tvm.tirx.Expr
        Number of keys before the first query.
    causal : bool
        Hide later keys.
    left, right : int
        How far a query sees back and ahead; -1 is without limit.

    Returns
    -------
    np.ndarray or relax.Expr or None
        Shape (queries, keys), computed if an extent is open; None if nothing is hidden.
    """
    if not causal and left < 0 and right < 0:
        return None
    allowed = allowed_distances(bb, distances(bb, queries, keys, offset), causal, left, right)
    if isinstance(allowed, np.ndarray) and allowed.all():
        return None
    return allowed_to_bias(bb, allowed, dtype)


def allowed_distances(bb: relax.BlockBuilder, back: Any, causal: bool, left: int, right: int) -> Any:
    """Whether a query may see a key that lies so far behind it; at once if the distances are an array."""
    behind = [0] * causal + [-right] * (right >= 0)
    allowed: Any = None
    for limit, least in [*((least, True) for least in behind), *[(left, False)] * (left >= 0)]:
        if isinstance(back, np.ndarray):
            seen = back >= limit if least else back <= limit
            allowed = seen if allowed is None else allowed & seen
        else:
            compare = relax.op.greater_equal if least else relax.op.less_equal
            seen = bb.emit(compare(back, constant(limit, "int64")))
            allowed = seen if allowed is None else bb.emit(relax.op.logical_and(allowed, seen))
    return allowed


def as_broad_as(bb: relax.BlockBuilder, value: Any, shape: Sequence[Any]) -> Any:
    """Take open extents of a value for those of a shape that it broadcasts to; each run compares them."""
    if isinstance(value, np.ndarray):
        return value
    found = [int(dim) if is_number(dim) else dim for dim in value.ty.shape]
    wanted = [
        have if have == 1 or (is_number(have) and is_number(want)) else want
        for have, want in zip(found, shape[len(shape) - len(found) :], strict=True)
    ]
    if all(can_prove(normal(have) == normal(want)) for have, want in zip(found, wanted, strict=True)):
        return value
    return taken_as(bb, value, [normal(want) for want in wanted])


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
    sees_some: bool = False,
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
    sees_some : bool
        Whether the biases let every query see a key.

    Returns
    -------
    relax.Expr
        Shape (B, N, S, V).
    Scores
    """
    batch, heads, _, size = node.dims(query, "query")
    heads, size = node.fixed(heads, "query", 1), node.fixed(size, "query", 3)
    groups, keys, dtype = node.fixed(node.dims(key, "key")[1], "key", 1), node.dims(key, "key")[2], dtype_of(query)
    key, value = (as_broad_as(bb, part, (batch, groups, keys, node.dims(part, "key")[3])) for part in (key, value))
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
    probabilities = shown = astype(bb, probabilities, dtype)
    result = bb.emit(relax.op.matmul(probabilities, value))
    if bias is not None and not sees_some and _may_hide_everything(bias):
        # Seen or not as numbers: a maximum of the biases themselves begins at the lowest finite one. Rows are replaced
        # behind the product, so that it, the softmax and the scores can be one kernel.
        seen = relax.op.astype(relax.op.greater(emit(bb, bias), constant(-np.inf, dtype_of(bias))), "float32")
        hidden = bb.emit(relax.op.equal(relax.op.max(seen, axis=-1, keepdims=True), constant(0.0, "float32")))
        shown = bb.emit(relax.op.where(hidden, constant(0.0, dtype), probabilities))
        result = bb.emit(relax.op.where(hidden, constant(0.0, dtype), result))
    return result, Scores(raw, capped, biased, shown)


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
        merged = len(node.dims(query, "Q")) == 3
        query = split_heads(node, bb, query, node.integer("q_num_heads", 0), "Q")
        key = split_heads(node, bb, key, node.integer("kv_num_heads", 0), "K")
        value = split_heads(node, bb, value, node.integer("kv_num_heads", 0), "V")
        offset = 0
        if past_key is not None:
            offset = node.dims(past_key, "past_key")[2]
            key, value = with_past(node, bb, past_key, key), with_past(node, bb, past_value, value)
        bias, sees_some = cls._bias(node, bb, query, key, mask, offset, lengths)
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
            sees_some,
        )
        shown = (scores.raw, scores.capped, scores.biased, scores.probabilities)
        mode = node.integer("qk_matmul_output_mode", 0)
        if not 0 <= mode < len(shown):
            node.damaged(f"attribute qk_matmul_output_mode is {mode}, 0 to {len(shown) - 1} were expected")
        if merged:
            result = merge_heads(node, bb, result)
        return node.outputs([result, key, value, shown[mode]])

    @staticmethod
    def _bias(
        node: Node, bb: relax.BlockBuilder, query: Any, key: Any, mask: Any, offset: Any, lengths: Any
    ) -> tuple[Any, bool]:
        """Sum of all biases, and whether they let every query see a key."""
        dtype, keys = dtype_of(query), node.dims(key, "K")[2]
        batch, heads, queries, _ = node.dims(query, "Q")
        causal = bool(node.integer("is_causal", 0))
        left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
        bias: Any = None
        if mask is not None:
            mask = known(node, mask)
            if dtype_of(mask) == "bool":
                mask = allowed_to_bias(bb, mask, dtype)
            shape = node.dims(mask, "attn_mask")
            if isinstance(shape[-1], int) and isinstance(keys, int) and shape[-1] < keys:
                hidden = np.full((*shape[:-1], keys - shape[-1]), -np.inf, dtype)
                mask = concatenate(bb, [mask, hidden], len(shape) - 1)
            bias = as_broad_as(bb, mask, (batch, heads, queries, keys))
        if lengths is None:
            window = window_bias(bb, queries, keys, offset, causal, left, right, dtype)
            sees_some = mask is None and (left < 0 or can_prove(normal(keys) == normal(queries + offset)))
        else:
            # The cache is longer than what is in it: the number of keys of each sequence sets its frontier.
            filled = emit(bb, reshape(bb, astype(bb, known(node, lengths), "int64"), (-1, 1, 1, 1)))
            ahead = np.array(queries, "int64") if isinstance(queries, int) else as_tensor(bb, queries)
            back = emit(bb, subtract(bb, add(bb, filled, distances(bb, queries, keys, 0)), ahead))
            allowed = bb.emit(relax.op.less(emit(bb, reshape(bb, places(bb, keys), (1, keys))), filled))
            near = allowed_distances(bb, back, causal, left, right)
            if near is not None:
                allowed = bb.emit(relax.op.logical_and(allowed, near))
            window, sees_some = allowed_to_bias(bb, allowed, dtype), False
        if window is None:
            return bias, sees_some
        return window if bias is None else add(bb, bias, window), sees_some


def with_past(node: Node, bb: relax.BlockBuilder, past: Any, new: Any) -> Any:
    """Append keys or values (B, M, T, H) to those of the tokens before."""
    batch, heads, _, size = node.dims(new, "K or V")
    past = known(node, past)
    return concatenate(bb, [as_broad_as(bb, past, (batch, heads, node.dims(past, "past")[2], size)), new], 2)


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
    batch, heads, length, size = node.dims(x, "X")
    half = node.dims(cosine, "cos_cache")[-1]
    heads, size, half = node.fixed(heads, "X", 1), node.fixed(size, "X", 3), node.fixed(half, "cos_cache", 2)
    if 2 * half > size:
        node.damaged(f"{half} angles turn {2 * half} features, there are only {size}")
    turned = take_slice(bb, x, 3, 0, 2 * half)
    order = (0, 1, 2, 3, 4) if interleaved else (0, 1, 2, 4, 3)
    pairs = (half, 2) if interleaved else (2, half)
    turned = transpose(bb, reshape(bb, turned, (batch, heads, length, *pairs)), order)
    first, second = (bb.emit(relax.op.take(turned, constant(part, "int64"), axis=4)) for part in (0, 1))
    cosine, sine = (as_broad_as(bb, known(node, value), (batch, length, half)) for value in (cosine, sine))
    rows = node.dims(cosine, "cos_cache")[0]
    cosine, sine = (emit(bb, reshape(bb, value, (rows, 1, length, half))) for value in (cosine, sine))
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
    shape = node.dims(x, "X")
    merged = len(shape) == 3
    heads = node.integer("num_heads", 0)
    if merged and heads == 0:
        width = node.fixed(node.dims(cosine, "cos_cache")[-1], "cos_cache", -1) * 2
        heads = node.fixed(shape[2], "X", 2) // width if width else 0
    x = split_heads(node, bb, x, heads, "X")
    if positions is not None:
        cosine, sine = (bb.emit(relax.op.take(table, positions, axis=0)) for table in (cosine, sine))
    result = rotate(node, bb, x, cosine, sine, bool(node.integer("interleaved", 0)))
    return merge_heads(node, bb, result) if merged else result


CONVERTERS: dict[tuple[str, str], type] = {("", "Attention"): Attention, ("", "RotaryEmbedding"): RotaryEmbedding}
