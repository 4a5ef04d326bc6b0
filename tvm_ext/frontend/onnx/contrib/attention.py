"""The attention operators that onnxruntime's transformer optimiser puts into models."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.frontend.onnx.ops.attention import (
    allowed_to_bias,
    as_broad_as,
    attend,
    embed,
    merge_heads,
    places,
    split_heads,
    window_bias,
    with_past,
)
from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    constant,
    dtype_of,
    emit,
    known,
    reshape,
    take_slice,
)
from tvm_ext.frontend.onnx.ops.extents import can_prove, normal, slice_by_extents

_MASKED = -10000.0


def _scale(node: Node) -> float | None:
    return float(node.attributes["scale"]) if node.attributes.get("scale") else None


def _mask_bias(node: Node, bb: relax.BlockBuilder, mask: Any, batch: Any, keys: Any, dtype: str, name: str) -> Any:
    """Bias of a mask in one of the forms that onnxruntime takes, of shape (B, 1, 1 or S, T)."""
    hidden = node.number("mask_filter_value", _MASKED)
    mask = known(node, mask)
    shape = node.dims(mask, name)
    if len(shape) == 1:
        twice = _equal(shape[0], 2 * batch)
        if not twice and not _equal(shape[0], batch):
            node.refuse(f"input {name} has shape {shape}, only ({batch},), ({2 * batch},) and masks are supported")
        position = emit(bb, places(bb, keys, "int32"))
        limits = emit(bb, reshape(bb, astype(bb, mask, "int32"), (shape[0], 1, 1, 1)))
        if twice:
            limits, begin = (bb.emit(part) for part in _halves(bb, limits, batch))
        allowed = relax.op.less(position, limits)
        if twice:
            allowed = relax.op.logical_and(allowed, relax.op.greater_equal(position, begin))
        return allowed_to_bias(bb, bb.emit(allowed), dtype, hidden)
    wrong = (
        isinstance(have, int) and isinstance(want, int) and have != want
        for have, want in ((shape[0], batch), (shape[-1], keys))
    )
    if len(shape) not in (2, 3) or any(wrong):
        node.refuse(f"input {name} has shape {shape}, the last dimension was expected to be the {keys} keys")
    mask = as_broad_as(bb, mask, (batch, *shape[1:-1], keys))
    mask = reshape(bb, mask, (batch, 1, *((1,) if len(shape) == 2 else ()), *shape[1:-1], keys))
    zero = np.zeros((), dtype_of(mask))
    allowed = mask != zero if isinstance(mask, np.ndarray) else bb.emit(relax.op.not_equal(mask, constant(zero)))
    return allowed_to_bias(bb, allowed, dtype, hidden)


def _halves(bb: relax.BlockBuilder, value: Any, count: Any) -> list[Any]:
    """Take 2 B rows apart; B may be open."""
    ends = [normal(end) for end in (0, count, 2 * count)]
    return [slice_by_extents(bb, value, [begin], [end], [0]) for begin, end in pairwise(ends)]


def _equal(one: Any, other: Any) -> bool:
    return can_prove(normal(one) == normal(other))


def _bias(
    node: Node,
    bb: relax.BlockBuilder,
    shape: tuple[Any, Any, Any, Any],
    mask: Any | None,
    mask_name: str,
    extra: Any | None,
    dtype: str,
) -> tuple[Any | None, bool]:
    """Sum of all biases on products (B, S, T) with P keys before the first query, and whether each query sees a key."""
    batch, queries, keys, past = shape
    parts = []
    if mask is not None:
        parts.append(_mask_bias(node, bb, mask, batch, keys, dtype, mask_name))
    if extra is not None:
        parts.append(known(node, extra))
    window = window_bias(bb, queries, keys, past, bool(node.integer("unidirectional", 0)), dtype=dtype)
    if window is not None:
        parts.append(window)
    total = None
    for part in parts:
        total = part if total is None else add(bb, total, part)
    finite = mask is None or np.isfinite(node.number("mask_filter_value", _MASKED))
    return total, bool(finite) and extra is None


class Attention(Converter):
    """Self-attention with the projections of query, key and value as one product."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the output and the present state."""
        x, weights, bias, mask, past, extra, past_length = (inputs[index] for index in range(7))
        if node.integer("do_rotary", 0):
            node.refuse("rotary embedding inside (attribute do_rotary) is not supported")
        if node.integer("past_present_share_buffer", 0) or past_length is not None:
            node.refuse("a state in a shared buffer (attribute past_present_share_buffer) is not supported")
        heads = node.integer("num_heads", 0)
        batch, queries, _ = node.dims(x, "input")
        total = node.shape(weights, "weights")[1]
        sizes = node.integers("qkv_hidden_sizes") or [total // 3] * 3
        if sum(sizes) != total or heads < 1:
            node.damaged(f"hidden sizes {sizes} and {heads} heads do not match weights for {total} features")
        projected = emit(bb, relax.op.matmul(x, weights))
        if bias is not None:
            projected = bb.emit(relax.op.add(projected, bias))
        ends = np.cumsum([0, *sizes]).tolist()
        query, key, value = (
            split_heads(node, bb, take_slice(bb, projected, 2, begin, end), heads, "input")
            for begin, end in pairwise(ends)
        )
        offset = 0
        if past is not None:
            offset = node.dims(past, "past")[3]
            old = [reshape(bb, take_slice(bb, past, 0, i, i + 1), node.dims(past, "past")[1:]) for i in (0, 1)]
            key, value = with_past(node, bb, old[0], key), with_past(node, bb, old[1], value)
        keys = queries + offset
        if mask is not None and len(node.dims(mask, "mask_index")) == 4:
            node.refuse("a mask_index of 4 dimensions is not supported, only 1 to 3")
        total_bias, sees_some = _bias(node, bb, (batch, queries, keys, offset), mask, "mask_index", extra, dtype_of(x))
        result, _ = attend(node, bb, query, key, value, _scale(node), total_bias, sees_some=sees_some)
        outputs = [merge_heads(node, bb, result)]
        if node.attributes.get("tvm_custom", {}).get("num_outputs", 1) > 1:
            if sizes[1] != sizes[2]:
                node.damaged(f"keys and values of sizes {sizes[1:]} cannot be one present state")
            outputs.append(bb.emit(relax.op.stack([key, value], axis=0)))
        return node.outputs(outputs)


class MultiHeadAttention(Converter):
    """Attention of projected queries, keys and values, also packed into one or two tensors."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the output, the present keys and values, and the probabilities."""
        query, key, value, bias, mask, extra, past_key, past_value, past_length, indirection = (
            inputs[index] for index in range(10)
        )
        if past_length is not None or indirection is not None:
            node.refuse("a state in a shared buffer (input past_sequence_length) is not supported")
        heads = node.integer("num_heads", 0)
        query, key, value = cls._unpack(node, bb, query, key, value)
        if bias is not None:
            query, key, value = cls._add_bias(node, bb, bias, query, key, value)
        query, key, value = (
            split_heads(node, bb, part, heads, name)
            for part, name in ((query, "query"), (key, "key"), (value, "value"))
        )
        offset = 0
        if past_key is not None:
            offset = node.dims(past_key, "past_key")[2]
            key, value = with_past(node, bb, past_key, key), with_past(node, bb, past_value, value)
        batch, _, queries, _ = node.dims(query, "query")
        keys = node.dims(key, "key")[2]
        total, sees_some = _bias(
            node, bb, (batch, queries, keys, offset), mask, "key_padding_mask", extra, dtype_of(query)
        )
        result, scores = attend(node, bb, query, key, value, _scale(node), total, sees_some=sees_some)
        return node.outputs([merge_heads(node, bb, result), key, value, scores.raw])

    @staticmethod
    def _unpack(node: Node, bb: relax.BlockBuilder, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Take packed tensors (B, S, N, 2 or 3, H) apart, to (B, S, N·H)."""

        def parts(packed: Any, name: str, count: int) -> list[Any]:
            batch, length, heads, found, size = node.dims(packed, name)
            if found != count:
                node.damaged(f"input {name} packs {found} tensors, {count} were expected")
            return [
                reshape(bb, take_slice(bb, packed, 3, index, index + 1), (batch, length, heads * size))
                for index in range(count)
            ]

        if key is None:
            query, key, value = parts(query, "query", 3)
        elif value is None:
            key, value = parts(key, "key", 2)
        return query, key, value

    @staticmethod
    def _add_bias(node: Node, bb: relax.BlockBuilder, bias: Any, *values: Any) -> list[Any]:
        """Add each tensor's part of the projections' bias."""
        bias, begin, results = known(node, bias), 0, []
        for value in values:
            shape = node.dims(value, "query, key or value")
            if len(shape) != 3:
                node.refuse("a bias together with keys and values of 4 dimensions is not supported")
            results.append(add(bb, value, take_slice(bb, bias, 0, begin, begin + shape[2])))
            begin += shape[2]
        return results


class RotaryEmbedding(Converter):
    """Rotary position embedding, with one first position for all sequences or one for each token."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the turned features."""
        x, positions, cosine, sine = (inputs[index] for index in range(4))
        if node.integer("is_packed_batching", 0):
            node.refuse("packed sequences (attribute is_packed_batching) are not supported")
        if node.number("scale", 1.0) != 1.0:
            node.refuse(f"attribute scale is {node.number('scale', 1.0)}, only 1 is supported")
        shape = node.dims(x, "input")
        if len(node.dims(positions, "position_ids")) == 1:
            length = shape[1] if len(shape) == 3 else shape[2]
            steps = reshape(bb, places(bb, length, dtype_of(positions)), (1, length))
            positions = emit(bb, add(bb, reshape(bb, known(node, positions), (1, 1)), steps))
        return embed(node, bb, emit(bb, x), cosine, sine, positions)


CONVERTERS: dict[tuple[str, str], type] = {
    ("com.microsoft", "Attention"): Attention,
    ("com.microsoft", "MultiHeadAttention"): MultiHeadAttention,
    ("com.microsoft", "RotaryEmbedding"): RotaryEmbedding,
}
