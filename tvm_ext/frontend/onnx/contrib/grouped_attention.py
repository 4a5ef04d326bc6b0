"""Attention over a cache as onnxruntime-genai exports it: grouped heads, rotary positions, a length for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.attention import (
    allowed_distances,
    allowed_to_bias,
    as_broad_as,
    attend,
    merge_heads,
    places,
    rotate,
    split_heads,
)
from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    concatenate,
    constant,
    dtype_of,
    emit,
    known,
    reshape,
    subtract,
    take_slice,
)
from tvm_ext.frontend.onnx.ops.extents import (
    as_tensor,
    can_prove,
    is_extent,
    is_number,
    normal,
    number,
    slice_by_extents,
)
from tvm_ext.frontend.relax.value_checks import Requirement, checked, spelled

_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"),
    *("q_norm_weight", "k_norm_weight", "query_seqlens"),
)
_REFUSED_INPUTS = frozenset(["position_ids", *_INPUTS[11:]])
_ONLY = {"smooth_softmax": (-1, 0), "qk_output": (0,), "sliding_window_cache": (0,), "causal": (1,)}
"""Attribute -> values that are supported; the first is the default."""

_AS_IT_IS = frozenset(["relax.astype", "relax.reshape", "relax.shape_to_tensor", "relax.squeeze"])
"""Operators on one number that hand it on."""


class GroupQueryAttention(Converter):
    """Causal attention of the newest tokens of each sequence, which are put behind those in its cache.

    A sequence has ``seqlens_k + 1`` tokens with the new ones, so ``seqlens_k + 1 - S`` of its cache are read, none if
    that is negative (a prompt with padding behind it). The cache grows by S, or has a fixed number of places that are
    filled up.
    """

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the output and the present keys and values."""
        given = dict(zip(_INPUTS, (inputs[index] for index in range(len(_INPUTS))), strict=True))
        cls._refuse(node, given)
        query, key, value = cls._heads(node, bb, given["query"], given["key"], given["value"])
        batch, _, queries, _ = node.dims(query, "query")
        past = [given["past_key"], given["past_value"]]
        if (past[0] is None) != (past[1] is None):
            node.damaged("only one of past_key and past_value is given")
        before = 0 if past[0] is None else node.dims(past[0], "past_key")[2]
        total = _total(node, bb, given["total_sequence_length"])
        grows = _grows(total, before, queries)
        keys = normal(before + queries) if grows else before
        keys = int(keys) if isinstance(keys, tirx.IntImm) else keys
        angles = [given["cos_cache"], given["sin_cache"]] if node.integer("do_rotary", 0) else []
        if any(table is None for table in angles):
            node.damaged("attribute do_rotary is 1, and cos_cache or sin_cache is not given")
        rows = node.dims(angles[0], "cos_cache")[0] if angles else keys
        lengths = _checked_lengths(node, bb, given["seqlens_k"], total if grows else None, batch, keys, rows)
        ahead = np.array(queries, "int64") if isinstance(queries, int) else as_tensor(bb, queries)
        begins = subtract(bb, add(bb, lengths, np.array(1, "int64")), ahead)
        begins = bb.emit(relax.op.maximum(begins, constant(0, "int64")))
        if angles:
            steps = reshape(bb, places(bb, queries), (1, queries))
            positions = add(bb, reshape(bb, begins, (batch, 1)), steps)
            cosine, sine = (bb.emit(relax.op.take(emit(bb, table), positions, axis=0, mode="clip")) for table in angles)
            interleaved = bool(node.integer("rotary_interleaved", 0))
            query, key = (rotate(node, bb, part, cosine, sine, interleaved) for part in (query, key))
        if past[0] is not None:
            key, value = (
                _with_cache(node, bb, old, new, begins, grows) for old, new in zip(past, (key, value), strict=True)
            )
        extra, heads, groups = given["attention_bias"], node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
        shared = 1 if extra is not None else heads // groups
        # Heads that share keys and values are rows of one product, so that these are neither copied nor read again.
        shape = node.dims(query, "query")
        query = reshape(bb, query, (batch, heads // shared, shared * queries, shape[3]))
        rows = reshape(bb, concatenate(bb, [places(bb, queries)] * shared, 0), (shared * queries, 1))
        back = subtract(bb, add(bb, reshape(bb, begins, (batch, 1, 1, 1)), rows), places(bb, keys))
        window = node.integer("local_window_size", -1)
        allowed = allowed_distances(bb, back, causal=True, left=window - 1 if window > 0 else -1, right=-1)
        bias = allowed_to_bias(bb, allowed, dtype_of(query))
        if extra is not None:
            bias = add(bb, bias, as_broad_as(bb, known(node, extra), (batch, heads, queries, keys)))
        scale = node.number("scale", 0.0) or None
        result, _ = attend(
            node, bb, query, key, value, scale, bias, node.number("softcap", 0.0), sees_some=extra is None
        )
        result = reshape(bb, result, shape)
        return node.outputs([merge_heads(node, bb, result), key, value])

    @staticmethod
    def _refuse(node: Node, given: dict[str, Any]) -> None:
        """Name what is not supported."""
        for name, values in _ONLY.items():
            if node.integer(name, values[0]) not in values:
                node.refuse(f"attribute {name} is {node.integer(name, values[0])}, only {values[-1]} is supported")
        for name in ("k_quant_type", "v_quant_type"):
            if node.text(name, "NONE") != "NONE":
                node.refuse(
                    f"attribute {name} is {node.text(name)}, a cache of few bits is not supported; export float"
                )
        for name in _INPUTS:
            if name in _REFUSED_INPUTS and given[name] is not None:
                node.refuse(f"input {name} is not supported; export the model without it")
        for name in ("seqlens_k", "total_sequence_length"):
            if given[name] is None:
                node.damaged(f"input {name} is not given")

    @staticmethod
    def _heads(node: Node, bb: relax.BlockBuilder, query: Any, key: Any, value: Any) -> list[Any]:
        """Give queries, keys and values as (B, heads, S, H); those packed in one tensor are taken apart."""
        heads, groups = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
        if heads < 1 or groups < 1 or heads % groups:
            node.damaged(f"kv_num_heads is {groups}, which does not divide num_heads, {heads}")
        shape = node.dims(query, "query")
        if len(shape) != 3:
            node.damaged(f"input query has shape {shape}, 3 dimensions were expected")
        width = node.fixed(shape[2], "query", 2)
        if (key is None) != (value is None):
            node.damaged("only one of key and value is given")
        if key is None:
            size, rest = divmod(width, heads + 2 * groups)
            if rest:
                node.damaged(f"input query has shape {shape}, which {heads} and twice {groups} heads do not divide")
            ends = [0, heads * size, (heads + groups) * size, width]
            query, key, value = (take_slice(bb, query, 2, *ends[index : index + 2]) for index in range(3))
        else:
            if width % heads:
                node.damaged(f"input query has shape {shape}, which {heads} heads do not divide")
            wanted = (*shape[:2], width // heads * groups)
            for part, name in ((key, "key"), (value, "value")):
                found = node.dims(part, name)
                if len(found) != 3 or found[2] != wanted[2]:
                    node.refuse(f"input {name} has shape {found}, {wanted} was expected")
            key, value = (as_broad_as(bb, part, wanted) for part in (key, value))
        parts = ((query, heads, "query"), (key, groups, "key"), (value, groups, "value"))
        return [split_heads(node, bb, part, count, name) for part, count, name in parts]


def _total(node: Node, bb: relax.BlockBuilder, total: Any) -> Any:
    """Total length as a number, an expression of extents, or a tensor that only a run tells."""
    if not is_extent(total) and node.array(total) is not None:
        return number(node.scalar(total, "total_sequence_length"))
    found = total
    while isinstance(found, relax.Var):  # exporters make an int32 of the extent of a mask
        value = bb.lookup_binding(found)
        if isinstance(value, relax.Var):
            found = value
        elif isinstance(value, relax.Call) and value.op.name in _AS_IT_IS and dtype_of(found) in ("int32", "int64"):
            found = value.args[0]
        else:
            return total
    if isinstance(found, relax.ShapeExpr) and len(found.values) == 1:
        found = found.values[0]
    return normal(found) if is_extent(found) else total


def _grows(total: Any, before: Any, queries: Any) -> bool:
    """Whether the cache becomes longer by the new tokens; else it has places for all, and is filled up.

    Where the past has a fixed number of places, a total length that varies says that these are filled up.
    """
    if not is_extent(total) or can_prove(total == normal(before + queries)):
        return True
    if can_prove(total <= normal(before)):
        return False
    return is_number(total) or not is_number(before) or int(before) == 0


def _checked_lengths(
    node: Node, bb: relax.BlockBuilder, lengths: Any, total: Any | None, batch: Any, keys: Any, rows: Any
) -> Any:
    """Lengths of the sequences as int64, (B,); each run compares them, and the total if given, with the extents.

    Parameters
    ----------
    total : relax.Expr or tvm.tirx.Expr or None
        Has to be ``keys``.
    rows : int or tvm.tirx.Expr
        Lengths that there are angles for.
    """
    name = node.attributes.get("tvm_custom", {}).get("name", "")
    label = f"node {name!r} (GroupQueryAttention)" if name else "a node GroupQueryAttention"
    limits = [normal(keys), normal(rows)]
    below = " and ".join(dict.fromkeys(map(spelled, limits)))
    lengths = as_broad_as(bb, emit(bb, reshape(bb, astype(bb, known(node, lengths), "int64"), (-1,))), (batch,))

    def inside(found: Any, extents: Any) -> Any:
        return tirx.all(found >= 0, found < extents[0], found < extents[1])

    if total is None or (is_extent(total) and can_prove(total == limits[0])):
        said = f"from 0 to below {below}"
        message = f"{label}: its input seqlens_k must hold numbers {said}, the places of the cache and of angles"
        return checked(
            bb, lengths, Requirement(lambda at, place, ends: inside(at(*place), ends), said, limits), message
        )
    if is_number(total) and is_number(limits[0]):
        node.damaged(
            f"input total_sequence_length is {int(total)}, the past and the new tokens are {int(limits[0])}; bind "
            "the shapes of the past and of the mask to what belongs together"
        )
    total = as_tensor(bb, total) if is_extent(total) else total
    both = concatenate(bb, [reshape(bb, astype(bb, total, "int64"), (1,)), lengths], 0)

    def agree(element: Any, at: Any, extents: Any) -> Any:
        found = element(*at)
        return tirx.Select(at[0] == 0, found == extents[0], inside(found, extents))

    said = f"{spelled(limits[0])}, the tokens of the past and the new ones"
    message = (
        f"{label}: its input total_sequence_length must be {said}, and seqlens_k hold numbers from 0 to below {below}; "
        "give a cache that ends with its last token, or fix its length if it has places for tokens to come"
    )
    both = checked(bb, both, Requirement(agree, said, limits), message)
    return bb.emit(slice_by_extents(bb, both, [number(1)], [normal(batch + 1)], [0]))


def _with_cache(node: Node, bb: relax.BlockBuilder, past: Any, new: Any, begins: Any, grows: bool) -> Any:
    """Put keys or values (B, M, S, H) behind as many of the cache as the sequence has, and zeros behind them."""
    batch, heads, _, size = node.dims(new, "key or value")
    past = emit(bb, known(node, past))
    past = as_broad_as(bb, past, (batch, heads, node.dims(past, "past_key or past_value")[2], size))

    def appended(old: te.Tensor, fresh: te.Tensor, begin: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            sequence, head, place, feature = at
            step = place - begin[sequence]
            is_old = tirx.all(step < 0, place < old.shape[2])
            is_new = tirx.all(step >= 0, step < fresh.shape[2])
            added = tirx.if_then_else(is_new, fresh[sequence, head, step, feature], tirx.const(0, fresh.dtype))
            return tirx.if_then_else(is_old, old[sequence, head, place, feature], added)

        keys = old.shape[2] + fresh.shape[2] if grows else old.shape[2]
        return te.compute([*fresh.shape[:2], keys, fresh.shape[3]], element, name="appended")

    return bb.emit_te(appended, past, new, begins, primfunc_name_hint="append_to_cache")


CONVERTERS: dict[tuple[str, str], type] = {("com.microsoft", "GroupQueryAttention"): GroupQueryAttention}
